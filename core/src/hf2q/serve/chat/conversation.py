"""`Chat`: how one model is talked to. A dialogue in, a prompt and a reader of the answer out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hf2q.errors import RequestError, listing
from hf2q.serve.chat.calls import CallRules
from hf2q.serve.chat.constraints import Constraints, Form
from hf2q.serve.chat.effort import with_effort
from hf2q.serve.chat.messages import Message
from hf2q.serve.chat.query import ChatQuery
from hf2q.serve.chat.question import Question
from hf2q.serve.chat.reasoning import ReasoningSplitter
from hf2q.serve.chat.syntax import ToolSchema, ToolSyntax
from hf2q.serve.chat.template import ChatTemplate
from hf2q.serve.chat.template_probe import TemplateProbe
from hf2q.serve.chat.tool_blame import blamed
from hf2q.serve.chat.tooling import callable_now, check_tools, shown
from hf2q.serve.chat.turns import tool_form, turns
from hf2q.types import ChatFormat, Record, resolve

if TYPE_CHECKING:
    from hf2q.formats.tokenizer import Tokenizer

_BOOLEAN = frozenset({"enable_thinking", "thinking", "preserve_thinking"})


class Prompt(Record, frozen=True, kw_only=True):
    """A rendered conversation, and whether it ends inside reasoning that the answer continues."""

    text: str
    reasoning: bool


class Chat:
    """The conversation side of one model.

    Parameters: `template` as found in the model file, or None when it has none; `format` the family's reasoning
    markers and its syntax of calls; `tokenizer`, `end_ids` and `n_vocab` of the model, without which answers cannot be
    held to a form.

    Errors: LoadError when the template never shows what a user says.
    """

    def __init__(
        self,
        template: ChatTemplate | None,
        format: ChatFormat | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        end_ids: Collection[int] = (),
        n_vocab: int = 0,
    ) -> None:
        self.template = template
        self.markers = format.reasoning if format is not None else None
        self.syntax: ToolSyntax | None = resolve(format.tools)() if format is not None and format.tools else None
        self._tokenizer = tokenizer
        self._constraints: Constraints | None = None
        if tokenizer is not None:
            visible = (*(self.markers or ()), *(self.syntax.marks if self.syntax is not None else ()))
            self._constraints = Constraints(tokenizer, end_ids=end_ids, n_vocab=n_vocab, visible=visible)
        self._takes = None if template is None else TemplateProbe(template)

    def prompt(self, messages: Sequence[Message], options: Mapping[str, Any] | None = None) -> Prompt:
        """Render `messages` and the opening of the assistant's turn.

        `options` are variables of the template (``enable_thinking`` …).

        Errors: RequestError when the model has no template, the template refuses the messages, or it does not know an
        option.
        """
        return self._prompt(ChatQuery(messages=tuple(messages), options=options or {}))

    def prepare(self, query: ChatQuery) -> Question:
        """A question ready for the engine. Errors: RequestError naming what the model or its template cannot do."""
        prompt = self._prompt(query)
        tools = callable_now(query, shown(query))
        form = self._form(query, prompt.reasoning, tools)
        rules = None
        marks: tuple[str, ...] = self.markers or ()
        if tools and self.syntax is not None:
            marks += self.syntax.marks
            rules = CallRules(
                tools=tools,
                marks=tuple(sorted({*marks, *self.syntax.foreign}, key=len, reverse=True)),
                required=query.choice.mode == "required",
                parallel=query.parallel,
                certain=form is not None,
            )
        return Question(
            prompt.text,
            skip_special=not self._are_control(marks),
            markers=self.markers,
            inside=prompt.reasoning,
            syntax=self.syntax,
            rules=rules,
            form=form,
        )

    def splitter(self, prompt: Prompt) -> ReasoningSplitter:
        """A splitter for the answer to `prompt`."""
        return ReasoningSplitter(self.markers, inside=prompt.reasoning)

    def warm_up(self) -> None:
        """Prepare for answers that are held to a form: the first such question would wait for it. Errors: LoadError."""
        if self._constraints is not None:
            self._constraints.warm()

    def close(self) -> None:
        """Release the template's process."""
        if self.template is not None:
            self.template.close()

    def _prompt(self, query: ChatQuery) -> Prompt:
        if self.template is None or self._takes is None:
            raise RequestError(
                "the model file has no chat template, so messages cannot be turned into a prompt",
                hint="give one with --chat-template-file, or use a file converted from an instruction-tuned checkpoint",
                param="messages",
                code="no_chat_template",
            )
        variables = self.template.variables
        self._check(query.options, variables)
        options = with_effort(query.effort, query.options, self._takes, reasons=self.markers is not None)
        tools = shown(query)
        check_tools(tools, self.syntax, self._takes)
        text = self._rendered(turns(query.messages, self._takes), [tool_form(tool) for tool in tools], options)
        inside = self.markers is not None and text.rstrip().endswith(self.markers[0].rstrip())
        return Prompt(text=text, reasoning=inside)

    def _rendered(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> str:
        assert self.template is not None
        try:
            return self.template.render(messages, **options, tools=tools or None)
        except RequestError as error:
            found = blamed(partial(self.template.refusal, messages, **options), tools) if tools else None
            raise found or error from None

    def _form(self, query: ChatQuery, inside: bool, tools: Sequence[ToolSchema]) -> Form | None:
        """What holds answers to the form that the query asks for. Errors: RequestError for what cannot be enforced."""
        if self._constraints is not None:
            return self._constraints.form(query, markers=self.markers, inside=inside, syntax=self.syntax, tools=tools)
        for name, wanted in (
            ("response_format", query.format is not None),
            ("tool_choice", query.choice.mode == "required"),
            ("thinking_token_budget", query.thinking_budget is not None),
        ):
            if wanted:
                raise RequestError(
                    f"{name} cannot be honoured by a chat that was made without the model's tokenizer", param=name
                )
        return None

    def _are_control(self, marks: Sequence[str]) -> bool:
        """Whether one of the marks is a control token, which has to be seen to be understood."""
        if self._tokenizer is None:
            return bool(marks)
        special = self._tokenizer.special_ids
        return any(token in special for mark in marks for token in self._tokenizer.encode(mark, add_bos=False))

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
