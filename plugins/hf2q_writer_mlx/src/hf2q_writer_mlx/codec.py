"""One codec for each width, group and type of scales: ``MLX4_G64_BF16`` has 4 bits, groups of 64, bfloat16 scales.

They exist in MLX directories only, so they are no codecs of the registry, which holds GGUF's types.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hf2q.codec import QuantCodec, check_finite
from hf2q.errors import ContractError, EncodeError

if TYPE_CHECKING:
    from hf2q.types import Bytes, Float32

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
_NAME = re.compile(r"MLX([234568])_G(32|64|128)_(F32|F16|BF16)")


class AffineCodec(QuantCodec, frozen=True, kw_only=True):
    """`bits` of a code, weights of a group, and `scales`, the type of scale and bias: F32, F16 or BF16."""

    bits: int
    scales: str

    @property
    def group(self) -> int:
        """Weights that share a scale and a bias."""
        return self.block_size

    def encode(
        self,
        x: Float32,
        importance: Float32 | None = None,
        *,
        threads: int | None = None,
        name: str = "",
        first_row: int = 0,
    ) -> Bytes:
        """Rows float32 (rows, columns) as uint8 (rows, `row_bytes`), group after group. There is no use for importance.

        Errors: EncodeError for NaN and infinity, and where the range of a group is beyond the type of its scale.
        """
        import numpy as np

        from hf2q_writer_mlx.affine import pack, quantize, unpack_scales

        what = f"tensor {name!r}" if name else "the array"
        out = np.empty((len(x), self.row_bytes(x.shape[-1])), np.uint8)
        if not out.size:
            return out
        check_finite(x, self.name, what, first_row)
        codes, scales, biases = quantize(x, self.bits, self.group)
        blocks = out.reshape(-1, self.type_size)
        pack(codes, scales, biases, self.bits, self.scales, blocks)
        kept, moved = unpack_scales(blocks, self.scales)
        lost = ~(np.isfinite(kept) & np.isfinite(moved))
        if lost.any():
            row = first_row + int(lost.argmax()) * self.group // x.shape[-1]
            raise EncodeError(
                f"{what} has a group of weights at row {row} whose range {self.scales} scales cannot hold",
                hint="--quant bf16 keeps the weights as they are",
            )
        return out

    def decode(self, data: Bytes, *, threads: int | None = None) -> Float32:
        """Rows uint8 (rows, `row_bytes`) as float32 (rows, columns)."""
        import numpy as np

        from hf2q_writer_mlx.affine import unpack

        codes, scales, biases = unpack(np.ascontiguousarray(data).reshape(-1, self.type_size), self.bits, self.scales)
        values: Float32 = scales[:, None] * codes.astype(np.float32) + biases[:, None]
        return values.reshape(len(data), -1)


def affine_name(bits: int, group: int, scales: str) -> str:
    """The name of a type."""
    return f"MLX{bits}_G{group}_{scales}"


def affine_codec(name: str) -> AffineCodec | None:
    """The codec of this name; None for a name of another form."""
    from hf2q_writer_mlx.affine import group_bytes

    found = _NAME.fullmatch(name)
    if found is None:
        return None
    bits, group, scales = int(found[1]), int(found[2]), found[3]
    return AffineCodec(
        name=name,
        ggml_type=-1,
        block_size=group,
        type_size=group_bytes(bits, group, scales),
        encoder="hf2q_writer_mlx.affine:quantize",
        decoder="hf2q_writer_mlx.affine:unpack",
        source="mlx, mlx/backend/cpu/quantized.cpp",
        bits=bits,
        scales=scales,
    )


def storage_codec(name: str) -> QuantCodec:
    """The codec of any type that a tensor of an MLX directory has. Errors: ContractError for another."""
    found = affine_codec(name)
    if found is not None:
        return found
    if name not in ("F32", "F16", "BF16"):
        raise ContractError(f"no tensor of an MLX directory has the type {name}")
    return QuantCodec(
        name=name,
        ggml_type=-1,
        block_size=1,
        type_size=4 if name == "F32" else 2,
        encoder=f"hf2q.formats.floats:encode_{name.lower()}",
        decoder=f"hf2q.formats.floats:decode_{name.lower()}",
    )
