"""`MlxOps`: the op vocabulary in MLX calls. The contract of each op is in `hf2q.backends.ops`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from hf2q.backends import composed
from hf2q.backends.memory import available_memory
from hf2q.backends.mlx import layers, matrix
from hf2q.backends.mlx.compiled import Compiled, few
from hf2q.backends.mlx.delta import STEPS
from hf2q.backends.mlx.matrix import parts_of
from hf2q.backends.ops import Ops
from hf2q.codec import QuantCodec
from hf2q.types import Shape

if TYPE_CHECKING:
    from hf2q.types import Bytes


class MlxOps(Ops):
    """MLX on its default device. Work is lazy until `eval` or `to_numpy`, and bound to the thread that began it."""

    name = "mlx"

    def __init__(self, *, threads: int, exact: bool = False) -> None:
        self.threads = threads
        if exact:
            # activations are float32 in any case, but CUDA rounds the factors of large products to TF32; MLX looks at
            # this before its first product
            os.environ["MLX_ENABLE_TF32"] = "0"
        # on a CPU there is little to win, and MLX would need a C++ compiler at run time
        self._compiled = Compiled(active=mx.default_device().type == mx.gpu)

    def _few(self, shape: Shape, function: Callable[..., Any], *arguments: Any) -> Any:
        """`function`, compiled where `shape`, the rows and tokens, says that there are few."""
        return self._compiled.exact(function, *arguments) if few(shape) else function(*arguments)

    @property
    def instructions(self) -> str:
        if mx.default_device().type != mx.gpu:
            return "cpu, no GPU found"
        return f"gpu {mx.device_info().get('device_name', '')}".rstrip()

    # -------------------------------------------------------------------------------------------------- at the edges

    def asarray(self, values: NDArray[Any]) -> Any:
        return mx.array(values)

    def to_numpy(self, x: Any) -> NDArray[Any]:
        return np.array(x)

    def eval(self, *arrays: Any) -> None:
        mx.eval(*arrays)

    def computed(self, x: Any, others: Iterable[Any]) -> NDArray[Any]:
        mx.eval(x, *others)
        return np.array(x)

    def matrix(self, blocks: Bytes, codec: QuantCodec, shape: Shape) -> Any:
        return matrix.from_blocks(blocks, codec, shape, self.threads)

    # ------------------------------------------------------------------------------------------------------- memory

    def matrix_bytes(self, codec: QuantCodec, shape: Shape) -> int:
        return matrix.bytes_of(codec, shape)

    def available(self) -> int | None:
        if mx.default_device().type != mx.gpu or mx.metal.is_available():
            return available_memory()  # the host's, which a Mac's GPU shares
        free = mx.device_info().get("free_memory")
        return free if isinstance(free, int) else None

    def zeros(self, shape: Shape, *, grows: bool = False) -> Any:
        return mx.zeros(shape)

    def write(self, buffer: Any, values: Any, start: int) -> Any:
        written = buffer[...]  # an array of its own: assigning changes what the name stands for, and not the memory
        written[:, start : start + values.shape[0]] = mx.swapaxes(values, 0, 1)
        return written

    def copy(self, x: Any) -> Any:
        return x  # `write` gives a new array and reuses the old one's memory only when nobody else holds it

    def concat(self, arrays: Sequence[Any], axis: int) -> Any:
        return mx.concatenate(list(arrays), axis=axis)

    # ----------------------------------------------------------------------------------------------------- matrices

    def embedding(self, ids: Any, table: Any) -> Any:
        return table.rows(ids)

    def linear(self, x: Any, weight: Any) -> Any:
        return self._few(x.shape[:-1], layers.linear, x, weight.parts)

    def linears(self, x: Any, weights: Sequence[Any]) -> tuple[Any, ...]:
        products: tuple[Any, ...] = self._few(x.shape[:-1], layers.linears, x, parts_of(weights))
        return products

    def grouped_linear(self, x: Any, weight: Any) -> Any:
        return self._few(x.shape[:-1], layers.grouped_linear, x, weight.parts)

    def matmul(self, a: Any, b: Any) -> Any:
        return a @ b

    def moe(
        self,
        x: Any,
        experts: Any,
        weights: Any,
        gate_up: Sequence[Any],
        down: Any,
        activation: Callable[[Any, Any], Any],
    ) -> Any:
        gate, up = self._few(x.shape[:-1], layers.experts_in, x, experts, parts_of(gate_up))
        hidden = activation(gate, up)
        return self._few(x.shape[:-1], layers.experts_out, hidden, experts, weights, down.parts)

    # -------------------------------------------------------------------------------------------------- elementwise

    def exp(self, x: Any) -> Any:
        return mx.exp(x)

    def sigmoid(self, x: Any) -> Any:
        return mx.sigmoid(x)

    def silu(self, x: Any) -> Any:
        return self._compiled.any_shape(layers.silu, x)

    def softplus(self, x: Any) -> Any:
        return mx.logaddexp(x, mx.array(0.0))

    def sqrt(self, x: Any) -> Any:
        return mx.sqrt(x)

    def tanh(self, x: Any) -> Any:
        return mx.tanh(x)

    def clamp(self, x: Any, low: float | None, high: float | None) -> Any:
        return mx.clip(x, low, high)

    def gelu(self, x: Any) -> Any:
        return self._compiled.any_shape(layers.gelu, x)

    def gelu_tanh(self, x: Any) -> Any:
        return self._compiled.any_shape(layers.gelu_tanh, x)

    def softcap(self, x: Any, cap: float) -> Any:
        return self._compiled.any_shape(layers.softcap, x, cap)

    def geglu(self, gate: Any, up: Any) -> Any:
        return self._compiled.any_shape(layers.geglu, gate, up)

    def swiglu(self, gate: Any, up: Any) -> Any:
        return self._compiled.any_shape(layers.swiglu, gate, up)

    # ------------------------------------------------------------------------------------------- over the last axis

    def rms_norm(self, x: Any, weight: Any, eps: float) -> Any:
        return mx.fast.rms_norm(x, weight, eps)

    def layer_norm(self, x: Any, weight: Any, bias: Any, eps: float) -> Any:
        return mx.fast.layer_norm(x, weight, bias, eps)

    def l2_norm(self, x: Any, eps: float) -> Any:
        return layers.l2_norm(x, eps)

    def softmax(self, x: Any) -> Any:
        return mx.softmax(x, axis=-1, precise=True)

    def sum(self, x: Any) -> Any:
        return x.sum(axis=-1, keepdims=True)

    def top_k(self, x: Any, k: int) -> tuple[Any, Any]:
        order = mx.argsort(-x, axis=-1)[..., :k].astype(mx.int32)
        return mx.take_along_axis(x, order, axis=-1), order

    def top_k_mask(self, x: Any, k: int) -> Any:
        mask = mx.full(x.shape, -math.inf)
        return mx.put_along_axis(mask, self.top_k(x, k)[1], mx.array(0.0), axis=-1)

    def sinkhorn(self, x: Any, iterations: int, eps: float) -> Any:
        return self._few(x.shape[:-2], layers.sinkhorn, x, iterations, eps)

    def take_along(self, x: Any, index: Any) -> Any:
        return mx.take_along_axis(x, index, axis=-1)

    # -------------------------------------------------------------------------------------------------- over tokens

    def rope(self, x: Any, cos: Any, sin: Any, *, pairs: bool = False) -> Any:
        return self._few(x.shape[:2], layers.rope, x, cos, sin, pairs)

    def attention(
        self,
        q: Any,
        keys: Sequence[Any],
        values: Sequence[Any],
        scale: float,
        *,
        causal: bool = True,
        window: int = 0,
        sinks: Any = None,
        masks: Sequence[Any] | None = None,
    ) -> Any:
        tokens = q.shape[1]
        outs = []
        for row, (k, v) in enumerate(zip(keys, values, strict=True)):
            total = k.shape[1]
            mask: Any = None if masks is None else masks[row]
            if mask is None and causal and not window:
                mask = "causal" if tokens > 1 else None  # MLX aligns the last query with the last key
            elif (causal and tokens > 1) or (window and total > window):
                ago = mx.arange(total - tokens, total)[:, None] - mx.arange(total)
                hidden = (ago < 0) if causal else mx.zeros(ago.shape, mx.bool_)
                hidden = (hidden | (ago >= window)) if window else hidden
                far = mx.where(hidden, mx.array(-math.inf), mx.array(0.0))
                mask = far if mask is None else mask + far
            own = mx.swapaxes(q[row : row + 1], 1, 2)
            outs.append(
                mx.fast.scaled_dot_product_attention(own, k[None], v[None], scale=scale, mask=mask, sinks=sinks)
            )
        return mx.swapaxes(outs[0] if len(outs) == 1 else mx.concatenate(outs), 1, 2)

    def conv1d_causal(self, x: Any, weight: Any, states: Sequence[Any]) -> tuple[Any, list[Any]]:
        return layers.conv1d_causal(x, weight, states)

    def gated_delta(
        self, q: Any, k: Any, v: Any, decay: Any, beta: Any, states: Sequence[Any]
    ) -> tuple[Any, list[Any]]:
        return layers.gated_delta(q, k, v, decay, beta, states)

    def delta_net(
        self,
        x: Any,
        conv: Any,
        a: Any,
        dt: Any,
        alpha: Any,
        beta: Any,
        states: Sequence[tuple[Any, ...]],
        eps: float,
    ) -> tuple[Any, list[tuple[Any, ...]]]:
        return layers.delta_net(x, conv, a, dt, alpha, beta, states, eps)

    def attention_layer(self, x: Any, weights: Any, rotation: tuple[Any, Any], parts: Sequence[Any]) -> Any:
        return composed.attention_layer(self, x, weights, rotation, parts)

    def delta_layer(self, x: Any, weights: Any, states: Sequence[Any]) -> tuple[Any, list[Any]]:
        arguments = (x, parts_of(weights), list(states))
        if x.shape[1] > STEPS:
            return layers.delta_layer(*arguments)
        out, after = self._few(x.shape[:-1], layers.delta_layer, *arguments)
        return out, after

    def gated_rms_norm(self, x: Any, weight: Any, eps: float, gate: Any) -> Any:
        return self._few(x.shape[:-1], layers.gated_rms_norm, x, weight, eps, gate)

    def gated_ffn(self, x: Any, norm: Any, eps: float, gate: Any, up: Any, down: Any) -> Any:
        return self._few(x.shape[:-1], layers.gated_ffn, x, norm, eps, *parts_of((gate, up, down)))
