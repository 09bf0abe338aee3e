"""How much to reason, in the terms of a chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf2q.errors import RequestError
from hf2q.serve.chat.template_probe import SWITCHES, TemplateProbe

_LEVEL = "reasoning_effort"
_OFF = ("none", "minimal")
_INSTEAD = {"xhigh": ("max", "high"), "max": ("xhigh", "high")}


def with_effort(
    effort: str | None, options: Mapping[str, Any], takes: TemplateProbe, *, reasons: bool
) -> dict[str, Any]:
    """The `options` of a template with those that say `effort`.

    ``none`` and ``minimal`` switch reasoning off where the template has a switch (``enable_thinking``, ``thinking``);
    every other effort switches it on. A template that knows levels (``reasoning_effort``) gets the effort as it is;
    of ``xhigh`` and ``max`` the other, or else ``high``, where it knows that alone. `reasons` says whether the model
    reasons at all.

    Errors: RequestError when the template knows neither, unless there is no reasoning to switch off; and when `options`
    say something else.
    """
    found = dict(options)
    if effort is None:
        return found
    off = effort in _OFF
    wanted: dict[str, Any] = {name: not off for name in SWITCHES if name in takes.variables}
    if _LEVEL in takes.variables and not (off and wanted):
        wanted[_LEVEL] = next((level for level in (effort, *_INSTEAD.get(effort, ())) if level in takes.levels), effort)
    if not wanted and (reasons or not off):
        raise RequestError(
            f"{_LEVEL} is {effort!r:.40}, but the model's chat template reads none of "
            f"{', '.join((_LEVEL, *SWITCHES))}, so it would change nothing",
            hint=f"leave {_LEVEL} out",
            param=_LEVEL,
            code="unsupported_parameter",
        )
    for name, value in wanted.items():
        if name in found and found[name] != value:
            raise RequestError(
                f"{_LEVEL} is {effort!r:.40}, which is {name} {value!r:.40} for the model's chat template, but "
                f"chat_template_kwargs say {found[name]!r:.40}; give one of them",
                param=_LEVEL,
            )
        found[name] = value
    return found
