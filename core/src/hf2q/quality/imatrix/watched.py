"""`Watched`: a backend's ops that also add up what goes into the products; graphs do not know.

Only products go through it whose weights come from a file by name, and of these, as in llama-imatrix, those of blocks
(``blk.*``), and ``output.weight`` when that is wanted. Embeddings that serve as output too are counted as neither.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hf2q.backends import composed
from hf2q.backends.ops import Array, AttentionWeights, DeltaWeights, Matrix, Ops
from hf2q.backends.weights import Source, Weights
from hf2q.errors import QualityError
from hf2q.quality.imatrix.sums import Sums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hf2q.backends.cache import KVCache
    from hf2q.codec import QuantCodec
    from hf2q.types import Float32

BLOCK, OUTPUT = "blk.", "output.weight"

BACKENDS = ("cpu", "mlx", "reference")
"""Those whose `Ops.moe` calls the activation either once, for all pairs of token and expert in their order, or once for
each expert that is used, in ascending order, with the pairs in their order. Another one may do it in any way."""

SAME_INPUT = {".ffn_gate_shexp.weight": ".ffn_gate_inp_shexp.weight"}
"""Weights of one row that graphs multiply with as arrays, and what else takes the same input. For llama.cpp these are
products like others (src/models/qwen35moe.cpp, `ffn_gate_inp_shexp`)."""


class NamedWeights(Weights):
    """Weights that know afterwards which matrix is which tensor: `names`, by `id`."""

    def __init__(self, source: Source, codec: Callable[[str], QuantCodec], ops: Ops) -> None:
        super().__init__(source, codec, ops)
        self.names: dict[int, str] = {}
        self._kept: list[Matrix] = []  # so that no id is used again

    def matrix(self, name: str, *, groups: int = 0) -> Matrix:
        """As `Weights.matrix`."""
        found = super().matrix(name, groups=groups)
        self._kept.append(found)
        self.names[id(found)] = name
        return found


class Watched:
    """`ops`, but for the products of `names`: `Watched.of` makes one that passes for `Ops`."""

    def __init__(self, ops: Ops, sums: Sums, names: dict[int, str], tensors: Collection[str], output: bool) -> None:
        self._ops, self._sums, self._names, self._tensors, self._output = ops, sums, names, tensors, output

    @classmethod
    def of(cls, ops: Ops, sums: Sums, weights: NamedWeights, tensors: Collection[str], *, output: bool) -> Ops:
        """Watched ops for a graph with `weights`, which are of a file with `tensors`; `output` counts that too.

        Errors: QualityError for a backend that is not known to compute experts in a way that can be watched.
        """
        if ops.name not in BACKENDS:
            raise QualityError(
                f"the backend {ops.name!r} is not known to compute experts in an order that can be watched",
                hint=f"--backend {' or '.join(BACKENDS)}",
            )
        return cast("Ops", cls(ops, sums, weights.names, tensors, output))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def linear(self, x: Array, weight: Matrix) -> Array:
        """As `Ops.linear`."""
        self._see(x, (weight,))
        return self._ops.linear(x, weight)

    def linears(self, x: Array, weights: Sequence[Matrix]) -> tuple[Array, ...]:
        """As `Ops.linears`."""
        self._see(x, weights)
        return self._ops.linears(x, weights)

    def grouped_linear(self, x: Array, weight: Matrix) -> Array:
        """As `Ops.grouped_linear`. In the file the groups are one tensor, whose columns get the rows of all."""
        self._see(x, (weight,))
        return self._ops.grouped_linear(x, weight)

    def delta_layer(
        self, x: Array, weights: DeltaWeights, states: Sequence[tuple[Array, ...]]
    ) -> tuple[Array, list[tuple[Array, ...]]]:
        """As `Ops.delta_layer`, product by product."""
        return composed.delta_layer(cast("Ops", self), x, weights, states)

    def attention_layer(
        self, x: Array, weights: AttentionWeights, rotation: tuple[Array, Array], parts: Sequence[KVCache]
    ) -> Array:
        """As `Ops.attention_layer`, product by product."""
        return composed.attention_layer(cast("Ops", self), x, weights, rotation, parts)

    def gated_ffn(self, x: Array, norm: Array, eps: float, gate: Matrix, up: Matrix, down: Matrix) -> Array:
        """As `Ops.gated_ffn`, product by product."""
        return composed.gated_ffn(cast("Ops", self), x, norm, eps, gate, up, down)

    def moe(
        self,
        x: Array,
        experts: Array,
        weights: Array,
        gate_up: Sequence[Matrix],
        down: Matrix,
        activation: Callable[[Array, Array], Array],
    ) -> Array:
        """As `Ops.moe`."""
        chosen = self._ops.to_numpy(experts).astype(np.int64)
        chosen = chosen.reshape(-1, chosen.shape[-1])
        hidden: list[Float32] = []

        def watched(gate: Array, up: Array) -> Array:
            out = activation(gate, up)
            values = self._ops.to_numpy(out)
            hidden.append(values.reshape(-1, values.shape[-1]))
            return out

        rows = self._ops.to_numpy(x)
        self._sums.add_experts(self._wanted(gate_up), rows.reshape(-1, rows.shape[-1]), chosen, gate_up[0].shape[0])
        out = self._ops.moe(x, experts, weights, gate_up, down, watched)
        self._sums.add_experts(self._wanted((down,)), _in_order(hidden, chosen), chosen, down.shape[0])
        return out

    def _see(self, x: Array, weights: Sequence[Matrix]) -> None:
        names = self._wanted(weights)
        if names:
            self._sums.add(names, self._ops.to_numpy(x))

    def _wanted(self, weights: Sequence[Matrix]) -> tuple[str, ...]:
        names = [self._names[id(weight)] for weight in weights if id(weight) in self._names]
        for end, other in SAME_INPUT.items():
            found = [name.removesuffix(end) + other for name in names if name.endswith(end)]
            names += [name for name in found if name in self._tensors and name not in names]
        return tuple(name for name in names if name.startswith(BLOCK) or (self._output and name == OUTPUT))


def _in_order(hidden: Sequence[Float32], chosen: NDArray[np.int64]) -> Float32:
    """What the activation gave, (N · K, F) for `chosen` (N, K), by tokens and then places."""
    flat = chosen.reshape(-1)
    if len(hidden) == 1 and len(hidden[0]) == len(flat):
        return hidden[0]
    counts = np.bincount(flat)
    if [len(part) for part in hidden] != counts[counts > 0].tolist():
        raise QualityError("what goes into the experts' down projections cannot be told apart: not by expert, in order")
    out = np.empty((len(flat), hidden[0].shape[-1]), np.float32)
    out[np.argsort(flat, kind="stable")] = np.concatenate(list(hidden))
    return out
