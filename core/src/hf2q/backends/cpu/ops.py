"""`CpuOps`: the op vocabulary on kernels of our own. The contract of each op is in `hf2q.backends.ops`.

Arrays are numpy's, always computed. What has no kernel here (a handful of small ops) is that of the reference backend.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hf2q.backends.cpu.isa import isa
from hf2q.backends.cpu.kernels.attend import Attention
from hf2q.backends.cpu.kernels.attention_layer import AttentionLayer
from hf2q.backends.cpu.kernels.chain import chained, slices
from hf2q.backends.cpu.kernels.choose import MOST_BEST, Choose
from hf2q.backends.cpu.kernels.delta_layer import DeltaLayer
from hf2q.backends.cpu.kernels.delta_net import DeltaNet
from hf2q.backends.cpu.kernels.elementwise import Elementwise
from hf2q.backends.cpu.kernels.ffn import GatedFFN
from hf2q.backends.cpu.kernels.recurrent import Recurrent
from hf2q.backends.cpu.kernels.rowwise import Rowwise, gated_rows, l2_rows, layer_rows, rms_rows
from hf2q.backends.cpu.linear import Linear
from hf2q.backends.cpu.matrix import QTYPES, Matrix
from hf2q.backends.cpu.memory import Arena
from hf2q.backends.cpu.team import Team
from hf2q.backends.reference import ReferenceOps
from hf2q.codec import QuantCodec
from hf2q.types import Shape

if TYPE_CHECKING:
    from hf2q.types import Bytes


READ_ONLY = 1 << 16
"""Results of `linear` with more numbers (logits) are made read-only, and need no copy when they leave the backend."""

MAPPED, NUMPYS = 1 << 18, 1 << 22
"""Bytes from which zeros lie on large pages, as weights do, and from which numpy sees to that itself."""


class CpuOps(ReferenceOps):
    """SIMD kernels on numpy arrays, weights repacked when loading."""

    name = "cpu"

    def __init__(self, *, threads: int, exact: bool = False) -> None:
        super().__init__(threads=threads, exact=exact)
        self.team = Team(threads)
        self._linear = Linear(self.team, exact=exact)
        self._each = Elementwise(self.team)
        self._rows = Rowwise(self.team)
        self._recurrent = Recurrent(self.team)
        self._delta_net = DeltaNet(self.team)
        self._choose = Choose(self.team)
        self._ffn = GatedFFN(self.team, self._linear, self._each)
        self._delta_layer = DeltaLayer(self.team, self._linear, self._delta_net, self._each)
        self._attention_layer = AttentionLayer(self.team, self._linear, self._each)
        self._states = Arena(1 << 24)
        self._taking = threading.Lock()
        self._attention = Attention(self.team)

    @property
    def instructions(self) -> str:
        return isa()

    def zeros(self, shape: Shape, *, grows: bool = False) -> Any:
        size = 4 * math.prod(shape)
        if grows or not MAPPED <= size < NUMPYS:  # states that stay would keep the memory of what grew
            return np.zeros(shape, np.float32)
        with self._taking:
            return self._states.take(size).view(np.float32).reshape(shape)

    def copy(self, x: Any) -> Any:
        out = self.zeros(x.shape)
        out[...] = x
        return out

    def to_numpy(self, x: Any) -> Any:
        return np.array(x) if x.flags.writeable else x

    # ----------------------------------------------------------------------------------------------------- matrices

    def matrix(self, blocks: Bytes, codec: QuantCodec, shape: Shape) -> Any:
        if codec.name in QTYPES:
            return Matrix.load(self.team, codec, blocks, shape)
        plain = codec.decode(blocks, threads=self.threads)
        return Matrix.load(self.team, _F32, plain.view(np.uint8).reshape(len(plain), -1), shape)

    def adopt(
        self,
        blocks: Bytes,
        codec: QuantCodec,
        shape: Shape,
        checked: Callable[[int, int], None],
        *,
        mapped: bool = False,
        later: bool = False,
    ) -> Any:
        """See `hf2q.backends.weights.Adopts`."""
        if codec.name in QTYPES:
            matrix = Matrix.load(self.team, codec, blocks, shape, checked=checked, mapped=mapped, later=later)
            if matrix.in_file is not None:
                self._linear.in_file.append(matrix)
                if mapped and self.team.threads > 1:
                    self.team.paging.ask(blocks)
            return matrix
        checked(0, len(blocks))
        return self.matrix(blocks, codec, shape)

    def adopted(self) -> None:
        """See `hf2q.backends.weights.Adopts`."""
        self.team.loading.finish()

    def matrix_bytes(self, codec: QuantCodec, shape: Shape) -> int:
        return Matrix.bytes_of(codec if codec.name in QTYPES else _F32, shape)

    def embedding(self, ids: Any, table: Any) -> Any:
        return self._linear.rows(ids, table).reshape(*ids.shape, table.columns)

    def linear(self, x: Any, weight: Any) -> Any:
        (out,) = self._linear.matmul(x, weight)
        if out.size > READ_ONLY:
            out.flags.writeable = False
        return out

    def linears(self, x: Any, weights: Sequence[Any]) -> tuple[Any, ...]:
        return self._linear.matmul(x, *weights)

    def grouped_linear(self, x: Any, weight: Any) -> Any:
        batch, tokens, groups, _ = x.shape
        which = np.broadcast_to(np.arange(groups), (batch * tokens, groups))
        (out,) = self._linear.selected(x.reshape(batch * tokens, groups, -1), which, weight)
        return out.reshape(batch, tokens, groups, -1)

    def moe(
        self,
        x: Any,
        experts: Any,
        weights: Any,
        gate_up: Sequence[Any],
        down: Any,
        activation: Callable[[Any, Any], Any],
    ) -> Any:
        batch, tokens, width = x.shape
        which = experts.reshape(batch * tokens, -1)
        outs = self._linear.selected(x.reshape(-1, width), which, *gate_up)
        gate, up = outs if len(outs) == 2 else np.split(outs[0], 2, axis=-1)
        (each,) = self._linear.selected(activation(gate, up), which, down)  # (BT,K,C)
        return np.einsum("nk,nkc->nc", weights.reshape(which.shape), each).reshape(batch, tokens, -1)

    # -------------------------------------------------------------------------------------------------- elementwise

    def exp(self, x: Any) -> Any:
        return self._each("exp", x)

    def sigmoid(self, x: Any) -> Any:
        return self._each("sigmoid", x)

    def silu(self, x: Any) -> Any:
        return self._each("silu", x)

    def gelu(self, x: Any) -> Any:
        return self._each("gelu", x)

    def gelu_tanh(self, x: Any) -> Any:
        return self._each("gelu_tanh", x)

    def swiglu(self, gate: Any, up: Any) -> Any:
        return self._each("swiglu", gate, up)

    def geglu(self, gate: Any, up: Any) -> Any:
        return self._each("geglu", gate, up)

    # ------------------------------------------------------------------------------------------- over the last axis

    def rms_norm(self, x: Any, weight: Any, eps: float) -> Any:
        return self._rows.norm(rms_rows, x, weight, None, eps)

    def layer_norm(self, x: Any, weight: Any, bias: Any, eps: float) -> Any:
        return self._rows.norm(layer_rows, x, weight, bias, eps)

    def l2_norm(self, x: Any, eps: float) -> Any:
        return self._rows.norm(l2_rows, x, None, None, eps)

    def softmax(self, x: Any) -> Any:
        return self._choose.softmax(x)

    def top_k(self, x: Any, k: int) -> tuple[Any, Any]:
        return self._choose.top_k(x, k) if 0 < k <= min(MOST_BEST, x.shape[-1]) else super().top_k(x, k)

    def top_k_mask(self, x: Any, k: int) -> Any:
        return self._choose.top_k_mask(x, k) if k > 0 else super().top_k_mask(x, k)

    def sinkhorn(self, x: Any, iterations: int, eps: float) -> Any:
        return self._choose.sinkhorn(x, iterations, eps)

    # -------------------------------------------------------------------------------------------------- over tokens

    def rope(self, x: Any, cos: Any, sin: Any, *, pairs: bool = False) -> Any:
        return self._rows.rope(x, cos, sin, pairs)

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
        if not self._attention.fits(q, keys, values):
            return super().attention(q, keys, values, scale, causal=causal, window=window, sinks=sinks, masks=masks)
        return self._attention(q, keys, values, scale, causal, window, sinks, masks)

    def conv1d_causal(self, x: Any, weight: Any, states: Sequence[Any]) -> tuple[Any, list[Any]]:
        return self._recurrent.conv1d_causal(x, weight, states)

    def gated_delta(
        self, q: Any, k: Any, v: Any, decay: Any, beta: Any, states: Sequence[Any]
    ) -> tuple[Any, list[Any]]:
        if q.shape[-1] % 2 or v.shape[-1] % 32:
            return super().gated_delta(q, k, v, decay, beta, states)
        return self._recurrent.gated_delta(q, k, v, decay, beta, states)

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
        if not self._delta_net.fits(x.shape[-1], states[0][1]):
            return super().delta_net(x, conv, a, dt, alpha, beta, states, eps)
        return self._delta_net(x, conv, a, dt, alpha, beta, states, eps)

    def gated_rms_norm(self, x: Any, weight: Any, eps: float, gate: Any) -> Any:
        return self._rows.norm(gated_rows, x, weight, np.ascontiguousarray(gate, np.float32), eps)

    def attention_layer(self, x: Any, weights: Any, rotation: tuple[Any, Any], parts: Sequence[Any]) -> Any:
        outs = []
        for piece in self._slices(x):
            part, turns = x[:, piece], (rotation[0][:, piece], rotation[1][:, piece])
            layer = self._attention_layer if AttentionLayer.fits(part, weights) else super().attention_layer
            outs.append(layer(part, weights, turns, parts))
        return joined(outs)

    def delta_layer(self, x: Any, weights: Any, states: Sequence[Any]) -> tuple[Any, list[Any]]:
        outs, after = [], list(states)
        for piece in self._slices(x):
            part = x[:, piece]
            if self._delta_layer.fits(part, weights, after[0][1]):
                out, after = self._delta_layer(part, weights, after)
            else:
                after = self._delta_net.waiting(after) if part.shape[1] == 1 else after
                out, after = super().delta_layer(part, weights, after)
            outs.append(out)
        return joined(outs), after

    def gated_ffn(self, x: Any, norm: Any, eps: float, gate: Any, up: Any, down: Any) -> Any:
        flat, outs = x.reshape(1, -1, x.shape[-1]), []  # no token knows of another here
        for piece in self._slices(flat):
            part = flat[:, piece]
            layer = self._ffn if chained(part.shape[1]) else super().gated_ffn
            outs.append(layer(part, norm, eps, gate, up, down))
        return joined(outs).reshape(x.shape)

    def _slices(self, x: Any) -> list[slice]:
        """Which tokens of x (B, T, C) go through a layer together."""
        return [slice(0, x.shape[1])] if self._linear.tiles else slices(x.shape[0], x.shape[1])


def joined(outs: list[Any]) -> Any:
    """What a layer gave for slices of the tokens (B, T, C)."""
    return outs[0] if len(outs) == 1 else np.concatenate(outs, 1)


_F32 = QuantCodec(
    name="F32",
    ggml_type=0,
    block_size=1,
    type_size=4,
    encoder="hf2q.formats.floats:encode_f32",
    decoder="hf2q.formats.floats:decode_f32",
)
