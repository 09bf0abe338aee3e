"""A layer with a gated delta net, for a few tokens, as one chain of kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hf2q.backends.cpu.kernels import delta_net as d
from hf2q.backends.cpu.kernels.chain import Chain, Chains, Needs, Patch, chained
from hf2q.backends.cpu.kernels.elementwise import Elementwise
from hf2q.backends.cpu.kernels.rowwise import gated_rows, rms_rows, rows_work
from hf2q.backends.cpu.memory import address
from hf2q.backends.cpu.team import Team

if TYPE_CHECKING:
    from hf2q.backends.cpu.linear import Linear
    from hf2q.backends.cpu.matrix import Matrix
    from hf2q.backends.ops import DeltaWeights
    from hf2q.types import Shape


class DeltaLayer:
    """`hf2q.backends.ops.Ops.delta_layer` for numbers of tokens that are `chained`."""

    def __init__(self, team: Team, linear: Linear, net: d.DeltaNet, each: Elementwise) -> None:
        self._team, self._linear, self._net, self._each = team, linear, net, each
        self._chains = Chains()

    def fits(self, x: Any, weights: DeltaWeights, state: Any) -> bool:
        """Whether the chain can do it: x (B, T, C), state (H, Dk, Dv)."""
        return chained(math.prod(x.shape[:2])) and d.DeltaNet.fits(weights.conv.shape[0], state)

    def __call__(self, x: Any, weights: DeltaWeights, states: Sequence[Any]) -> tuple[Any, list[Any]]:
        """x (B, T, C) -> (B, T, C), states."""
        x = np.ascontiguousarray(x, np.float32)
        out = np.empty(x.shape, np.float32)
        kept, places = self._net.ready(x.shape, self._net.waiting(states) if x.shape[1] == 1 else states)
        state, waiting = kept[0][1].shape, bool(places[0, 2])
        with self._linear.lock:
            key = x.shape, state, id(weights)
            chain = self._chains.of(
                key,
                self._linear,
                lambda: self._needs(x.shape, weights, state),
                lambda places: self._made(x.shape, weights, state, waiting, places),
            )
            chain.run(id(x), id(out), id(places))
            if self._linear.in_file:
                w = weights
                self._linear.verify(cast("tuple[Matrix, ...]", (w.mixed, w.gate, w.beta, w.alpha, w.out)))
        return out, kept

    @staticmethod
    def _needs(shape: Shape, w: Any, state: Shape) -> Needs:
        batch, tokens, columns = shape
        rows, inner = batch * tokens, state[0] * state[2]
        products = sum(matrix.rows for matrix in (w.mixed, w.gate, w.beta, w.alpha))
        sizes = [rows * size for size in (columns, inner, inner, columns, products)]
        return Needs(rows, max(columns, inner), [*sizes, d.DeltaNet.room((batch, tokens, w.mixed.rows), state[0])])

    def _made(self, shape: Shape, weights: Any, state: Shape, waiting: bool, places: list[int]) -> Chain:
        w, (batch, tokens, columns) = weights, shape
        rows, (heads, _, values), channels = batch * tokens, state, w.mixed.rows
        matrices = w.mixed, w.gate, w.beta, w.alpha
        normal, net, gated, last, products, room = places
        ends = [products + 4 * rows * end for end in np.cumsum([0, *(m.rows for m in matrices)]).tolist()]
        taps, gates = self._net.held(w.conv, w.a, w.dt)
        wide = self._linear.prepared((rows, columns), matrices)
        narrow = self._linear.prepared((rows, heads * values), (w.out,))
        mixing = d.DeltaNet.work((batch, tokens, channels), w.conv.shape[1], state, w.l2_eps, waiting=waiting)
        add = self._each.work("add", rows * columns)
        stages = (
            (rows_work(rms_rows, rows, columns, w.eps), (normal, 0, address(w.norm))),
            (wide.work, (normal, products)),
            (mixing, (net, ends[0], address(taps), ends[3], ends[2], room, 0, address(gates))),
            (rows_work(gated_rows, rows * heads, values, w.eps), (gated, net, address(w.head_norm), ends[1])),
            (narrow.work, (gated, last)),
            (add, (0, 0, last)),
        )
        for work, arrays in stages:
            work.words[: len(arrays)] = arrays
        patches = Patch(0, 1, 0), Patch(5, 0, 1), Patch(5, 1, 0), Patch(2, d.STATES, 2)
        alive = taps, gates, weights, wide, narrow
        return Chain(self._team, [work for work, _ in stages], patches, alive)
