"""JSON that says one thing only: what Python's parser would quietly accept is refused.

Shared by the readers of `hf2q.formats`.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from hf2q.errors import FormatError


def parse(raw: bytes, where: str) -> Any:
    """The value that `raw` spells.

    Errors: FormatError, beginning with `where`, for text that is not UTF-8 or not JSON, for a name that occurs twice in
    one object, for NaN and infinities, and for halves of surrogate pairs in names or values of objects.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, value in items:
            if name in made:
                raise FormatError(f"{where}: the name {name[:200]!r} occurs twice in one JSON object")
            for text in (name, value) if isinstance(value, str) else (name,):
                _refuse_surrogates(text, where)
            made[name] = value
        return made

    def constant(name: str) -> NoReturn:
        raise FormatError(f"{where}: {name} is not JSON")

    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=pairs, parse_constant=constant)
    except UnicodeDecodeError as error:
        raise FormatError(f"{where}: byte {error.start} of the JSON text is not UTF-8: {error.reason}") from None
    except RecursionError:
        raise FormatError(f"{where}: the JSON text is nested too deeply") from None
    except ValueError as error:  # JSONDecodeError, and integers of thousands of digits
        raise FormatError(f"{where}: not valid JSON: {error}") from None


def _refuse_surrogates(text: str, where: str) -> None:
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise FormatError(f"{where}: {text[:200]!r} is not valid text: {error.reason}") from None
