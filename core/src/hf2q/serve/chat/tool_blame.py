"""Which tool a chat template refuses: a template that raises does not say what it was about."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hf2q.errors import RequestError
from hf2q.serve.grammar.problems import pointer

SECONDS = 1.0
"""How long to look; a render that has begun is waited for."""


class Refusal(Protocol):
    """Why the template refuses the dialogue with these tools; None where it does not."""

    def __call__(self, *, tools: Sequence[Mapping[str, Any]] | None) -> str | None: ...


def blamed(refusal: Refusal, tools: Sequence[Mapping[str, Any]]) -> RequestError | None:
    """What to say of a dialogue that the template refuses with `tools`: the first tool that it refuses by itself, and
    the parameter. None where it refuses the dialogue without tools too.
    """
    end = time.monotonic() + SECONDS
    if refusal(tools=None) is not None:
        return None
    why = None
    for index, tool in enumerate(tools):
        if time.monotonic() > end:
            break
        why = refusal(tools=[tool])
        if why is not None:
            return _of_one(refusal, tool, f"tools[{index}]", why, end)
    return _refused("these tools", why or refusal(tools=tools) or "it did so once", "tools")


def _of_one(refusal: Refusal, tool: Mapping[str, Any], param: str, why: str, end: float) -> RequestError:
    function = tool["function"]
    if refusal(tools=[_with(tool, {})]) is not None:
        return _refused(f"the tool {function['name']!r}", why, param)
    param += ".function.parameters"
    what = f"the parameters of {function['name']!r}"
    properties = function["parameters"].get("properties")
    for name, schema in (properties if isinstance(properties, Mapping) else {}).items():
        if time.monotonic() < end and refusal(tools=[_with(tool, {name: schema})]) is not None:
            return _refused(what, f"{why} (at {pointer(('properties', name))} of {param})", param)
    return _refused(what, why, param)


def _with(tool: Mapping[str, Any], properties: Mapping[str, Any]) -> dict[str, Any]:
    return {**tool, "function": {**tool["function"], "parameters": {"type": "object", "properties": properties}}}


def _refused(what: str, why: str, param: str) -> RequestError:
    return RequestError(
        f"the model's chat template refuses {what}: {why}",
        hint="templates read schemas as objects of the common words; {} says what true says",
        param=param,
        code="chat_template_error",
    )
