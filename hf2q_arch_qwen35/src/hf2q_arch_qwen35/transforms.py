"""How tensors change on their way into GGUF. Each function is a `hf2q.types.Transform`, named by the catalog.

Value heads of linear attention: a checkpoint groups them by key head (head g·r + j is the j-th of the r value heads of
key head g); GGUF has them tiled (head j·H_k + g), so that repeating the key heads as a whole pairs them up. Arithmetic
is done in the checkpoint's own precision where that is float16, as the converter does it.

Sources: llama.cpp, conversion/qwen.py, `_LinearAttentionVReorderBase`, `Qwen3NextModel` and `Qwen2MoeModel`,
`modify_tensors`; for the fused layout transformers, models/qwen3_next/modeling_qwen3_next.py,
`fix_query_key_value_ordering`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hf2q import rows
from hf2q.errors import TensorMismatchError
from hf2q.formats.floats import f16_to_f32, f32_to_f16
from hf2q.rows import Index
from hf2q.types import HParams, Rows, TensorSpec
from hf2q_arch_qwen35.exponential import exp

if TYPE_CHECKING:
    from hf2q.types import Float32


def plus_one(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """Weights centred on zero become factors."""
    return _arithmetic(inputs[0], lambda x: x + np.float32(1))


def attn_qkv(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """Rows q and k as they are, rows v with their heads tiled."""
    heads = _Heads(hparams)
    if _is_fused(inputs[0], spec, heads.fused_rows):
        return rows.take_rows(inputs[0], np.concatenate([heads.fused(0), heads.fused(1), heads.fused(2)]), spec.shape)
    return _tile_tail(inputs[0], heads)


def attn_gate(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """Rows z with their heads tiled."""
    heads = _Heads(hparams)
    if _is_fused(inputs[0], spec, heads.fused_rows):
        return rows.take_rows(inputs[0], heads.fused(3), spec.shape)
    return rows.gather_rows(inputs[0], heads.tiled(heads.d_v)) if heads.grouped else inputs[0]


def ssm_beta(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """One row for each value head, tiled."""
    return _per_head(inputs[0], spec, hparams, 0)


def ssm_alpha(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """One row for each value head, tiled."""
    return _per_head(inputs[0], spec, hparams, 1)


def ssm_a(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """-exp(A_log) of each value head, tiled."""
    return _arithmetic(ssm_dt(inputs, spec, hparams), lambda x: -exp(x))


def ssm_dt(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """One value for each value head, tiled."""
    heads = _Heads(hparams)
    return rows.gather_columns(inputs[0], heads.tiled(1)) if heads.grouped else inputs[0]


def ssm_conv1d(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """(channels, 1, kernel) → (channels, kernel), the channels of v with their heads tiled."""
    channels, kernel = spec.shape
    if inputs[0].shape not in ((channels, 1, kernel), (channels, kernel)):
        raise TensorMismatchError(
            f"shape {inputs[0].shape}, expected {(channels, 1, kernel)}",
            hint="MLX stores its convolutions as (channels, kernel, 1), with norms already changed: convert the "
            "original checkpoint",
        )
    return _tile_tail(rows.reshape(inputs[0], spec.shape), _Heads(hparams))


def ssm_out(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """Columns with their heads tiled."""
    heads = _Heads(hparams)
    return rows.gather_columns(inputs[0], heads.tiled(heads.d_v)) if heads.grouped else inputs[0]


def down_experts(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """Packed experts as they are, single ones stacked."""
    return inputs[0] if len(inputs[0].shape) == 3 else rows.stack(inputs)


def gate_experts(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """The first half of each packed expert's rows; single experts stacked."""
    return _half(inputs, spec, 0)


def up_experts(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """The second half of each packed expert's rows; single experts stacked."""
    return _half(inputs, spec, 1)


class _Heads:
    """Numbers and orders of the heads of linear attention."""

    def __init__(self, hparams: HParams) -> None:
        sizes = hparams.symbols
        self.n_k, self.n_v = sizes["n_k_heads"], sizes["n_v_heads"]
        self.d_k, self.d_v = sizes["d_k"], sizes["d_v"]
        self.r = self.n_v // self.n_k
        self.grouped = self.n_v != self.n_k

    @property
    def fused_rows(self) -> int:
        """Rows of the fused q, k, v and z."""
        return 2 * self.n_k * self.d_k + 2 * self.n_v * self.d_v

    def tiled(self, size: int) -> Index:
        """For heads of `size` entries: where each entry of the tiled order is in the grouped one."""
        grouped = np.arange(self.n_v * size).reshape(self.n_k, self.r, size)
        return grouped.transpose(1, 0, 2).reshape(-1)

    def fused(self, part: int) -> Index:
        """Rows of q, k, v or z (0 to 3) in a fused projection of [q | k | v r times | z r times] per key head."""
        sizes = (self.d_k, self.d_k, self.r * self.d_v, self.r * self.d_v)
        start = sum(sizes[:part])
        every = np.arange(self.n_k * sum(sizes)).reshape(self.n_k, sum(sizes))[:, start : start + sizes[part]]
        return every.reshape(-1)[self.tiled(self.d_v)] if part >= 2 else every.reshape(-1)

    def fused_pair(self, part: int) -> Index:
        """Rows of b or a (0 or 1) in a fused projection of [b r times | a r times] per key head."""
        every = np.arange(self.n_v * 2).reshape(self.n_k, 2, self.r)[:, part].reshape(-1)
        return every[self.tiled(1)]


def _per_head(source: Rows, spec: TensorSpec, hparams: HParams, part: int) -> Rows:
    heads = _Heads(hparams)
    if _is_fused(source, spec, 2 * heads.n_v):
        return rows.take_rows(source, heads.fused_pair(part), spec.shape)
    return rows.gather_rows(source, heads.tiled(1)) if heads.grouped else source


def _is_fused(source: Rows, spec: TensorSpec, fused_rows: int) -> bool:
    """Whether the source is the fused projection, which has `fused_rows`, or this tensor alone."""
    fused = (fused_rows, spec.shape[1])
    if source.shape not in (spec.shape, fused):
        raise TensorMismatchError(
            f"shape {source.shape}, expected {spec.shape}, or {fused} where projections are fused"
        )
    return source.shape == fused


def _tile_tail(source: Rows, heads: _Heads) -> Rows:
    """Rows of q | k | v: those of v tiled."""
    before = 2 * heads.d_k * heads.n_k
    if not heads.grouped or rows.n_rows(source) != before + heads.n_v * heads.d_v:
        return source
    return rows.gather_rows(source, np.concatenate([np.arange(before), before + heads.tiled(heads.d_v)]))


def _half(inputs: Sequence[Rows], spec: TensorSpec, half: int) -> Rows:
    if len(inputs[0].shape) != 3:
        return rows.stack(inputs)
    experts, width, columns = spec.shape
    if inputs[0].shape != (experts, 2 * width, columns):
        raise TensorMismatchError(f"shape {inputs[0].shape}, expected {(experts, 2 * width, columns)}")
    index = np.arange(experts * 2 * width).reshape(experts, 2, width)[:, half].reshape(-1)
    return rows.take_rows(inputs[0], index, spec.shape)


def _arithmetic(source: Rows, function: Callable[[Float32], Float32]) -> Rows:
    """`function` of each value, rounded to float16 when the checkpoint is float16."""
    if source.dtype != "F16":
        return rows.elementwise(source, function)
    return rows.elementwise(source, lambda x: f16_to_f32(f32_to_f16(function(x))))
