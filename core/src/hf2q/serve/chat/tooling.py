"""The tools of a question: which of them count, and whether the model can be asked with them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hf2q.errors import RequestError
from hf2q.serve.chat.query import ChatQuery, Tool
from hf2q.serve.chat.syntax import ToolSchema, ToolSyntax
from hf2q.serve.chat.template_probe import TemplateProbe

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def shown(query: ChatQuery) -> tuple[Tool, ...]:
    """The tools that the model is told of: none where it shall call none.

    Errors: RequestError for names that are no names or come twice, and a choice of what is not there.
    """
    seen: set[str] = set()
    for index, tool in enumerate(query.tools):
        param = f"tools[{index}].function.name"
        if not _NAME.fullmatch(tool.name):
            raise RequestError(
                f"{param} is {tool.name!r:.80}, expected 1 to 64 of the characters A-Z a-z 0-9 _ -", param=param
            )
        if tool.name in seen:
            raise RequestError(f"{param} is {tool.name!r}, which an earlier tool is called as well", param=param)
        seen.add(tool.name)
    choice = query.choice
    if choice.mode == "required" and not query.tools:
        raise RequestError("tool_choice requires a call, but there are no tools", param="tool_choice")
    if choice.name is not None and choice.name not in seen:
        raise RequestError(f"tool_choice names {choice.name!r:.80}, which is none of the tools", param="tool_choice")
    return () if choice.mode == "none" else query.tools


def callable_now(query: ChatQuery, tools: Sequence[Tool]) -> tuple[ToolSchema, ...]:
    """Those of `tools` that the answer may call: all, or the one that the choice names."""
    name = query.choice.name
    return tuple(ToolSchema(tool.name, tool.parameters) for tool in tools if name in (None, tool.name))


def check_tools(tools: Sequence[Tool], syntax: ToolSyntax | None, takes: TemplateProbe) -> None:
    """Errors: RequestError for tools that the model cannot be told of, or whose calls could not be read."""
    if not tools:
        return
    if syntax is None:
        raise RequestError(
            "tools cannot be used with this model: how its family writes calls is not known here",
            hint="leave tools out, or use a model of a family whose plugin names a syntax for calls (ChatFormat.tools)",
            param="tools",
            code="unsupported_parameter",
        )
    if not takes.tools:
        raise RequestError(
            "tools cannot be used with this model: its chat template does not show them to it",
            hint="leave tools out, or give a template that shows them with --chat-template-file",
            param="tools",
            code="unsupported_parameter",
        )
