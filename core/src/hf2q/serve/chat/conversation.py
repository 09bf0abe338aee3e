"""`Chat`: how one model is talked to. Messages in, prompt out.

Templates differ in what they take as content: text, a list of parts, or both. Which of them this one takes is found
by rendering a probe, so that no message is dropped or printed as a Python list.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from hf2q.errors import LoadError, RequestError, listing
from hf2q.serve.chat.reasoning import ReasoningSplitter
from hf2q.serve.chat.template import ChatTemplate
from hf2q.types import ChatFormat, Record

log = logging.getLogger(__name__)

_PROBE = "hf2q-probe-8d1f"
_BOOLEAN = frozenset({"enable_thinking", "thinking", "preserve_thinking"})


class Message(Record, frozen=True, kw_only=True):
    """One turn of a conversation. `content` is text or a tuple of pieces of text; `reasoning` what led to it.

    `images` is how many images come before the text; the template writes a place for each.
    """

    role: str
    content: str | tuple[str, ...]
    reasoning: str | None = None
    images: int = 0


class Prompt(Record, frozen=True, kw_only=True):
    """A rendered conversation, and whether it ends inside reasoning that the answer continues."""

    text: str
    reasoning: bool


class Chat:
    """The conversation side of one model.

    Parameters: `template` as found in the model file, or None when it has none; `format` the family's reasoning
    markers.

    Errors: LoadError when the template never shows what a user says.
    """

    def __init__(self, template: ChatTemplate | None, format: ChatFormat | None = None) -> None:
        self.template = template
        self.markers = format.reasoning if format is not None else None
        self._text, self._parts = (True, False) if template is None else _probe(template)

    def prompt(self, messages: Sequence[Message], options: Mapping[str, Any] | None = None) -> Prompt:
        """Render `messages` and the opening of the assistant's turn.

        `options` are variables of the template (``enable_thinking`` …).

        Errors: RequestError when the model has no template, the template refuses the messages, or it does not know an
        option.
        """
        if self.template is None:
            raise RequestError(
                "the model file has no chat template, so messages cannot be turned into a prompt",
                hint="give one with --chat-template-file, or use a file converted from an instruction-tuned checkpoint",
                param="messages",
                code="no_chat_template",
            )
        options = dict(options or {})
        self._check(options, self.template.variables)
        text = self.template.render([self._form(message) for message in messages], **options)
        inside = self.markers is not None and text.rstrip().endswith(self.markers[0].rstrip())
        return Prompt(text=text, reasoning=inside)

    def splitter(self, prompt: Prompt) -> ReasoningSplitter:
        """A splitter for the answer to `prompt`."""
        return ReasoningSplitter(self.markers, inside=prompt.reasoning)

    def close(self) -> None:
        """Release the template's process."""
        if self.template is not None:
            self.template.close()

    def _form(self, message: Message) -> dict[str, Any]:
        """The message as the template takes it."""
        content: Any = message.content
        if message.images:
            texts = (content,) if isinstance(content, str) else content
            content = [{"type": "image"}] * message.images + [{"type": "text", "text": text} for text in texts]
        elif isinstance(content, str):
            if not self._text:
                content = [{"type": "text", "text": content}]
        elif self._parts:
            content = [{"type": "text", "text": text} for text in content]
        else:
            content = "\n".join(content)  # as llama.cpp and vLLM join them
        form: dict[str, Any] = {"role": message.role, "content": content}
        if message.reasoning is not None:
            form["reasoning_content"] = message.reasoning
        return form

    def _check(self, options: Mapping[str, Any], known: frozenset[str]) -> None:
        for name, value in options.items():
            param = f"chat_template_kwargs.{name}"
            if name not in known:
                raise RequestError(
                    f"a request cannot set {name!r} for the model's chat template; it can set: "
                    f"{listing(known) or 'nothing'}",
                    param=param,
                )
            if name in _BOOLEAN and not isinstance(value, bool):
                raise RequestError(f"{name} is {value!r:.60}, expected true or false", param=param)


def _probe(template: ChatTemplate) -> tuple[bool, bool]:
    """Whether the template takes content as text, and whether it takes a list of parts."""
    text = _shows(template, _PROBE)
    parts = _shows(template, [{"type": "text", "text": _PROBE}])
    if not text and not parts:
        if text is False:
            raise LoadError(
                "the chat template renders a user's message without its text",
                hint="give another one with --chat-template-file",
            )
        # it wants more than one user's message (a system message, say): take the form that every template knows
        return True, False
    return bool(text), bool(parts)


def _shows(template: ChatTemplate, content: Any) -> bool | None:
    """Whether a message's text comes out as it went in; None when the template raises."""
    try:
        text = template.render([{"role": "user", "content": content}])
    except RequestError as error:
        log.debug("the chat template refuses a probe: %s", error.message)
        return None
    return _PROBE in text and "'text'" not in text
