"""What a chat template takes, found out by rendering dialogues: templates say so nowhere.

Nothing may be dropped from a prompt, nor printed as a Python dictionary, only because a template wants it in another
form; and what it cannot show at all is refused.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from hf2q.errors import LoadError, RequestError
from hf2q.serve.chat.template import ChatTemplate

log = logging.getLogger(__name__)

SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates switch reasoning on."""
LEVELS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Efforts that a request may ask for, rising."""
_PROBE = "hf2q-probe-8d1f"
_KEY, _VALUE, _NAME = "hf2q_key_8d1f", "hf2q_value_8d1f", "hf2q_name_8d1f"
_ID = "call00000"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A function.",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string", "description": "A text."}}},
    },
}


class TemplateProbe:
    """What one template takes. Everything but `text` and `parts` is found out when it is first asked for.

    text, parts  whether it takes content as text, and whether as a list of parts

    Errors: LoadError when it never shows what a user says.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        text, parts = self._content(_PROBE), self._content([{"type": "text", "text": _PROBE}])
        if text is False and not parts:
            raise LoadError(
                "the chat template renders a user's message without its text",
                hint="give another one with --chat-template-file",
            )
        # None: it wants more than one user's message (a system message, say); take the form that every template knows
        self.text = bool(text) or not parts
        self.parts = bool(parts)

    @cached_property
    def tools(self) -> bool:
        """Whether it shows tools to the model."""
        said = self._render([self._user("hello")], tools=[_TOOL])
        return said is not None and _NAME in said

    @cached_property
    def arguments(self) -> Literal["object", "text", "nothing"]:
        """How it takes the arguments of earlier calls: as an object or as its JSON text, or that it does not show
        them.
        """
        arguments = {_KEY: _VALUE}
        asobject, astext = self._call(arguments), self._call(json.dumps(arguments))
        if asobject:
            return "object"
        if astext:
            return "text"
        return "object" if asobject is None and astext is None else "nothing"

    @cached_property
    def system_anywhere(self) -> bool:
        """Whether it shows system messages that are not the first; True as well where it takes no dialogue at all."""
        before = [self._user("a"), {"role": "assistant", "content": self._form("b")}]
        if self._render([*before, self._user("c")]) is None:
            return True
        said = self._render([*before, {"role": "system", "content": self._form(_PROBE)}, self._user("c")])
        return said is not None and _PROBE in said

    @property
    def variables(self) -> frozenset[str]:
        """Names that it reads besides those that it is always given."""
        return self._template.variables

    @cached_property
    def levels(self) -> frozenset[str]:
        """Those of `LEVELS` that mean something to it as ``reasoning_effort``: it writes something else for them than
        for a word that means nothing.
        """
        switches = {name: True for name in SWITCHES if name in self.variables}

        def said(level: str) -> str | None:
            return self._render([self._user("a")], reasoning_effort=level, **switches)

        nothing = said(_PROBE)
        return frozenset(level for level in LEVELS if said(level) not in (nothing, None))

    @cached_property
    def names(self) -> bool:
        """Whether it shows the names of participants."""
        said = self._render([{**self._user("a"), "name": _NAME}])
        return said is not None and _NAME in said

    def _content(self, content: Any) -> bool | None:
        """Whether a message's text comes out as it went in; None when the template raises."""
        said = self._render([{"role": "user", "content": content}])
        return None if said is None else _PROBE in said and "'text'" not in said

    def _call(self, arguments: Any) -> bool | None:
        """Whether arguments of a call come out, and not as Python prints them; None when the template raises."""
        call = {"id": _ID, "type": "function", "function": {"name": _NAME, "arguments": arguments}}
        result = {"role": "tool", "content": self._form("c"), "tool_call_id": _ID, "name": _NAME}
        turns = [self._user("a"), {"role": "assistant", "content": self._form(""), "tool_calls": [call]}, result]
        said = self._render(turns, tools=[_TOOL])
        if said is None:
            return None
        bare = self._render(turns[:1], tools=[_TOOL]) or ""
        return _VALUE in said and said.count(_KEY) > bare.count(_KEY) and f"'{_KEY}'" not in said

    def _user(self, text: str) -> dict[str, Any]:
        return {"role": "user", "content": self._form(text)}

    def _form(self, text: str) -> Any:
        return text if self.text else [{"type": "text", "text": text}]

    def _render(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str | None:
        try:
            return self._template.render(messages, **variables)
        except RequestError as error:
            log.debug("the chat template refuses a probe: %s", error.message)
            return None
