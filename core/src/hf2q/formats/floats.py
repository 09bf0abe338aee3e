"""Conversions between float32, float16 and bfloat16, and the codec kernels of the three. numpy only.

The rounding of what is written here is the one of `gguf.quants` (F16, BF16) and of ggml (ggml_compute_fp32_to_bf16 in
ggml/src/ggml-impl.h): to nearest, ties to even, overflow to infinity, NaN stays NaN. bfloat16 has no numpy type and
travels as uint16. Conversions take any shape and layout and give new C-contiguous arrays of the same shape.

`encode_*` and `decode_*` are the kernels of core's codecs F32, F16, BF16 and I32, with the signatures that
`hf2q.codec.QuantCodec` asks for: x float32 (rows, columns), data and out uint8 (rows, bytes), all C-contiguous and
checked by the caller. `importance` has no meaning for these types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hf2q.errors import EncodeError

if TYPE_CHECKING:
    from hf2q.types import Bytes, Float32

CHUNK = 1 << 15
"""Elements worked on at a time, so that temporary arrays stay in the processor's cache."""


def bf16_to_f32(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The float32 values of bfloat16 bits; exact."""
    wide = bits.astype(np.uint32, order="C")
    np.left_shift(wide, 16, out=wide)
    return wide.view(np.float32)


def f32_to_bf16(x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bits of the nearest bfloat16; a NaN keeps its sign and high bits and becomes quiet."""
    out = np.empty(x.shape, np.uint16)
    _round_bf16(np.ascontiguousarray(x).reshape(-1), out.reshape(-1))
    return out


def _round_bf16(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint16]) -> None:
    """Both flat and contiguous."""
    all_bits = x.view(np.uint32)
    work = np.empty(min(CHUNK, x.size), np.uint32)
    for start in range(0, x.size, CHUNK):
        bits = all_bits[start : start + CHUNK]
        rounded = work[: bits.size]
        np.right_shift(bits, 16, out=rounded)
        np.bitwise_and(rounded, 1, out=rounded)
        np.add(rounded, 0x7FFF, out=rounded)
        np.add(rounded, bits, out=rounded)
        np.right_shift(rounded, 16, out=rounded)
        part = out[start : start + CHUNK]
        part[...] = rounded
        nan = np.isnan(bits.view(np.float32))
        if nan.any():
            part[nan] = (bits[nan] >> 16) | 0x40


def f16_to_f32(x: npt.NDArray[np.float16]) -> npt.NDArray[np.float32]:
    """The float32 values of float16; exact."""
    return x.astype(np.float32, order="C")


def f32_to_f16(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """The nearest float16; beyond 65504 (from 65520 on) infinity."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return x.astype(np.float16, order="C")


def encode_f32(x: Float32, out: Bytes, importance: Float32 | None) -> None:
    """The weights themselves."""
    out.view(np.float32)[...] = x


def decode_f32(data: Bytes, out: Float32) -> None:
    """The weights themselves."""
    out[...] = data.view(np.float32)


def encode_f16(x: Float32, out: Bytes, importance: Float32 | None) -> None:
    """Rounded as by `f32_to_f16`."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        np.copyto(out.view(np.float16), x, casting="same_kind")


def decode_f16(data: Bytes, out: Float32) -> None:
    """Exact."""
    out[...] = data.view(np.float16)


def encode_bf16(x: Float32, out: Bytes, importance: Float32 | None) -> None:
    """Rounded as by `f32_to_bf16`."""
    _round_bf16(x.reshape(-1), out.view(np.uint16).reshape(-1))


def decode_bf16(data: Bytes, out: Float32) -> None:
    """Exact."""
    np.left_shift(data.view(np.uint16), 16, out=out.view(np.uint32), dtype=np.uint32)


EXACT_INTEGERS = 1 << 24
"""Integers up to this magnitude pass through float32 exactly."""


def encode_i32(x: Float32, out: Bytes, importance: Float32 | None) -> None:
    """Whole numbers as int32. Errors: EncodeError for a value that is none, or that float32 may have rounded."""
    whole = out.view(np.int32)
    np.copyto(whole, np.clip(x, -EXACT_INTEGERS, EXACT_INTEGERS), casting="unsafe")
    wrong = (whole != x) | (np.abs(x) >= EXACT_INTEGERS)
    if wrong.any():
        raise EncodeError(
            f"a table of integers holds {x[wrong][0]}, expected whole numbers below {EXACT_INTEGERS} in magnitude"
        )


def decode_i32(data: Bytes, out: Float32) -> None:
    """As float32; exact below 2^24 in magnitude."""
    out[...] = data.view(np.int32)
