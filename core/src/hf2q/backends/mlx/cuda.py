"""`BlockMatrix`: a weight kept as the file's blocks on an NVIDIA GPU, and the kernels that multiply with it.

Products with few rows are bound by reading weights, so the kernel reads blocks as they are: 4.5 bits a weight for Q4_K
where MLX's affine form with float32 scales takes 6, and any type that MLX cannot hold. With many rows the weights are
expanded once, a slice at a time, and MLX multiplies. Sums are float32, over inputs in an order of the kernel's.
"""

from __future__ import annotations

from collections.abc import Sequence
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

TWO_FROM = 2048
"""Outputs of a launch from which on each warp computes two of them."""

WARPS = 8
"""Of a thread block."""

JOINED = 4
"""Matrices that a launch multiplies with."""

SLICE = 1 << 26
"""Weights that are expanded at a time: 256 MB."""

# one warp computes ROWS outputs of COUNT activations: each lane reads eight weights at a time of each of the ROWS, and
# what it reads of the activations serves all of them; what is in `before`, if there is anything, is added
PRODUCTS = """
template <int ROWS, int COUNT>
__device__ __forceinline__ void products(const uint8_t* base, const float* input, const float* before, float* y,
                                         long first, long IN, long OUT, long ROW_BYTES) {
    int lane = threadIdx.x & 31;
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
            long at = n * OUT + first + r;
            if (lane == 0 && first + r < OUT) y[at] = before ? before[at] + sum : sum;
        }
}
"""

# Up to JOINED matrices (E, out, bytes) with the same activations (pairs, COUNT, in). Each has a range of the warps, and
# of y from a multiple of 16 bytes on. A matrix that is not there has two axes instead of three; `experts` and `before`
# have more than one where there are none. All sizes come from shapes, which are passed by value: a small array may lie
# in the host's memory, where reading it takes longer than the product. MLX compiles a kernel whenever a program first
# uses it, which takes seconds: one does for all.
TIMES = """
const long IN = x_shape[2], ROW_BYTES = blocks0_shape[2];
const long outs[] = {blocks0_shape[1], blocks1_ndim == 3 ? blocks1_shape[1] : 0,
                     blocks2_ndim == 3 ? blocks2_shape[1] : 0, blocks3_ndim == 3 ? blocks3_shape[1] : 0};
const long rows = outs[0] + outs[1] + outs[2] + outs[3] >= TWO_FROM ? 2 : 1;
long warp = (long)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), pair = blockIdx.y, OUT = outs[0];
const uint8_t* base = blocks0;
#pragma unroll
for (int m = 1; m < 4; m++) {
    if (warp * rows < OUT) break;
    warp -= (OUT + rows - 1) / rows;
    y += (COUNT * OUT + 3) / 4 * 4;
    OUT = outs[m];
    base = m == 1 ? blocks1 : m == 2 ? blocks2 : blocks3;
}
if (warp * rows >= OUT) return;
if (experts_ndim == 1) base += (long)experts[pair] * OUT * ROW_BYTES;
x += pair * COUNT * IN;
y += pair * COUNT * OUT;
const float* added = before_ndim == 1 ? before : nullptr;
if (rows == 2) products<2, COUNT>(base, x, added, y, 2 * warp, IN, OUT, ROW_BYTES);
else products<1, COUNT>(base, x, added, y, warp, IN, OUT, ROW_BYTES);
"""

EXPAND = """
long at = 8 * ((long)blockIdx.x * blockDim.x + threadIdx.x);
if (at >= (long)blocks_shape[0] * (blocks_shape[1] / BYTES) * WEIGHTS) return;
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
            input_names=[*(f"blocks{i}" for i in range(JOINED)), "x", "before", "experts"],
            output_names=["y"],
            source=TIMES,
            header=f"{header}constexpr int TWO_FROM = {TWO_FROM};\n{PRODUCTS}",
        )
    return mx.fast.cuda_kernel(
        name=f"hf2q_expand_{qtype.lower()}",
        input_names=["blocks"],
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

    def __init__(self, blocks: Any, qtype: str, shape: Shape) -> None:
        self.shape = tuple(shape)
        self.nbytes: int = blocks.nbytes
        self.parts = ("block", blocks, qtype, self.shape)
        self._blocks = blocks
        self._qtype = qtype

    def rows(self, ids: Any) -> Any:
        """ids (...) -> (..., in)."""
        taken = self._blocks[ids.reshape(-1)]
        return self._expanded(taken).reshape(*ids.shape, self.shape[-1])

    def times(self, x: Any) -> Any:
        """(..., in) -> (..., out)."""
        return times_all(x, [self])[0]

    def times_plus(self, x: Any, before: Any) -> Any:
        """(..., in) and what to add (..., out) -> (..., out)."""
        count = prod(x.shape[:-1])
        if not 0 < count <= AT_ONCE:
            return before + self.times(x)
        return _launch([self], x, count, before=before).reshape(*before.shape)

    def gather_times(self, x: Any, experts: Any) -> Any:
        """x (..., 1, in) with expert indices (...) -> (..., 1, out)."""
        outputs, inputs = self.shape[-2:]
        wide = mx.broadcast_to(x, (*experts.shape, 1, inputs))
        found = _launch([self], wide, 1, experts=experts.reshape(-1).astype(mx.int32))
        return found.reshape(*experts.shape, 1, outputs)

    def joins(self, other: BlockMatrix) -> bool:
        """Whether `times_all` can multiply with both at once."""
        return (self._qtype, self.shape[-1]) == (other._qtype, other.shape[-1])

    def expanded_times(self, x: Any) -> Any:
        """`times` by MLX's own product, with a slice of the weights in float32 at a time."""
        outputs, inputs = self.shape[-2:]
        step = max(1, SLICE // inputs)
        parts = [
            x @ self._expanded(self._blocks[start : start + step]).T  # (..., step)
            for start in range(0, outputs, step)
        ]
        return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=-1)

    def _expanded(self, blocks: Any) -> Any:
        """Blocks (R, bytes) -> float32 (R, in)."""
        total = blocks.shape[0] * self.shape[-1]
        threads = -(-total // 8)
        return _kernel(self._qtype, "expand")(
            inputs=[blocks],
            grid=(-(-threads // 256) * 256, 1, 1),
            threadgroup=(256, 1, 1),
            output_shapes=[(blocks.shape[0], self.shape[-1])],
            output_dtypes=[mx.float32],
        )[0]


def times_all(x: Any, matrices: Sequence[BlockMatrix]) -> list[Any]:
    """x (..., in) -> (..., out) for each of several matrices that join: with few rows of x, at once."""
    count, inputs = prod(x.shape[:-1]), x.shape[-1]
    if not 0 < count <= FEW:
        return [matrix.expanded_times(x) for matrix in matrices]
    if count > AT_ONCE:
        rows = x.reshape(count, inputs)
        halves = [times_all(rows[start : start + AT_ONCE], matrices) for start in range(0, count, AT_ONCE)]
        return [mx.concatenate(list(parts)).reshape(*x.shape[:-1], -1) for parts in zip(*halves, strict=True)]
    found: list[Any] = []
    for start in range(0, len(matrices), JOINED):
        some = matrices[start : start + JOINED]
        flat, at = _launch(some, x, count), 0
        for matrix in some:
            outputs = matrix.shape[-2]
            found.append(flat[at : at + count * outputs].reshape(*x.shape[:-1], outputs))
            at += _room(count * outputs)
    return found


def _launch(matrices: Sequence[BlockMatrix], x: Any, count: int, *, before: Any = None, experts: Any = None) -> Any:
    """Products of up to JOINED matrices with `count` rows of x, or of one with each of `experts`; flat, in order."""
    pairs = 1 if experts is None else experts.size
    outputs = [matrix.shape[-2] for matrix in matrices]
    rows = 2 if sum(outputs) >= TWO_FROM else 1
    warps = sum(-(-output // rows) for output in outputs)
    total = pairs * count * outputs[0] if len(outputs) == 1 else sum(_room(count * output) for output in outputs)
    blocks = [matrix._blocks for matrix in matrices]
    x = x.astype(mx.float32).reshape(pairs, count, -1)
    return _kernel(matrices[0]._qtype, "times")(
        inputs=[
            *(part.reshape(-1, output, part.shape[-1]) for part, output in zip(blocks, outputs, strict=True)),
            *blocks[:1] * (JOINED - len(matrices)),
            x,
            x if before is None else before.reshape(-1),
            mx.array([[0]], mx.int32) if experts is None else experts,
        ],
        template=[("COUNT", count)],
        grid=(-(-warps // WARPS) * 32 * WARPS, pairs, 1),
        threadgroup=(32 * WARPS, 1, 1),
        output_shapes=[(total,)],
        output_dtypes=[mx.float32],
    )[0]


def _room(count: int) -> int:
    """What so many numbers take, so that the next ones can be read four at a time."""
    return -(-count // 4) * 4
