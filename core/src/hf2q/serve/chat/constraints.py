"""What holds answers to the form that a query asks for: JSON, calls of tools, a grammar, a bound of reasoning.

One `Constraints` belongs to one model: it has the model's tokens in the form that masks are worked out over, and the
compiled grammars. `form` does all that can fail, before an answer begins; a `Form` then gives each choice a constraint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from hf2q.errors import RequestError
from hf2q.serve.chat.budget import ThinkingBudget
from hf2q.serve.chat.query import ChatQuery
from hf2q.serve.chat.syntax import ToolSchema, ToolSyntax
from hf2q.serve.grammar.answers import Answer, answer_grammar
from hf2q.serve.grammar.compiled import Grammars
from hf2q.serve.grammar.lark import json_rule
from hf2q.serve.grammar.locate import locate
from hf2q.serve.grammar.problems import SchemaError
from hf2q.serve.grammar.schema import Checked, check_schema
from hf2q.serve.grammar.vocabulary import token_table

if TYPE_CHECKING:
    from hf2q.formats.tokenizer import Tokenizer
    from hf2q.serve.constraint import Constraint

SCHEMA = "response_format.json_schema.schema"
MAX_GRAMMAR = 32 << 10
"""Most characters of a grammar that a request brings: compiling one may take time that grows with the square."""


class Form:
    """The form of the answers to one query. Thread-safe."""

    def __init__(self, make: Callable[[], Constraint]) -> None:
        self._make = make

    def constraint(self) -> Constraint:
        """A fresh one, at the beginning of an answer."""
        return self._make()


class Constraints:
    """The forms of answers of one model. Thread-safe.

    Parameters: `n_vocab` is the number of the model's logits, `end_ids` what ends its generations. `visible` are texts
    of control tokens that answers may hold: the markers of reasoning and of calls.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, end_ids: Collection[int], n_vocab: int, visible: Collection[str] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._n_vocab = n_vocab
        self._grammars = Grammars(lambda: token_table(tokenizer, n_vocab=n_vocab, end_ids=end_ids, visible=visible))

    def warm(self) -> None:
        """Prepare the tokens now (0.6 s for 250,000 of them), not at the first request that needs them.

        Errors: LoadError.
        """
        _ = self._grammars.table

    def form(
        self,
        query: ChatQuery,
        *,
        markers: tuple[str, str] | None,
        inside: bool,
        syntax: ToolSyntax | None,
        tools: Sequence[ToolSchema],
        newline: bool = True,
    ) -> Form | None:
        """What answers to `query` are held to; None when they are free.

        markers, inside  around reasoning, and whether the prompt has opened it
        syntax, tools    how calls are written, and the tools that may be called
        newline          whether the closing marker, where it is forced, stands in a line of its own

        Errors: RequestError naming the field, and the place in a schema, for what cannot be enforced; LoadError.
        """
        budget = 0 if query.effort == "none" else query.thinking_budget
        think = markers if inside or budget != 0 else None
        answer = self._answer(query, syntax, tools)
        lark = None
        if answer is not None:
            lark = answer_grammar(answer, think=think, barred=markers, inside=inside)
            self._check(lark, answer, query)
        if lark is None and (markers is None or budget is None):
            return None

        def make() -> Constraint:
            inner = None if lark is None else self._grammars.start(lark)
            if markers is None or budget is None or (think is None and inner is not None):
                assert inner is not None
                return inner
            return ThinkingBudget(
                inner,
                budget=budget,
                markers=markers,
                inside=inside,
                tokenizer=self._tokenizer,
                n_vocab=self._n_vocab,
                newline=newline,
            )

        return Form(make)

    def _answer(self, query: ChatQuery, syntax: ToolSyntax | None, tools: Sequence[ToolSchema]) -> Answer | None:
        """What may stand behind the reasoning; None for anything. Calls come before a format."""
        mode = query.choice.mode
        calls = opening = None
        if tools and mode != "none":
            if syntax is None:
                raise RequestError(
                    "tools cannot be used with this model: how its family writes calls is not known", param="tools"
                )
            calls, opening = self._calls(query, syntax, tools), syntax.markers[0]
        form = query.format
        if calls is not None and (mode == "required" or form is None):
            return Answer(calls=calls, opening=opening, required=mode == "required")
        if form is None:
            return None
        if form.kind == "grammar":
            if form.grammar is None or not form.grammar.strip():
                raise RequestError("the grammar is empty, expected one in Lark syntax", param="grammar")
            if len(form.grammar) > MAX_GRAMMAR:
                raise RequestError(
                    f"the grammar has {len(form.grammar)} characters, at most {MAX_GRAMMAR} are supported",
                    param="grammar",
                )
            if calls is not None:
                raise RequestError("a grammar and tools that may be called exclude each other", param="grammar")
            return Answer(lark=form.grammar)
        schema = {"type": "object"} if form.kind == "json_object" else {} if form.schema is None else form.schema
        try:
            rule = json_rule(check_schema(schema).document())
        except SchemaError as error:
            raise _refused("the schema", error, SCHEMA) from None
        return Answer(json=rule, calls=calls, opening=opening)

    def _calls(self, query: ChatQuery, syntax: ToolSyntax, tools: Sequence[ToolSchema]) -> str:
        """The rules of calls. Each tool is checked by itself, so that the one at fault is named."""
        written: list[ToolSchema] = []
        for tool in tools:
            try:
                written.append(ToolSchema(tool.name, _arguments(tool).document()))
                syntax.grammar(written[-1:], parallel=False)
            except SchemaError as error:
                raise _refused(f"the parameters of {tool.name!r}", error, _place(query, tool.name)) from None
        return syntax.grammar(written, parallel=query.parallel)

    def _check(self, lark: str, answer: Answer, query: ChatQuery) -> None:
        """Compile; where that fails, find out what it was. Errors: RequestError."""
        try:
            if answer.lark is not None and lark != answer.lark:  # by itself too: reasoning could come before nothing
                self._grammars.check(answer.lark)
            self._grammars.check(lark)
        except SchemaError as error:
            if answer.lark is not None:
                raise RequestError(f"the grammar cannot be used: {error.message}", param="grammar") from None
            self._blame(answer, query, error)

    def _blame(self, answer: Answer, query: ChatQuery, error: SchemaError) -> None:
        if answer.json is not None and query.format is not None:
            try:
                self._grammars.check("start: " + answer.json, keep=False)
            except SchemaError as inner:
                schema = {"type": "object"} if query.format.kind == "json_object" else query.format.schema
                raise _refused("the schema", locate(schema, inner, self._grammars), SCHEMA) from None
        for tool in query.tools:
            try:
                document = _arguments(ToolSchema(tool.name, tool.parameters)).document()
                self._grammars.check("start: " + json_rule(document), keep=False)
            except SchemaError as inner:
                found = locate(tool.parameters, inner, self._grammars)
                raise _refused(f"the parameters of {tool.name!r}", found, _place(query, tool.name)) from None
        raise RequestError(
            f"the form of the answer cannot be enforced: {error.message}",
            hint="fewer or simpler tools may work" if answer.calls else None,
            param="tools" if answer.calls else "response_format",
        )


def _arguments(tool: ToolSchema) -> Checked:
    """The schema of a tool's arguments, checked. One that says nothing takes any object. Errors: SchemaError."""
    checked = check_schema({"type": "object", **tool.parameters}, tool.parameters)
    kinds = checked.schema["type"]
    if "object" not in ([kinds] if isinstance(kinds, str) else kinds):
        raise SchemaError(f"the type is {kinds!r:.60}, expected object", "/type")
    return Checked({**checked.schema, "type": "object"}, checked.defs)


def _place(query: ChatQuery, name: str) -> str:
    index = next((index for index, tool in enumerate(query.tools) if tool.name == name), 0)
    return f"tools[{index}].function.parameters"


def _refused(what: str, error: SchemaError, param: str) -> RequestError:
    return RequestError(
        f"{what} cannot be enforced: {error.message} (at {error.path or 'the top'} of {param})",
        hint="what is enforced is listed in docs/explanation/constraints.md",
        param=param,
        code="unsupported_schema",
    )
