"""`ReferenceOps`: the op vocabulary in plain numpy. The contract of each op is in `hf2q.backends.ops`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hf2q.backends import composed
from hf2q.backends.memory import available_memory
from hf2q.backends.ops import Ops
from hf2q.codec import QuantCodec
from hf2q.types import Shape

if TYPE_CHECKING:
    from hf2q.types import Bytes, Float32

Numbers = NDArray[Any]


class DenseMatrix:
    """A decoded weight: `values` float32 (out, in) or (E, out, in)."""

    quantized = False

    def __init__(self, values: Float32) -> None:
        self.values = values

    @property
    def shape(self) -> Shape:
        """(out, in) or (E, out, in)."""
        return self.values.shape

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.values.nbytes


class ReferenceOps(Ops):
    """Plain numpy. Arrays are ndarrays and always computed; weights are decoded to float32."""

    name = "reference"

    def __init__(self, *, threads: int, exact: bool = False) -> None:
        self.threads, self.exact = threads, exact  # here products are exact in any case

    @property
    def instructions(self) -> str:
        return "numpy"

    # -------------------------------------------------------------------------------------------------- at the edges

    def asarray(self, values: Numbers) -> Any:
        return np.array(values)

    def to_numpy(self, x: Any) -> Numbers:
        return np.array(x)

    def eval(self, *arrays: Any) -> None:
        pass  # numpy computes at once

    def computed(self, x: Any, others: Iterable[Any]) -> Numbers:
        found: Numbers = x
        return found

    def matrix(self, blocks: Bytes, codec: QuantCodec, shape: Shape) -> DenseMatrix:
        return DenseMatrix(codec.decode(blocks, threads=self.threads).reshape(shape))

    # ------------------------------------------------------------------------------------------------------- memory

    def matrix_bytes(self, codec: QuantCodec, shape: Shape) -> int:
        return 4 * math.prod(shape)

    def available(self) -> int | None:
        return available_memory()

    def zeros(self, shape: Shape, *, grows: bool = False) -> Any:
        return np.zeros(shape, np.float32)

    def write(self, buffer: Any, values: Any, start: int) -> Any:
        buffer[:, start : start + values.shape[0]] = values.swapaxes(0, 1)
        return buffer

    def copy(self, x: Any) -> Any:
        return x.copy()

    def concat(self, arrays: Sequence[Any], axis: int) -> Any:
        return np.concatenate(arrays, axis=axis)

    # ----------------------------------------------------------------------------------------------------- matrices

    def embedding(self, ids: Any, table: Any) -> Any:
        return table.values[ids]

    def linear(self, x: Any, weight: Any) -> Any:
        return x @ weight.values.T

    def linears(self, x: Any, weights: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(self.linear(x, weight) for weight in weights)

    def grouped_linear(self, x: Any, weight: Any) -> Any:
        return np.einsum("btgi,goi->btgo", x, weight.values)

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
        out = np.zeros_like(x)
        for expert in np.unique(experts):
            b, t, slot = np.nonzero(experts == expert)  # who asked for this expert, and as which of their k
            rows = x[b, t]  # (n, C)
            both = np.concatenate([rows @ weight.values[expert].T for weight in gate_up], axis=-1)  # (n, 2F)
            hidden = activation(*np.split(both, 2, axis=-1))  # (n, F)
            # a token may have the same expert twice
            np.add.at(out, (b, t), weights[b, t, slot][:, None] * (hidden @ down.values[expert].T))
        return out

    # -------------------------------------------------------------------------------------------------- elementwise

    def exp(self, x: Any) -> Any:
        return np.exp(x)

    def sigmoid(self, x: Any) -> Any:
        e = np.exp(-np.abs(x))  # at most 1: no overflow on either side
        return np.where(x >= 0, np.float32(1), e) / (1 + e)

    def silu(self, x: Any) -> Any:
        return x * self.sigmoid(x)

    def softplus(self, x: Any) -> Any:
        return np.logaddexp(x, np.float32(0))

    def sqrt(self, x: Any) -> Any:
        return np.sqrt(x)

    def tanh(self, x: Any) -> Any:
        return np.tanh(x)

    def clamp(self, x: Any, low: float | None, high: float | None) -> Any:
        return np.clip(x, None if low is None else np.float32(low), None if high is None else np.float32(high))

    def gelu(self, x: Any) -> Any:
        return x * np.float32(0.5) * (1 + _erf(x * np.float32(math.sqrt(0.5))))

    def gelu_tanh(self, x: Any) -> Any:
        inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
        return np.float32(0.5) * x * (1 + np.tanh(inner))

    def softcap(self, x: Any, cap: float) -> Any:
        return np.float32(cap) * np.tanh(x / np.float32(cap))

    def geglu(self, gate: Any, up: Any) -> Any:
        return self.gelu_tanh(gate) * up

    def swiglu(self, gate: Any, up: Any) -> Any:
        return self.silu(gate) * up

    # ------------------------------------------------------------------------------------------- over the last axis

    def rms_norm(self, x: Any, weight: Any, eps: float) -> Any:
        normal = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps))
        return normal if weight is None else normal * weight

    def layer_norm(self, x: Any, weight: Any, bias: Any, eps: float) -> Any:
        centred = x - x.mean(axis=-1, keepdims=True)
        normal = self.rms_norm(centred, weight, eps)
        return normal if bias is None else normal + bias

    def l2_norm(self, x: Any, eps: float) -> Any:
        return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + np.float32(eps))

    def softmax(self, x: Any) -> Any:
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    def sum(self, x: Any) -> Any:
        return x.sum(axis=-1, keepdims=True)

    def top_k(self, x: Any, k: int) -> tuple[Any, Any]:
        order = np.argsort(-x, axis=-1, kind="stable")[..., :k].astype(np.int32)
        return np.take_along_axis(x, order, axis=-1), order

    def top_k_mask(self, x: Any, k: int) -> Any:
        mask = np.full(x.shape, -np.inf, np.float32)
        np.put_along_axis(mask, self.top_k(x, k)[1], np.float32(0), axis=-1)
        return mask

    def sinkhorn(self, x: Any, iterations: int, eps: float) -> Any:
        share, more = self.softmax(x) + np.float32(eps), np.float32(eps)
        share = share / (share.sum(axis=-2, keepdims=True) + more)
        for _ in range(iterations - 1):
            share = share / (share.sum(axis=-1, keepdims=True) + more)
            share = share / (share.sum(axis=-2, keepdims=True) + more)
        return share

    def take_along(self, x: Any, index: Any) -> Any:
        return np.take_along_axis(x, index, axis=-1)

    # -------------------------------------------------------------------------------------------------- over tokens

    def rope(self, x: Any, cos: Any, sin: Any, *, pairs: bool = False) -> Any:
        size = cos.shape[-1]
        cos, sin = cos[:, :, None], sin[:, :, None]  # (B, T, 1, R): the same for every head
        out = x.copy()
        first, second = (
            (slice(0, 2 * size, 2), slice(1, 2 * size, 2)) if pairs else (slice(size), slice(size, 2 * size))
        )
        a, b = x[..., first], x[..., second]
        out[..., first], out[..., second] = a * cos - b * sin, a * sin + b * cos
        return out

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
        out = np.empty((*q.shape[:3], values[0].shape[-1]), np.float32)
        for row, (k, v) in enumerate(zip(keys, values, strict=True)):
            tokens, total, group = q.shape[1], k.shape[1], q.shape[2] // k.shape[0]
            k, v = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
            scores = np.float32(scale) * (q[row].swapaxes(0, 1) @ k.swapaxes(-1, -2))  # (H, T, S)
            if masks is not None:
                scores = scores + masks[row]
            ago = np.arange(total - tokens, total)[:, None] - np.arange(total)  # (T, S): of a key before a query
            hidden = (ago < 0) & causal | (ago >= window) & bool(window)
            scores = np.where(hidden, np.float32(-np.inf), scores)
            if sinks is not None:
                extra = np.broadcast_to(sinks[:, None, None], (*scores.shape[:2], 1))
                scores = np.concatenate([scores, extra], axis=-1)
            share = self.softmax(scores)[..., :total]
            out[row] = (share @ v).swapaxes(0, 1)
        return out

    def conv1d_causal(self, x: Any, weight: Any, states: Sequence[Any]) -> tuple[Any, list[Any]]:
        tokens, taps = x.shape[1], weight.shape[1]
        known = np.concatenate([np.stack(states), x], axis=1)  # (B, K - 1 + T, C)
        out = np.zeros_like(x)
        for tap in range(taps):
            out += known[:, tap : tap + tokens] * weight[:, tap]
        return out, list(known[:, tokens:].copy())

    def gated_delta(
        self, q: Any, k: Any, v: Any, decay: Any, beta: Any, states: Sequence[Any]
    ) -> tuple[Any, list[Any]]:
        repeats = v.shape[2] // q.shape[2]
        q, k = np.tile(q, (1, 1, repeats, 1)), np.tile(k, (1, 1, repeats, 1))  # (B, T, H, Dk)
        out = np.empty_like(v)
        state = np.stack(states)
        for t in range(q.shape[1]):
            state = state * np.exp(decay[:, t])[:, :, None, None]
            error = v[:, t] - np.einsum("bhkv,bhk->bhv", state, k[:, t])
            state = state + k[:, t][..., None] * (beta[:, t][..., None] * error)[:, :, None]
            out[:, t] = np.einsum("bhkv,bhk->bhv", state, q[:, t])
        return out, list(state)

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
        return composed.delta_net(self, x, conv, a, dt, alpha, beta, states, eps)

    def gated_rms_norm(self, x: Any, weight: Any, eps: float, gate: Any) -> Any:
        return self.rms_norm(x, weight, eps) * self.silu(gate)

    def attention_layer(self, x: Any, weights: Any, rotation: tuple[Any, Any], parts: Sequence[Any]) -> Any:
        return composed.attention_layer(self, x, weights, rotation, parts)

    def delta_layer(self, x: Any, weights: Any, states: Sequence[Any]) -> tuple[Any, list[Any]]:
        return composed.delta_layer(self, x, weights, states)

    def gated_ffn(self, x: Any, norm: Any, eps: float, gate: Any, up: Any, down: Any) -> Any:
        return composed.gated_ffn(self, x, norm, eps, gate, up, down)


def _erf(x: Any) -> Any:
    """The error function, correctly rounded to float32 or next to it."""
    return np.array([math.erf(value) for value in x.ravel().tolist()], np.float32).reshape(x.shape)
