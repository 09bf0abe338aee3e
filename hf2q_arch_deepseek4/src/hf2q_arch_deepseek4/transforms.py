"""How tensors change on their way into GGUF. Each function is a `hf2q.types.Transform`, named by the catalog.

Sources: llama.cpp, conversion/deepseek.py, `DeepseekV4Model` (`generate_extra_tensors`); for packed experts
transformers, conversion_mapping.py (``deepseek_v4``): w1 and w3 of each expert are joined, w1 first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hf2q import rows
from hf2q.errors import TensorMismatchError
from hf2q.types import HParams, Rows, TensorSpec

if TYPE_CHECKING:
    from hf2q.types import Float32


def down_experts(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """Single experts stacked, packed ones as they are."""
    return inputs[0] if len(inputs[0].shape) == 3 else rows.stack(inputs)


def gate_experts(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """Single experts stacked; of packed ones the first half of each one's rows."""
    return _half(inputs, spec, 0)


def up_experts(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """Single experts stacked; of packed ones the second half of each one's rows."""
    return _half(inputs, spec, 1)


def routing_table(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """Experts of each token id, as they are; when read, TensorMismatchError for a number that is no expert's."""
    table, n_expert = inputs[0], hparams.symbols["n_expert"]

    def read(start: int, stop: int) -> Float32:
        experts = table.read(start, stop)
        wrong = ~((experts >= 0) & (experts < n_expert))
        if wrong.any():
            row, column = (int(place) for place in np.argwhere(wrong)[0])
            raise TensorMismatchError(
                f"{spec.name}: token {start + row} is sent to expert {experts[row, column]:g}, expected 0 to "
                f"{n_expert - 1}",
                hint="the checkpoint is damaged, or config.json belongs to another one",
            )
        return experts

    return rows.View(table.shape, table.dtype, read)


def _half(inputs: Sequence[Rows], spec: TensorSpec, half: int) -> Rows:
    if len(inputs[0].shape) != 3:
        return rows.stack(inputs)
    experts, width, columns = spec.shape
    if inputs[0].shape != (experts, 2 * width, columns):
        raise TensorMismatchError(f"shape {inputs[0].shape}, expected {(experts, 2 * width, columns)}")
    index = np.arange(experts * 2 * width).reshape(experts, 2, width)[:, half].reshape(-1)
    return rows.take_rows(inputs[0], index, spec.shape)
