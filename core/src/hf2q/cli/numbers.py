"""Numbers on the command line, taken as they are written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts import Token


def whole_number(kind: object, tokens: Sequence[Token]) -> int:
    """A converter for parameters that are integers: the parser's own rounds ``1.5`` and reads ``0x10``.

    Errors: ValueError, which the parser turns into its message.
    """
    text = tokens[0].value
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise ValueError(f"{text!r} is no whole number")
    return int(text)


UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3}


def byte_size(kind: object, tokens: Sequence[Token]) -> int:
    """A converter for parameters that are sizes: ``4G`` or ``500M``, in powers of 1000 as disks are sold.

    Errors: ValueError, which the parser turns into its message.
    """
    text = tokens[0].value
    found = re.fullmatch(r"([0-9]{1,12})([KMG]?)", text.upper())
    if not found or int(found[1]) == 0:
        raise ValueError(f"{text!r} is no size, expected for example 4G, 500M or a number of bytes")
    return int(found[1]) * UNITS[found[2]]


def byte_size_or_none(kind: object, tokens: Sequence[Token]) -> int:
    """As `byte_size`; ``off`` and ``0`` are 0."""
    return 0 if tokens[0].value in ("off", "0") else byte_size(kind, tokens)
