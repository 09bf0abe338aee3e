"""What mlx-lm does to the values and the order of a tensor, as lazy rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hf2q import rows
from hf2q.formats.floats import bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16
from hf2q.types import Rows, TensorInfo
from hf2q_writer_mlx.names import Part, changed_shape

if TYPE_CHECKING:
    from hf2q.types import Float32


def changed(source: Rows, tensor: TensorInfo, part: Part) -> Rows:
    """The rows of one part."""
    shape = changed_shape(tensor, part)
    if part.change == "channels_last":  # with one channel a group only the shape changes
        return rows.reshape(source, shape)
    if part.change == "plus_one":
        return rows.elementwise(source, _plus_one(tensor.dtype))
    if part.change in ("first_half", "second_half"):
        both = np.arange(rows.n_rows(source)).reshape(-1, 2, shape[-2])
        return rows.take_rows(source, both[:, int(part.change == "second_half")].reshape(-1), shape)
    return source


def stacked(parts: Sequence[Rows]) -> Rows:
    """Experts on a new first axis."""
    return rows.stack(parts)


def _plus_one(dtype: str) -> Callable[[Float32], Float32]:
    """Adding is done in the type of the checkpoint, before any other."""
    if dtype == "BF16":
        return lambda x: bf16_to_f32(f32_to_bf16(x + np.float32(1)))
    if dtype == "F16":
        return lambda x: f16_to_f32(f32_to_f16(x + np.float32(1)))
    return lambda x: x + np.float32(1)
