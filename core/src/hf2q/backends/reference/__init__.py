"""Every op in plain numpy, float32: slow, and short enough to check against its formula by eye.

The second implementation that tests compare other backends with; `auto` never prefers it to another one.
"""

from __future__ import annotations

from hf2q.backends.reference.ops import ReferenceOps

__all__ = ["ReferenceOps", "available", "priority"]


def available() -> str | None:
    """It always is."""
    return None


def priority() -> int:
    """The lowest."""
    return 0
