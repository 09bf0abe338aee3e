"""Numbers for people."""

from __future__ import annotations

import math


def size(nbytes: float) -> str:
    """Bytes in powers of 1000: ``13.7 MB``."""
    value = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.95:
            return f"{nbytes:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def percent(value: float | None, digits: int = 3) -> str:
    """A share as per cent; a dash for None."""
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def cosine(value: float | None) -> str:
    """A cosine, to as many digits as tell near ones apart; a dash for None."""
    return "–" if value is None else f"{value:.6f}"


def nats(value: float) -> str:
    """A divergence, to three digits: ``0.00342``."""
    if value == 0:
        return "0"
    place = math.floor(math.log10(abs(value)))
    return f"{value:.2e}" if place < -6 else f"{value:.{max(0, 2 - place)}f}"


def bits(value: float | None) -> str:
    """Bits per weight; a dash for None."""
    return "–" if value is None else f"{value:.2f}"
