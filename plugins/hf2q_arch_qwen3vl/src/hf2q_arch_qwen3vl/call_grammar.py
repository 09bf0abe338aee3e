"""The grammar of Qwen3-VL's calls, JSON between markers; see `hf2q_arch_qwen3vl.calls`."""

from __future__ import annotations

from collections.abc import Sequence

from hf2q.serve.chat.syntax import ToolSchema
from hf2q.serve.grammar.calls import closed, json_value, quoted, repeated

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def grammar(tools: Sequence[ToolSchema], *, parallel: bool) -> str:
    """See `hf2q.serve.chat.syntax.ToolSyntax.grammar`."""
    rules = [repeated("call_one", before="\n", close="\n" + CLOSE, again=("\n" + OPEN, OPEN), parallel=parallel)]
    rules.append("call_one: " + " | ".join(f"call_{place}" for place in range(len(tools))))
    for place, tool in enumerate(tools):
        opening = quoted(f'{{"name": "{tool.name}", "arguments": ')
        rules.append(f'call_{place}: {opening} call_{place}_v "}}"')
        rules.append(f"call_{place}_v: {json_value(closed(tool.parameters), tool.parameters)}")
    return "\n".join(rules)
