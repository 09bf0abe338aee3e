"""`MlxOps`: the op vocabulary in MLX calls. The contract of each op is in `hf2q.backends.ops`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from hf2q.backends.mlx import delta, matrix
from hf2q.backends.ops import Ops
from hf2q.codec import QuantCodec
from hf2q.types import Shape

if TYPE_CHECKING:
    from hf2q.types import Bytes


class MlxOps(Ops):
    """MLX on its default device. Work is lazy until `eval` or `to_numpy`, and bound to the thread that began it."""

    name = "mlx"

    def __init__(self, *, threads: int) -> None:
        self.threads = threads

    # -------------------------------------------------------------------------------------------------- at the edges

    def asarray(self, values: NDArray[Any]) -> Any:
        return mx.array(values)

    def to_numpy(self, x: Any) -> NDArray[Any]:
        return np.array(x)

    def eval(self, *arrays: Any) -> None:
        mx.eval(*arrays)

    def matrix(self, blocks: Bytes, codec: QuantCodec, shape: Shape) -> Any:
        return matrix.from_blocks(blocks, codec, shape, self.threads)

    # ------------------------------------------------------------------------------------------------------- memory

    def zeros(self, shape: Shape) -> Any:
        return mx.zeros(shape)

    def write(self, buffer: Any, values: Any, start: int) -> Any:
        return mx.slice_update(buffer, values, mx.array([start]), axes=(2,))

    def copy(self, x: Any) -> Any:
        return x  # `write` gives a new array and reuses the old one's memory only when nobody else holds it

    def concat(self, arrays: Sequence[Any], axis: int) -> Any:
        return mx.concatenate(list(arrays), axis=axis)

    # ----------------------------------------------------------------------------------------------------- matrices

    def embedding(self, ids: Any, table: Any) -> Any:
        return table.rows(ids)

    def linear(self, x: Any, weight: Any) -> Any:
        return weight.times(x)

    def moe(
        self,
        x: Any,
        experts: Any,
        weights: Any,
        gate: Any,
        up: Any,
        down: Any,
        activation: Callable[[Any, Any], Any],
    ) -> Any:
        x = x[:, :, None, None]  # (B,T,1,1,C)
        hidden = activation(gate.gather_times(x, experts), up.gather_times(x, experts))  # (B,T,K,1,F)
        each = down.gather_times(hidden, experts)[..., 0, :]  # (B,T,K,C)
        return (each * weights[..., None]).sum(axis=-2)

    # -------------------------------------------------------------------------------------------------- elementwise

    def exp(self, x: Any) -> Any:
        return mx.exp(x)

    def sigmoid(self, x: Any) -> Any:
        return mx.sigmoid(x)

    def silu(self, x: Any) -> Any:
        return x * mx.sigmoid(x)

    def softplus(self, x: Any) -> Any:
        return mx.logaddexp(x, mx.array(0.0))

    def swiglu(self, gate: Any, up: Any) -> Any:
        return gate * mx.sigmoid(gate) * up

    # ------------------------------------------------------------------------------------------- over the last axis

    def rms_norm(self, x: Any, weight: Any, eps: float) -> Any:
        return mx.fast.rms_norm(x, weight, eps)

    def l2_norm(self, x: Any, eps: float) -> Any:
        return x * mx.rsqrt((x * x).sum(axis=-1, keepdims=True) + eps)

    def softmax(self, x: Any) -> Any:
        return mx.softmax(x, axis=-1, precise=True)

    def sum(self, x: Any) -> Any:
        return x.sum(axis=-1, keepdims=True)

    def top_k(self, x: Any, k: int) -> tuple[Any, Any]:
        order = mx.argsort(-x, axis=-1)[..., :k].astype(mx.int32)
        return mx.take_along_axis(x, order, axis=-1), order

    # -------------------------------------------------------------------------------------------------- over tokens

    def rope(self, x: Any, cos: Any, sin: Any) -> Any:
        pairs = cos.shape[-1]
        cos, sin = cos[:, None], sin[:, None]  # (T,1,R): the same for every head
        a, b, rest = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
        return mx.concatenate([a * cos - b * sin, a * sin + b * cos, rest], axis=-1)

    def attention(self, q: Any, k: Any, v: Any, scale: float) -> Any:
        mask = "causal" if q.shape[2] > 1 else None  # MLX aligns the last query with the last key
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)

    def conv1d_causal(self, x: Any, weight: Any, state: Any) -> tuple[Any, Any]:
        tokens = x.shape[1]
        known = mx.concatenate([state, x], axis=1)  # (B, K - 1 + T, C)
        out = sum(known[:, tap : tap + tokens] * weight[:, tap] for tap in range(weight.shape[1]))
        # a contiguous copy: a view would keep all of `known` in memory
        return out, mx.contiguous(known[:, tokens:])

    def gated_delta(self, q: Any, k: Any, v: Any, decay: Any, beta: Any, state: Any) -> tuple[Any, Any]:
        return delta.gated_delta(q, k, v, decay, beta, state)
