"""The vector types: `F32(n)`, `I32(n)`, and the mask that a comparison gives.

`F(x)` with such a type F spreads a scalar over all lanes, or converts the lanes of another vector of the same length:
int to float by the current rounding (to nearest even), float to int toward zero (outside the range of int32 the result
is whatever the machine gives), mask to 0 or 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

Vector: TypeAlias = Any
"""For annotations in kernels: a value of a type below. mypy sees numba's values as Any."""


@dataclass(frozen=True)
class VectorType:
    """`n` lanes of float32 ('f32') or int32 ('i32'). What numba knows about it is in `typed`."""

    kind: str
    n: int

    def __call__(self, x: Any) -> NoReturn:
        raise TypeError(f"{self.kind}x{self.n} is a type of kernels, which Python cannot call")

    @property
    def _numba_type_(self) -> Any:
        """What numba asks for when a kernel names the type."""
        from hf2q.simd.compiler import type_of_vector

        return type_of_vector(self.kind, self.n)


def F32(n: int) -> Any:
    """`n` float32 lanes."""
    return VectorType("f32", n)


def I32(n: int) -> Any:
    """`n` int32 lanes."""
    return VectorType("i32", n)
