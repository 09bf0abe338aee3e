"""What ``--quant auto-bpw=4.5`` and ``--quant auto-size=12GiB`` ask for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from math import floor
from types import MappingProxyType
from typing import Literal

from hf2q.errors import UsageError
from hf2q.types import Record

BPW, SIZE = "auto-bpw", "auto-size"
UNITS: Mapping[str, int] = MappingProxyType(
    {
        "": 1,
        "b": 1,
        "k": 1000,
        "m": 1000**2,
        "g": 1000**3,
        "kb": 1000,
        "mb": 1000**2,
        "gb": 1000**3,
        "kib": 1 << 10,
        "mib": 1 << 20,
        "gib": 1 << 30,
    }
)
"""Powers of 1000 as elsewhere on the command line; with an ``i`` of 1024."""


class Budget(Record, frozen=True, kw_only=True):
    """A limit: `bits` for each weight of the tensors together, or `nbytes` of the file. The other one is 0.

    text  as it was asked for
    """

    kind: Literal["bpw", "size"]
    text: str
    bits: Fraction = Fraction(0)
    nbytes: int = 0

    def for_tensors(self, parameters: int, overhead: int) -> int:
        """Bytes that `parameters` weights may take; `overhead` is what else is in the file."""
        return floor(self.bits * parameters / 8) if self.kind == "bpw" else self.nbytes - overhead


def is_budget(name: str) -> bool:
    """Whether ``--quant NAME`` asks for a search."""
    return name.lower().partition("=")[0] in (BPW, SIZE)


def parse_budget(name: str) -> Budget:
    """Errors: UsageError for what is no number, no size, or not above 0."""
    kind, _, text = name.lower().partition("=")
    if kind == BPW:
        found = re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,6})?", text)
        if not found or not Fraction(text):
            raise UsageError(
                f"--quant {name}: {text!r} is no number of bits for each weight", hint="for example auto-bpw=4.5"
            )
        return Budget(kind="bpw", text=f"{kind}={text}", bits=Fraction(text))
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([a-z]*)", text)
    if kind != SIZE or not found or not Fraction(found[1]):
        raise UsageError(f"--quant {name}: {text!r} is no size", hint="for example auto-size=12GiB or auto-size=900M")
    if found[2] not in UNITS:
        raise UsageError(
            f"--quant {name}: {found[2]!r} is no unit, expected one of K, M, G, KB, MB, GB, KiB, MiB, GiB",
            hint="for example auto-size=12GiB",
        )
    return Budget(kind="size", text=f"{kind}={text}", nbytes=floor(Fraction(found[1]) * UNITS[found[2]]))
