"""Whether two importance matrices agree: the same tensors, the same counts, sums that are close.

A sum is close to another when they differ by at most `absolute`, or by at most `relative` of the larger one. Sums that
were added up in another order differ in the sixth digit; other kernels and rounded activations differ more.
"""

from __future__ import annotations

import msgspec
import numpy as np

from hf2q.formats.imatrix import Entry, Imatrix
from hf2q.types import Record

ABSOLUTE, RELATIVE = 1e-3, 1e-2
TINY = 1e-12
"""What a relative difference is of at least, so that two zeros are equal."""


class TensorDifference(Record, frozen=True, kw_only=True):
    """Of one tensor that both have.

    absolute, relative  the largest differences of its sums
    beyond              how many of its sums are not close
    sums                how many there are
    counts              how many of its counts differ;  shape  whether it is of the same shape in both
    """

    name: str
    absolute: float
    relative: float
    beyond: int
    sums: int
    counts: int
    shape: bool

    @property
    def agrees(self) -> bool:
        """Of the same shape and counts, and all sums close."""
        return self.shape and not self.counts and not self.beyond


class Agreement(Record, frozen=True, kw_only=True):
    """What two matrices have in common; `tensors` in byte order of their names."""

    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    tensors: tuple[TensorDifference, ...]

    @property
    def agrees(self) -> bool:
        """Nothing is in one only, and all tensors agree."""
        return not self.only_first and not self.only_second and all(tensor.agrees for tensor in self.tensors)

    @property
    def absolute(self) -> float:
        """The largest difference of two sums."""
        return max((tensor.absolute for tensor in self.tensors), default=0.0)

    @property
    def relative(self) -> float:
        """The largest difference in terms of the larger sum, also of those that are close by themselves."""
        return max((tensor.relative for tensor in self.tensors), default=0.0)


def compare(first: Imatrix, second: Imatrix, *, absolute: float = ABSOLUTE, relative: float = RELATIVE) -> Agreement:
    """Compare tensor by tensor; counts that are in chunks in one of them (legacy files) are brought into tokens."""
    if bool(first.chunk_size) != bool(second.chunk_size):
        first = first.in_tokens(second.chunk_size) if second.chunk_size else first
        second = second.in_tokens(first.chunk_size) if first.chunk_size else second
    ours, theirs = first.entries, second.entries
    return Agreement(
        only_first=tuple(name for name in ours if name not in theirs),
        only_second=tuple(name for name in theirs if name not in ours),
        tensors=tuple(
            _difference(name, ours[name], theirs[name], absolute, relative) for name in ours if name in theirs
        ),
    )


def _difference(name: str, first: Entry, second: Entry, absolute: float, relative: float) -> TensorDifference:
    if first.sums.shape != second.sums.shape or len(first.counts) != len(second.counts):
        return TensorDifference(
            name=name, absolute=0.0, relative=0.0, beyond=0, sums=first.sums.size, counts=0, shape=False
        )
    a, b = first.sums.astype(np.float64), second.sums.astype(np.float64)
    apart = np.abs(a - b)
    share = apart / np.maximum(np.maximum(a, b), TINY)
    return TensorDifference(
        name=name,
        absolute=float(apart.max(initial=0.0)),
        relative=float(share.max(initial=0.0)),
        beyond=int(np.count_nonzero((apart > absolute) & (share > relative))),
        sums=a.size,
        counts=int(np.count_nonzero(first.counts != second.counts)),
        shape=True,
    )


def told(agreement: Agreement) -> dict[str, object]:
    """The same for JSON."""
    return {
        "agrees": agreement.agrees,
        "max_absolute": agreement.absolute,
        "max_relative": agreement.relative,
        **msgspec.to_builtins(agreement),
    }
