"""Weights as MLX computes with them: quantized where its affine form holds exactly the file's numbers, else float32.

On an NVIDIA GPU, blocks stay as they are wherever `hf2q.backends.mlx.cuda` can read them.

Scales and biases stay float32. A Q4_K scale is a product of a half and a 6-bit integer, which neither float16 nor
bfloat16 can hold; with float32, and products taken in float32, each weight is the number that ggml decodes.
16-bit weights are widened to float32 once: MLX would otherwise widen them in each product, as activations are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from hf2q.backends.mlx.cuda import BlockMatrix, holds
from hf2q.backends.mlx.pack import pack
from hf2q.codec import QuantCodec
from hf2q.types import Shape, resolve

if TYPE_CHECKING:
    from hf2q.types import Bytes

GROUP = 32
"""Weights that share a scale, in every affine form that a codec offers."""

PIECE = 1 << 22
"""Weights repacked at a time, so that loading needs little memory beyond the result."""


class DenseMatrix:
    """float32 (out, in) or (E, out, in)."""

    quantized = False

    def __init__(self, transposed: Any) -> None:
        """From (in, out) or (E, in, out), which is what products need."""
        self.shape: Shape = (*transposed.shape[:-2], transposed.shape[-1], transposed.shape[-2])
        self.nbytes: int = transposed.nbytes
        self.parts = ("dense", transposed)
        self._transposed = transposed

    def rows(self, ids: Any) -> Any:
        """ids (...) -> (..., in)."""
        return mx.swapaxes(self._transposed, -1, -2)[ids]

    def times(self, x: Any) -> Any:
        """(..., in) -> (..., out)."""
        return x @ self._transposed

    def gather_times(self, x: Any, experts: Any) -> Any:
        """x (..., 1, in) with expert indices (...) -> (..., 1, out)."""
        return mx.gather_mm(x, self._transposed, rhs_indices=experts)


class AffineMatrix:
    """Codes of a few bits in groups of 32, w = scale · code + bias: (out, in) or (E, out, in)."""

    quantized = True

    def __init__(self, codes: Any, scales: Any, biases: Any, bits: int) -> None:
        self.shape: Shape = (*scales.shape[:-1], scales.shape[-1] * GROUP)
        self.nbytes: int = codes.nbytes + scales.nbytes + biases.nbytes
        self.parts = ("affine", codes, scales, biases, bits)
        self._arrays = (codes, scales, biases)
        self._bits = bits

    def rows(self, ids: Any) -> Any:
        """ids (...) -> (..., in)."""
        codes, scales, biases = (part[ids] for part in self._arrays)
        return mx.dequantize(codes, scales, biases, group_size=GROUP, bits=self._bits)

    def times(self, x: Any) -> Any:
        """(..., in) -> (..., out)."""
        codes, scales, biases = self._arrays
        return mx.quantized_matmul(x, codes, scales, biases, transpose=True, group_size=GROUP, bits=self._bits)

    def gather_times(self, x: Any, experts: Any) -> Any:
        """x (..., 1, in) with expert indices (...) -> (..., 1, out)."""
        codes, scales, biases = self._arrays
        return mx.gather_qmm(
            x, codes, scales, biases, rhs_indices=experts, transpose=True, group_size=GROUP, bits=self._bits
        )


Matrix = DenseMatrix | AffineMatrix | BlockMatrix
KINDS: dict[str, Callable[..., Matrix]] = {"dense": DenseMatrix, "affine": AffineMatrix, "block": BlockMatrix}
"""By the first of a matrix's `parts`; the others are what it is made from."""


def whole(parts: Sequence[Any]) -> Matrix:
    """The matrix of `parts`, which are arrays and constants and so can be arguments of what MLX traces."""
    kind, *rest = parts
    return KINDS[kind](*rest)


def parts_of(weights: Sequence[Any]) -> tuple[Any, ...]:
    """The `parts` of those that are matrices; what is none stays as it is."""
    return tuple(weight.parts if isinstance(weight, Matrix) else weight for weight in weights)


def reads_blocks(qtype: str, columns: int) -> bool:
    """Whether blocks of this type stay as they are: on CUDA, where there is code that reads them."""
    return mx.cuda.is_available() and mx.default_device().type == mx.gpu and holds(qtype, columns)


def bytes_of(codec: QuantCodec, shape: Shape) -> int:
    """About what `from_blocks` takes: codes as many as in the file at most, and two float32 for each group."""
    elements = prod(shape)
    if reads_blocks(codec.name, shape[-1]):
        return prod(shape[:-1]) * codec.row_bytes(shape[-1])
    if not codec.affine:
        return 4 * elements
    return prod(shape[:-1]) * codec.row_bytes(shape[-1]) + elements // GROUP * 8


def from_blocks(blocks: Bytes, codec: QuantCodec, shape: Shape, threads: int) -> Matrix:
    """The matrix of a file's blocks: uint8 (rows, bytes), rows the product of shape[:-1]."""
    if reads_blocks(codec.name, shape[-1]):
        return BlockMatrix(mx.array(np.ascontiguousarray(blocks)), codec.name, shape)
    rows, columns = blocks.shape[0], shape[-1]
    step = max(1, PIECE // columns)
    spans = [(start, min(start + step, rows)) for start in range(0, rows, step)]
    if not codec.affine:
        values = np.empty((rows, columns), np.float32)
        for start, stop in spans:
            values[start:stop] = codec.decode(blocks[start:stop], threads=threads)
        transposed = mx.swapaxes(mx.array(values.reshape(shape)), -1, -2)
        mx.eval(transposed)
        return DenseMatrix(transposed)
    repack = cast("Callable[[Bytes], tuple[Any, Any, Any, int]]", resolve(codec.affine))
    scales = np.empty((rows, columns // GROUP), np.float32)
    biases = np.empty_like(scales)
    words = np.empty((rows, 0), np.uint32)
    bits = 0
    for start, stop in spans:
        codes, scales[start:stop], biases[start:stop], bits = repack(np.ascontiguousarray(blocks[start:stop]))
        if start == 0:
            words = np.empty((rows, columns * bits // 32), np.uint32)
        words[start:stop] = pack(codes, bits)

    def shaped(part: NDArray[Any]) -> Any:
        return mx.array(part.reshape(*shape[:-1], -1))

    return AffineMatrix(shaped(words), shaped(scales), shaped(biases), bits)
