"""Squared activations of each input column, added up for each tensor: float64 sums, exact counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from hf2q.errors import QualityError
from hf2q.formats.imatrix import Entry
from hf2q.types import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hf2q.types import Float32

    Float64 = NDArray[np.float64]
    Counts = NDArray[np.int64]


class Total(Record, frozen=True, kw_only=True, eq=False):
    """Of one tensor: sums float64 (n, width) and counts int64 (n,), which change while a model runs."""

    sums: Float64
    counts: Counts


class Sums:
    """`totals` by tensor name: n is 1, or for a stack of experts their number."""

    def __init__(self, totals: Mapping[str, Total] | None = None) -> None:
        self.totals: dict[str, Total] = dict(totals or {})

    def add(self, names: tuple[str, ...], x: Float32) -> None:
        """All rows of x (..., width) go into each of these tensors. A count is a number of rows."""
        if not names:
            return
        wide = x.reshape(-1, x.shape[-1]).astype(np.float64)
        squares = np.einsum("nc,nc->c", wide, wide)
        for name in names:
            total = self._total(name, 1, len(squares))
            total.sums[0] += squares
            total.counts[0] += len(wide)

    def add_experts(self, names: tuple[str, ...], x: Float32, chosen: Counts, experts: int) -> None:
        """Rows of x (N, width) or (N · K, width) go into the experts `chosen` (N, K) of `experts`, of each tensor.

        With N rows each goes into K experts, in several places when one is chosen twice. A count is a number of pairs
        of row and expert.
        """
        if not names:
            return
        flat = chosen.reshape(-1)
        order = np.argsort(flat, kind="stable")
        rows = order if len(x) == len(flat) else order // chosen.shape[-1]
        counts = np.bincount(flat, minlength=experts)
        used = np.flatnonzero(counts)
        squares = np.square(x.astype(np.float64))
        starts = np.concatenate([[0], np.cumsum(counts[used])[:-1]])
        added = np.stack([squares[rows[a : a + n]].sum(0) for a, n in zip(starts, counts[used], strict=True)])
        for name in names:
            total = self._total(name, experts, x.shape[-1])
            total.sums[used] += added
            total.counts[:] += counts

    def check(self) -> None:
        """Errors: QualityError naming a tensor whose sums are not finite numbers of 32 bits."""
        for name, total in self.totals.items():
            with np.errstate(over="ignore"):
                good = np.isfinite(total.sums.astype(np.float32))
            if not good.all():
                expert, column = (int(index) for index in np.argwhere(~good)[0])
                place = f"column {column}" + (f" of expert {expert}" if len(total.sums) > 1 else "")
                raise QualityError(
                    f"activations that go into {name} are not finite, or overflow when squared ({place})",
                    hint="the file is damaged, or its numbers overflow: convert or download it again",
                )

    def entries(self) -> dict[str, Entry]:
        """What an importance matrix says: sums float32. Errors: as `check`."""
        self.check()
        return {
            name: Entry(sums=total.sums.astype(np.float32), counts=total.counts.copy())
            for name, total in self.totals.items()
        }

    def _total(self, name: str, n: int, width: int) -> Total:
        found = self.totals.get(name)
        if found is None:
            found = self.totals[name] = Total(sums=np.zeros((n, width)), counts=np.zeros(n, np.int64))
        elif found.sums.shape != (n, width):
            raise QualityError(f"{name} takes {n} x {width} columns here, and took {found.sums.shape} before")
        return found
