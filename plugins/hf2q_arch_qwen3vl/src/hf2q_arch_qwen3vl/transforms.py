"""How tensors change on their way into GGUF. Each function is a `hf2q.types.Transform`, named by a catalog.

Experts: GGUF has one matrix (outputs, inputs) for each, stacked. Published checkpoints have them packed and transposed,
(experts, inputs, outputs), with gate and up side by side. transformers 5 saves (experts, outputs, inputs), which
llama.cpp's converter takes for the other form. Frames: the patch embedding is one convolution over two frames in a
checkpoint, and two convolutions in GGUF.

Sources: llama.cpp, conversion/qwen3vl.py, `Qwen3VLMoeTextModel.modify_tensors` and
`Qwen3VLVisionModel.modify_tensors`; for experts that come one by one conversion/qwen.py, `Qwen2MoeModel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from hf2q import rows
from hf2q.errors import TensorMismatchError
from hf2q.types import HParams, Rows, Shape, TensorSpec
from hf2q_arch_qwen3vl.transposed import transposed

if TYPE_CHECKING:
    from hf2q_arch_qwen3vl.hparams import Qwen3VLHParams


def gate_experts(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """The first half of packed experts' outputs; single experts stacked."""
    return _experts(inputs, spec, hparams, 0, 2)


def up_experts(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """The second half of packed experts' outputs; single experts stacked."""
    return _experts(inputs, spec, hparams, 1, 2)


def down_experts(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """All of packed experts' outputs; single experts stacked."""
    return _experts(inputs, spec, hparams, 0, 1)


def first_frame(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """(width, colours, 2, patch, patch) → (width, colours, patch, patch), the first of the two."""
    return _frame(inputs[0], spec.shape, 0)


def second_frame(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """The second of the two."""
    return _frame(inputs[0], spec.shape, 1)


def _experts(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams, part: int, parts: int) -> Rows:
    """Outputs `part` of `parts` equal ones of every packed expert."""
    source = inputs[0]
    if len(source.shape) != 3:
        return rows.stack(inputs)
    count, height, width = spec.shape
    if cast("Qwen3VLHParams", hparams).transposed:
        _expect(source, (count, width, parts * height))
        return transposed(source, part * height, (part + 1) * height)
    _expect(source, (count, parts * height, width))
    index = np.arange(count * parts * height).reshape(count, parts, height)[:, part].reshape(-1)
    return rows.take_rows(source, index, spec.shape)


def _expect(source: Rows, shape: Shape) -> None:
    if source.shape != shape:
        raise TensorMismatchError(f"shape {source.shape}, expected {shape}")


def _frame(source: Rows, shape: Shape, frame: int) -> Rows:
    width, colours, height, columns = shape
    _expect(source, (width, colours, 2, height, columns))
    index = np.arange(width * colours * 2 * height).reshape(width * colours, 2, height)[:, frame].reshape(-1)
    return rows.take_rows(source, index, shape)
