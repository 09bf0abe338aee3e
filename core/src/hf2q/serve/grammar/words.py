"""What single words of a schema may say; each checked, and given back as llguidance is to read it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from hf2q.serve.grammar import keywords
from hf2q.serve.grammar.problems import SchemaError, pointer

MAX_COUNT = 100_000
"""Most characters, items or properties that a schema may speak of."""
_DIGITS = 15
"""Of a bound of numbers, in all and behind the point."""
_PLACES = 9
"""Behind the point, of numbers beside a bound that excludes itself. llguidance takes no smaller ``multipleOf``."""
_WHOLE = 2**53
"""Below it float64 holds all whole numbers."""


def error(message: str, path: tuple[str | int, ...]) -> SchemaError:
    """A `SchemaError` at a place."""
    return SchemaError(message, pointer(path))


def types(value: Any, here: tuple[str | int, ...]) -> Any:
    """``type``: one, or a list of them."""
    kinds = [value] if isinstance(value, str) else value
    if not isinstance(kinds, list | tuple) or not kinds or not all(kind in keywords.TYPES for kind in kinds):
        raise error(f"type is {value!r:.60}, expected {', '.join(sorted(keywords.TYPES))}, or a list of them", here)
    if isinstance(value, str):
        return value
    return [kind for kind in dict.fromkeys(kinds) if not (kind == "integer" and "number" in kinds)]


def count(word: str, value: Any, here: tuple[str | int, ...]) -> int:
    """A number of characters, items or properties."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise error(f"{word} is {value!r:.60}, expected a whole number of at least 0", here)
    if value > MAX_COUNT:
        raise error(f"{word} is {value}, at most {MAX_COUNT} is supported", here)
    return value


def bound(word: str, value: Any, words: Mapping[str, Any], made: dict[str, Any], here: tuple[str | int, ...]) -> None:
    """A bound of numbers; in draft 4 ``exclusiveMinimum`` was a truth value that spoke of ``minimum``."""
    plain = word.removeprefix("exclusive").lower()
    if isinstance(value, bool) and word != plain:
        if not value or plain not in words:
            return
        value = words[plain]
    exact(value, here)
    _digits(value, words.get("type"), here)
    if word != plain:
        _excluded(word, value, words, made, here)
        return
    if plain in made:
        value = max(value, made[plain]) if plain == "minimum" else min(value, made[plain])
    made[plain] = value


def _excluded(
    word: str, value: float, words: Mapping[str, Any], made: dict[str, Any], here: tuple[str | int, ...]
) -> None:
    """A bound that no number reaches, not even by rounding: 0.99999999999999999 is read as 1."""
    if abs(value) >= _WHOLE:
        raise error(f"the bound {value!r} is not supported: one that excludes itself is below 2^53", here)
    if words.get("type") == "integer":
        made[word] = value
    elif not value:
        plain, nearest = ("minimum", max) if word == "exclusiveMinimum" else ("maximum", min)
        least = 10.0**-_DIGITS if plain == "minimum" else -(10.0**-_DIGITS)
        made[plain] = nearest(least, made.get(plain, least))
    elif "multipleOf" in words:
        made[word] = value
        if isinstance(words["multipleOf"], int | float) and abs(value) > words["multipleOf"] * _WHOLE:
            raise error(f"the bound {value!r} is too large for so small a multipleOf", here)
    else:
        made[word] = value
        place = Decimal(repr(value)).adjusted() - _DIGITS + 1
        step = 10.0 ** min(0, max(-_PLACES, place))
        made["multipleOf"] = max(step, made.get("multipleOf", step))


def _digits(value: float, kind: Any, here: tuple[str | int, ...]) -> None:
    """llguidance rounds bounds. Errors: SchemaError for one that it would change."""
    if (kind == "integer" or abs(value) < _WHOLE) and value == int(value):
        return
    _, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    if len(digits) > _DIGITS or -int(exponent) > _DIGITS:
        raise error(f"the bound {value!r} is not supported: it has more than {_DIGITS} digits", here)


def divisor(value: Any, here: tuple[str | int, ...]) -> Any:
    """``multipleOf``."""
    exact(value, here)
    if not 1e-9 <= value <= 1e9:
        raise error(f"multipleOf is {value!r:.60}, expected a number from 1e-9 to 1e9", here)
    if Decimal(repr(value)) != Decimal(value):
        raise error(
            f"multipleOf is {value!r}, which is no exact float64, so readers differ in which numbers are multiples; "
            "whole numbers are supported, and 0.5, 0.25 and their like; for money ask for an integer of cents, or "
            "for a text with the pattern ^[0-9]+[.][0-9]{2}$",
            here,
        )
    return value


def exact(value: Any, here: tuple[str | int, ...]) -> None:
    """Numbers are read as float64 by llguidance. Errors: SchemaError for one that is none, or not held exactly."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise error(f"{value!r:.60} is no number", here)
    if abs(value) > 1e18 or (isinstance(value, int) and float(value) != value):
        raise error(f"the number {value!r:.60} is not supported: it is too large to be held exactly", here)
    if isinstance(value, float) and value and abs(value) < 1e-12:
        raise error(f"the number {value!r:.60} is not supported: it is too small", here)


def distinct(parts: list[Any]) -> bool:
    """Whether all parts are constants, no two the same: then at most one of them can hold."""
    seen: set[tuple[str, Any]] = set()
    for part in parts:
        if not isinstance(part, Mapping) or not ("const" in part or "enum" in part):
            return False
        for value in part.get("enum", [part.get("const")]):
            if not isinstance(value, str | int | float | bool | None):
                return False
            number = isinstance(value, int | float) and not isinstance(value, bool)
            key = ("number" if number else str(type(value)), value)
            if key in seen:
                return False
            seen.add(key)
    return True
