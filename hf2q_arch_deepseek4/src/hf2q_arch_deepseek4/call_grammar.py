"""The grammar of DeepSeek-V4's calls in DSML; see `hf2q_arch_deepseek4.calls`.

A parameter that may be a text and something else is written either way: ``string="true"`` says which it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf2q.serve.chat.syntax import ToolSchema
from hf2q.serve.grammar.calls import (
    Parameter,
    SchemaError,
    json_value,
    members,
    ordered,
    quoted,
    text_terminal,
    text_until,
    types,
    written,
)

CLOSE = "</｜DSML｜tool_calls>"
VALUE_END = "</｜DSML｜parameter>"
_END = quoted(VALUE_END + "\n")


def grammar(tools: Sequence[ToolSchema], *, parallel: bool) -> str:
    """See `hf2q.serve.chat.syntax.ToolSyntax.grammar`. All calls stand in one block."""
    more = "+" if parallel else ""
    rules = [f"call_rest: {quoted(chr(10))} call_one{more} {quoted(CLOSE)}"]
    rules.append("call_one: " + " | ".join(f"call_{place}" for place in range(len(tools))))
    for place, tool in enumerate(tools):
        rules.append(_tool(f"call_{place}", tool))
    return "\n".join(rules)


def _tool(name: str, tool: ToolSchema) -> str:
    named, others = members(tool.parameters, tool.parameters)
    opening = quoted(f'<｜DSML｜invoke name="{tool.name}">\n')
    rules = [f"{name}: {opening} {name}_all {quoted('</｜DSML｜invoke>' + chr(10))}"]
    parts: list[tuple[str, bool]] = []
    for place, parameter in enumerate(named):
        rules.append(_parameter(f"{name}_p{place}", parameter, tool.parameters))
        parts.append((f"{name}_p{place}", parameter.required))
    free = None
    if others is not None:
        free = f"{name}_other"
        value, middle = json_value(others, tool.parameters), quoted('" string="false">')
        opening = quoted('<｜DSML｜parameter name="')
        rules.append(f"{free}: {opening} {free.upper()} {middle} {free}_v {_END}\n{free}_v: {value}")
        barred = " & ~(" + " | ".join(quoted(parameter.name) for parameter in named) + ")" if named else ""
        rules.append(f"{free.upper()}: /[A-Za-z0-9_.\\-]{{1,64}}/{barred}")
    rules.append(ordered(f"{name}_all", parts, others=free))
    return "\n".join(rules)


def _parameter(name: str, parameter: Parameter, root: Mapping[str, Any]) -> str:
    if not parameter.name or set(parameter.name) & set('<>"\n'):
        raise SchemaError(
            f"a parameter called {parameter.name!r:.60} cannot be written in this model's syntax of calls",
            f"/properties/{parameter.name}",
        )
    kind, kinds = written(parameter.schema, root), types(parameter.schema, root)
    ways, rules = [], []
    opening = f'<｜DSML｜parameter name="{parameter.name}" string="'
    if kind == "json":
        ways.append(f"{quoted(opening + 'false' + chr(34) + '>')} {name}_v {_END}")
        rules.append(f"{name}_v: {json_value(parameter.schema, root)}")
    if kind == "text or null":
        ways.append(quoted(f'{opening}false">null{VALUE_END}\n'))
    if kinds is None or "string" in kinds:
        try:
            within = text_terminal(parameter.schema, root)
        except SchemaError as error:
            if kind != "json":
                raise SchemaError(error.message, f"/properties/{parameter.name}{error.path}") from None
        else:
            ways.append(f"{quoted(opening + 'true' + chr(34) + '>')} {name}_t {quoted(chr(10))}")
            rules.append(text_until(f"{name}_t", VALUE_END, within=within))
    return "\n".join([f"{name}: " + " | ".join(ways), *rules])
