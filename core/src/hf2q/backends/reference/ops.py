"""`ReferenceOps`: the op vocabulary in plain numpy. The contract of each op is in `hf2q.backends.ops`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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

    def __init__(self, *, threads: int) -> None:
        self.threads = threads

    # -------------------------------------------------------------------------------------------------- at the edges

    def asarray(self, values: Numbers) -> Any:
        return np.array(values)

    def to_numpy(self, x: Any) -> Numbers:
        return np.array(x)

    def eval(self, *arrays: Any) -> None:
        pass  # numpy computes at once

    def matrix(self, blocks: Bytes, codec: QuantCodec, shape: Shape) -> DenseMatrix:
        return DenseMatrix(codec.decode(blocks, threads=self.threads).reshape(shape))

    # ------------------------------------------------------------------------------------------------------- memory

    def zeros(self, shape: Shape) -> Any:
        return np.zeros(shape, np.float32)

    def write(self, buffer: Any, values: Any, start: int) -> Any:
        buffer[:, :, start : start + values.shape[2]] = values
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
        out = np.zeros_like(x)
        for expert in np.unique(experts):
            b, t, slot = np.nonzero(experts == expert)  # who asked for this expert, and as which of their k
            rows = x[b, t]  # (n, C)
            hidden = activation(rows @ gate.values[expert].T, rows @ up.values[expert].T)  # (n, F)
            out[b, t] += weights[b, t, slot][:, None] * (hidden @ down.values[expert].T)
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

    def swiglu(self, gate: Any, up: Any) -> Any:
        return self.silu(gate) * up

    # ------------------------------------------------------------------------------------------- over the last axis

    def rms_norm(self, x: Any, weight: Any, eps: float) -> Any:
        normal = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps))
        return normal if weight is None else normal * weight

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

    # -------------------------------------------------------------------------------------------------- over tokens

    def rope(self, x: Any, cos: Any, sin: Any) -> Any:
        pairs = cos.shape[-1]
        cos, sin = cos[:, None], sin[:, None]  # (T, 1, R): the same for every head
        a, b, rest = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
        return np.concatenate([a * cos - b * sin, a * sin + b * cos, rest], axis=-1)

    def attention(self, q: Any, k: Any, v: Any, scale: float) -> Any:
        tokens, total, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.float32(scale) * (q @ k.swapaxes(-1, -2))  # (B, H, T, S)
        hidden = np.arange(total) > np.arange(total - tokens, total)[:, None]  # (T, S): keys in the future
        return self.softmax(np.where(hidden, np.float32(-np.inf), scores)) @ v

    def conv1d_causal(self, x: Any, weight: Any, state: Any) -> tuple[Any, Any]:
        tokens, taps = x.shape[1], weight.shape[1]
        known = np.concatenate([state, x], axis=1)  # (B, K - 1 + T, C)
        out = np.zeros_like(x)
        for tap in range(taps):
            out += known[:, tap : tap + tokens] * weight[:, tap]
        return out, known[:, tokens:]

    def gated_delta(self, q: Any, k: Any, v: Any, decay: Any, beta: Any, state: Any) -> tuple[Any, Any]:
        repeats = v.shape[2] // q.shape[2]
        q, k = np.tile(q, (1, 1, repeats, 1)), np.tile(k, (1, 1, repeats, 1))  # (B, T, H, Dk)
        out = np.empty_like(v)
        for t in range(q.shape[1]):
            state = state * np.exp(decay[:, t])[:, :, None, None]
            error = v[:, t] - np.einsum("bhkv,bhk->bhv", state, k[:, t])
            state = state + k[:, t][..., None] * (beta[:, t][..., None] * error)[:, :, None]
            out[:, t] = np.einsum("bhkv,bhk->bhv", state, q[:, t])
        return out, state
