"""Names of fields in errors: what is nested in a chat request is flat in one for a response."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hf2q.errors import RequestError

_NAMES = (
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("].function.", "]."),
    ("tool_choice.function", "tool_choice"),
    ("messages", "input"),
    ("max_completion_tokens", "max_output_tokens"),
    ("reasoning_effort", "reasoning.effort"),
)
"""There, and here."""


@contextmanager
def own_names() -> Iterator[None]:
    """Within it, errors about a field of a chat request become ones about the field of the same meaning here."""
    try:
        yield
    except RequestError as error:
        param = _renamed(error.param or "")
        if type(error) is not RequestError or not error.param or param == error.param:
            raise
        raise RequestError(_renamed(error.message), hint=error.hint, param=param, code=error.code) from error


def _renamed(text: str) -> str:
    for there, here in _NAMES:
        text = text.replace(there, here)
    return text
