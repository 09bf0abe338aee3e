"""The grammar of Qwen3.5's calls; see `hf2q_arch_qwen35.calls`.

The line breaks around values are the ones the model was trained on. A text ends with the first line that
is ``</parameter>``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf2q.serve.chat.syntax import ToolSchema
from hf2q.serve.grammar.calls import (
    Parameter,
    SchemaError,
    escaped,
    json_value,
    members,
    ordered,
    quoted,
    repeated,
    text_terminal,
    text_until,
    written,
)

OPEN, CLOSE = "<tool_call>", "</tool_call>"
VALUE_END = "</parameter>"


def grammar(tools: Sequence[ToolSchema], *, parallel: bool) -> str:
    """See `hf2q.serve.chat.syntax.ToolSyntax.grammar`."""
    rules = [repeated("call_one", before="\n", close="\n" + CLOSE, again=("\n" + OPEN, OPEN), parallel=parallel)]
    rules.append("call_one: " + " | ".join(f"call_{place}" for place in range(len(tools))))
    for place, tool in enumerate(tools):
        rules.append(_tool(f"call_{place}", tool))
    return "\n".join(rules)


def _tool(name: str, tool: ToolSchema) -> str:
    named, others = members(tool.parameters, tool.parameters)
    rules = [f"{name}: {quoted(f'<function={tool.name}>' + chr(10))} {name}_all {quoted('</function>')}"]
    parts: list[tuple[str, bool]] = []
    for place, parameter in enumerate(named):
        rules.append(_parameter(f"{name}_p{place}", parameter, tool.parameters))
        parts.append((f"{name}_p{place}", parameter.required))
    free = None
    if others is not None:
        free = f"{name}_other"
        value = json_value(others, tool.parameters)
        rules.append(f'{free}: "<parameter=" {free.upper()} {quoted(">" + chr(10))} {free}_v {_END}\n{free}_v: {value}')
        barred = " & ~(" + " | ".join(quoted(parameter.name) for parameter in named) + ")" if named else ""
        rules.append(f"{free.upper()}: /[A-Za-z0-9_.\\-]{{1,64}}/{barred}")
    rules.append(ordered(f"{name}_all", parts, others=free))
    return "\n".join(rules)


_READ_AS_END = f"{escaped(VALUE_END)}[ \\t\\r\\n]*(?:{escaped('<parameter=')}|{escaped('</function>')})"
"""See `hf2q_arch_qwen35.calls.QwenReader`: an end counts without a line of its own too."""
_END = quoted(f"\n{VALUE_END}\n")


def _parameter(name: str, parameter: Parameter, root: Mapping[str, Any]) -> str:
    if not parameter.name or set(parameter.name) & set("<>\n"):
        raise SchemaError(
            f"a parameter called {parameter.name!r:.60} cannot be written in this model's syntax of calls",
            f"/properties/{parameter.name}",
        )
    opening = quoted(f"<parameter={parameter.name}>\n")
    kind = written(parameter.schema, root)
    if kind == "json":
        return f"{name}: {opening} {name}_v {_END}\n{name}_v: {json_value(parameter.schema, root)}"
    try:
        within = text_terminal(parameter.schema, root)
    except SchemaError as error:
        raise SchemaError(error.message, f"/properties/{parameter.name}{error.path}") from None
    null = f" | {quoted('null' + chr(10) + VALUE_END + chr(10))}" if kind == "text or null" else ""
    text = text_until(f"{name}_t", f"\n{VALUE_END}\n", within=within, barred=_READ_AS_END)
    return f"{name}: {opening} ({name}_t{null})\n{text}"
