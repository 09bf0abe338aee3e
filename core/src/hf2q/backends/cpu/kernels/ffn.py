"""A gated feed-forward layer of a few tokens as one chain of kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hf2q.backends.cpu.kernels.chain import Chain, Chains, Needs, Patch
from hf2q.backends.cpu.kernels.elementwise import Elementwise
from hf2q.backends.cpu.kernels.rowwise import rms_rows, rows_work
from hf2q.backends.cpu.memory import address
from hf2q.backends.cpu.team import Team

if TYPE_CHECKING:
    from hf2q.backends.cpu.linear import Linear
    from hf2q.backends.cpu.matrix import Matrix


class GatedFFN:
    """`hf2q.backends.ops.Ops.gated_ffn` for numbers of tokens that are `chained`."""

    def __init__(self, team: Team, linear: Linear, each: Elementwise) -> None:
        self._team, self._linear, self._each = team, linear, each
        self._chains = Chains()

    def __call__(self, x: Any, weight: Any, eps: float, gate: Matrix, up: Matrix, down: Matrix) -> Any:
        """x (..., C) -> (..., C)."""
        x = np.ascontiguousarray(x, np.float32)
        out = np.empty(x.shape, np.float32)
        with self._linear.lock:
            key = x.shape, id(weight), eps, gate, up, down
            chain = self._chains.of(
                key,
                self._linear,
                lambda: self._needs(x.size // gate.columns, gate, down),
                lambda places: self._made(x, weight, eps, gate, up, down, places),
            )
            chain.run(id(x), id(out))
            if self._linear.in_file:
                self._linear.verify((gate, up, down))
        return out

    @staticmethod
    def _needs(rows: int, gate: Matrix, down: Matrix) -> Needs:
        columns, inner = gate.columns, gate.rows
        return Needs(rows, max(columns, inner), [rows * size for size in (columns, 2 * inner, inner, down.rows)])

    def _made(
        self, x: Any, weight: Any, eps: float, gate: Matrix, up: Matrix, down: Matrix, places: list[int]
    ) -> Chain:
        columns, inner = gate.columns, gate.rows
        rows = x.size // columns
        normal, both, hidden, last = places
        wide = self._linear.prepared((rows, columns), (gate, up))
        narrow = self._linear.prepared((rows, inner), (down,))
        norm, gated = rows_work(rms_rows, rows, columns, eps), self._each.work("swiglu", rows * inner)
        add = self._each.work("add", rows * columns)
        for work, arrays in (
            (norm, (normal, 0, address(weight))),
            (wide.work, (normal, both)),
            (gated, (hidden, both, both + 4 * rows * inner)),
            (narrow.work, (hidden, last)),
            (add, (0, 0, last)),
        ):
            work.words[: len(arrays)] = arrays
        patches = (Patch(0, 1, 0), Patch(4, 0, 1), Patch(4, 1, 0))
        alive = weight, wide, narrow
        return Chain(self._team, (norm, wide.work, gated, narrow.work, add), patches, alive)
