"""`BlockMatrix`: a weight kept as the file's blocks on an NVIDIA GPU, and the kernels that multiply with it.

Products with few rows are bound by reading weights, so the kernel reads blocks as they are: 4.5 bits a weight for Q4_K
where MLX's affine form with float32 scales takes 6, and any type that MLX cannot hold. With many rows the weights are
expanded once, a slice at a time, and MLX multiplies. Sums are float32, over inputs in an order of the kernel's.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import mlx.core as mx

from hf2q.backends.mlx.cuda_types import HEADER, TYPES
from hf2q.types import Shape

AT_ONCE = 4
"""Rows of activations that a launch multiplies with: more of them wait for registers."""

FEW = 8
"""Rows up to which blocks are read by the kernel; with more it is faster to expand them."""

WARPS = 8
"""Of a thread block."""

SLICE = 1 << 26
"""Weights that are expanded at a time: 256 MB."""

# one warp computes ROWS outputs of COUNT activations: each lane reads eight weights at a time of each of the ROWS, and
# what it reads of the activations serves all of them
TIMES = """
const long IN = sizes[0], OUT = sizes[1], ROW_BYTES = sizes[2];
int lane = threadIdx.x & 31;
long first = ((long)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5)) * ROWS;
if (first >= OUT) return;
long pair = blockIdx.y;
const uint8_t* base = blocks + (long)experts[pair] * OUT * ROW_BYTES;
const float* input = x + pair * COUNT * IN;
float sums[ROWS][COUNT] = {};
#pragma unroll 2
for (long at = 8 * lane; at < IN; at += 256) {
    float w[ROWS][8];
    for (int r = 0; r < ROWS; r++) {
        long row = first + r < OUT ? first + r : OUT - 1;
        read(base + row * ROW_BYTES + at / WEIGHTS * BYTES, at % WEIGHTS / 8, w[r]);
    }
    for (int n = 0; n < COUNT; n++) {
        float4 a = *(const float4*)(input + n * IN + at), c = *(const float4*)(input + n * IN + at + 4);
        float v[8] = {a.x, a.y, a.z, a.w, c.x, c.y, c.z, c.w};
        for (int r = 0; r < ROWS; r++)
            for (int k = 0; k < 8; k++) sums[r][n] = fmaf(w[r][k], v[k], sums[r][n]);
    }
}
for (int r = 0; r < ROWS; r++)
    for (int n = 0; n < COUNT; n++) {
        float sum = sums[r][n];
        for (int half = 16; half; half >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, half);
        if (lane == 0 && first + r < OUT) y[(pair * COUNT + n) * OUT + first + r] = sum;
    }
"""

EXPAND = """
long at = 8 * ((long)blockIdx.x * blockDim.x + threadIdx.x);
if (at >= sizes[0]) return;
float w[8];
read(blocks + at / WEIGHTS * BYTES, at % WEIGHTS / 8, w);
for (int k = 0; k < 8; k++) values[at + k] = w[k];
"""


@cache
def _kernel(qtype: str, body: str) -> Any:
    """The kernel `body` over blocks of a type; MLX compiles it when it is first used."""
    kind = TYPES[qtype]
    header = (
        f"constexpr int WEIGHTS = {kind.weights}, BYTES = {kind.bytes};\n{HEADER}\n"
        f"__device__ __forceinline__ void read(const uint8_t* b, int i, float* w) {{{kind.read}}}\n"
    )
    if body == "times":
        return mx.fast.cuda_kernel(
            name=f"hf2q_times_{qtype.lower()}",
            input_names=["blocks", "x", "experts", "sizes"],
            output_names=["y"],
            source=TIMES,
            header=header,
        )
    return mx.fast.cuda_kernel(
        name=f"hf2q_expand_{qtype.lower()}",
        input_names=["blocks", "sizes"],
        output_names=["values"],
        source=EXPAND,
        header=header,
    )


def holds(qtype: str, columns: int) -> bool:
    """Whether a matrix of this type and width can stay as it is."""
    return qtype in TYPES and columns % TYPES[qtype].weights == 0


class BlockMatrix:
    """(out, in) or (E, out, in), as blocks uint8 (rows, bytes)."""

    quantized = True

    def __init__(self, blocks: Any, qtype: str, shape: Shape, first: Any = None, sizes: Any = None) -> None:
        """`first` and `sizes` are small arrays of the kernel's, taken over from a matrix of the same blocks."""
        self.shape = tuple(shape)
        self.nbytes: int = blocks.nbytes
        self._blocks = blocks
        self._qtype = qtype
        self._first = mx.array([0], mx.int32) if first is None else first
        self._sizes = mx.array([shape[-1], shape[-2], blocks.shape[-1]], mx.int64) if sizes is None else sizes
        self.parts = ("block", blocks, qtype, self.shape, self._first, self._sizes)

    def rows(self, ids: Any) -> Any:
        """ids (...) -> (..., in)."""
        taken = self._blocks[ids.reshape(-1)]
        return self._expanded(taken).reshape(*ids.shape, self.shape[-1])

    def times(self, x: Any) -> Any:
        """(..., in) -> (..., out)."""
        outputs, inputs = self.shape[-2:]
        count = prod(x.shape[:-1])
        if 0 < count <= FEW:
            rows = x.reshape(count, inputs)
            parts = [rows[start : start + AT_ONCE] for start in range(0, count, AT_ONCE)]
            found = [self._times(part, self._first, 1, part.shape[0]).reshape(-1, outputs) for part in parts]
            return (found[0] if len(found) == 1 else mx.concatenate(found)).reshape(*x.shape[:-1], outputs)
        step = max(1, SLICE // inputs)
        parts = [
            x @ self._expanded(self._blocks[start : start + step]).T  # (..., step)
            for start in range(0, outputs, step)
        ]
        return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=-1)

    def gather_times(self, x: Any, experts: Any) -> Any:
        """x (..., 1, in) with expert indices (...) -> (..., 1, out)."""
        outputs, inputs = self.shape[-2:]
        pairs = prod(experts.shape)
        wide = mx.broadcast_to(x, (*experts.shape, 1, inputs))
        found = self._times(wide, experts.reshape(-1).astype(mx.int32), pairs, 1)
        return found.reshape(*experts.shape, 1, outputs)

    def _times(self, x: Any, experts: Any, pairs: int, count: int) -> Any:
        outputs = self.shape[-2]
        rows = 2 if outputs >= 2048 else 1
        blocks = -(-outputs // (WARPS * rows))
        return _kernel(self._qtype, "times")(
            inputs=[self._blocks, x.astype(mx.float32), experts, self._sizes],
            template=[("COUNT", count), ("ROWS", rows)],
            grid=(blocks * 32 * WARPS, pairs, 1),
            threadgroup=(32 * WARPS, 1, 1),
            output_shapes=[(pairs * count * outputs,)],
            output_dtypes=[mx.float32],
        )[0]

    def _expanded(self, blocks: Any) -> Any:
        """Blocks (R, bytes) -> float32 (R, in)."""
        total = blocks.shape[0] * self.shape[-1]
        threads = -(-total // 8)
        return _kernel(self._qtype, "expand")(
            inputs=[blocks, mx.array([total], mx.int64)],
            grid=(-(-threads // 256) * 256, 1, 1),
            threadgroup=(256, 1, 1),
            output_shapes=[(blocks.shape[0], self.shape[-1])],
            output_dtypes=[mx.float32],
        )[0]
