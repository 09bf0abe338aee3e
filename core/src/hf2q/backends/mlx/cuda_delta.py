"""A gated delta net on an NVIDIA GPU. Between its projections, when decoding: one launch for each row of a batch.

In decoding a layer's state is small and its steps many: convolution, norms, the delta rule, the gated norm. Here a
thread block does all of them for one value head, token by token, with the head's matrix in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np

PARTS = 4
"""Threads that share a column of a head's matrix."""

LARGEST = 128
"""Size of a head, of keys or values."""

CHUNK = 64
"""Rows of a matrix that `unit_lower_inverse` takes at most: two of them fit the memory that a thread block shares."""

# thread (part, column) holds rows part · DK / PARTS and following of its column of the matrix. `known` are the last
# inputs of the convolution, before x; channels are queries (G, DK), keys (G, DK) and values (H, DV)
HEADER = """
__device__ __forceinline__ float over_warp(float sum) {
    for (int half = 16; half; half >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, half);
    return sum;
}
"""

SOURCE = """
constexpr int OWN = DK / PARTS, KEYS = G * DK, CHANNELS = 2 * KEYS + H * DV, THREADS = PARTS * DV;
__shared__ float mixed[2 * DK + DV], sums[PARTS][DV], squares[DV / 32], lengths[2];
const int head = blockIdx.x, group = head % G, tid = threadIdx.x, column = tid % DV, part = tid / DV;
const int tokens = x_shape[1];
const float l2_eps = __int_as_float(L2_EPS), eps = __int_as_float(EPS), scale = rsqrtf((float)DK);
auto channel = [&](int i) {
    return i < DK ? group * DK + i : i < 2 * DK ? KEYS + group * DK + i - DK : 2 * KEYS + head * DV + i - 2 * DK;
};
auto input = [&](int token, int c) {
    return token < 0 ? known[(TAPS - 1 + token) * CHANNELS + c] : x[token * CHANNELS + c];
};
float own[OWN];
#pragma unroll
for (int i = 0; i < OWN; i++) own[i] = state[((long)head * DK + part * OWN + i) * DV + column];
for (int token = 0; token < tokens; token++) {
    for (int i = tid; i < 2 * DK + DV; i += THREADS) {
        int c = channel(i);
        float sum = 0;
        for (int tap = 0; tap < TAPS; tap++)
            sum = fmaf(conv[c * TAPS + tap], input(token - (TAPS - 1) + tap, c), sum);
        mixed[i] = sum / (1 + expf(-sum));
    }
    __syncthreads();
    if (tid < 64) {  // a warp for the query, one for the key
        float sum = 0;
        for (int i = tid & 31; i < DK; i += 32) sum = fmaf(mixed[tid / 32 * DK + i], mixed[tid / 32 * DK + i], sum);
        sum = over_warp(sum);
        if (tid % 32 == 0) lengths[tid / 32] = rsqrtf(sum + l2_eps);
    }
    __syncthreads();
    const float query = lengths[0] * scale, key = lengths[1];
    const float wide = alpha[token * H + head] + dt[head];
    const float keep = expf(a[head] * (fmaxf(wide, 0.0f) + log1pf(expf(-fabsf(wide)))));
    const float rate = 1 / (1 + expf(-beta[token * H + head]));
    const float* q = mixed + part * OWN;
    const float* k = mixed + DK + part * OWN;
    float sum = 0;
    #pragma unroll
    for (int i = 0; i < OWN; i++) {
        own[i] *= keep;
        sum = fmaf(k[i] * key, own[i], sum);
    }
    sums[part][column] = sum;
    __syncthreads();
    float read = 0;
    for (int p = 0; p < PARTS; p++) read += sums[p][column];
    const float error = rate * (mixed[2 * DK + column] - read);
    sum = 0;
    #pragma unroll
    for (int i = 0; i < OWN; i++) {
        own[i] = fmaf(k[i] * key, error, own[i]);
        sum = fmaf(q[i] * query, own[i], sum);
    }
    __syncthreads();
    sums[part][column] = sum;
    __syncthreads();
    float out = 0;
    if (part == 0) {
        for (int p = 0; p < PARTS; p++) out += sums[p][column];
        float square = over_warp(out * out);
        if (column % 32 == 0) squares[column / 32] = square;
    }
    __syncthreads();
    if (part == 0) {
        float mean = 0;
        for (int i = 0; i < DV / 32; i++) mean += squares[i];
        const long at = ((long)token * H + head) * DV + column;
        const float open = gate[at];
        y[at] = out * rsqrtf(mean / DV + eps) * norm[column] * open / (1 + expf(-open));
    }
    __syncthreads();
}
#pragma unroll
for (int i = 0; i < OWN; i++) after[((long)head * DK + part * OWN + i) * DV + column] = own[i];
for (int i = tid; i < 2 * DK + DV; i += THREADS) {
    if (i < 2 * DK && head >= G) continue;  // of the heads that share a key, the first keeps its inputs
    int c = channel(i);
    for (int last = 0; last < TAPS - 1; last++)
        known_after[last * CHANNELS + c] = input(tokens - (TAPS - 1) + last, c);
}
"""


# thread `column` of a block solves for its column of the inverse of one matrix of at most CHUNK rows
INVERSE = """
__shared__ float matrix[CHUNK][CHUNK], solved[CHUNK][CHUNK];
const int size = a_shape[1], column = threadIdx.x;
const long at = (long)blockIdx.x * size * size + column;
for (int row = 0; row < size; row++) matrix[row][column] = a[at + (long)row * size];
__syncthreads();
for (int row = 0; row < size; row++) {
    float sum = row == column;
    for (int i = column; i < row; i++) sum = fmaf(-matrix[row][i], solved[i][column], sum);
    solved[row][column] = sum;
    inverse[at + (long)row * size] = sum;
}
"""


def inverts(size: int) -> bool:
    """Whether `unit_lower_inverse` exists here for matrices of this size."""
    return mx.default_device().type == mx.gpu and mx.cuda.is_available() and size <= CHUNK


@cache
def _inverse() -> Any:
    return mx.fast.cuda_kernel(
        name="hf2q_unit_lower_inverse",
        input_names=["a"],
        output_names=["inverse"],
        source=INVERSE,
        header=f"constexpr int CHUNK = {CHUNK};",
    )


def unit_lower_inverse(a: Any) -> Any:
    """(I + a)⁻¹ for strictly lower triangular a (..., C, C), by substitution."""
    size = a.shape[-1]
    flat = a.reshape(-1, size, size)
    return _inverse()(
        inputs=[flat],
        grid=(flat.shape[0] * size, 1, 1),
        threadgroup=(size, 1, 1),
        output_shapes=[flat.shape],
        output_dtypes=[mx.float32],
    )[0].reshape(a.shape)


def fits(d_k: int, d_v: int, taps: int) -> bool:
    """Whether the kernel exists here for heads of these sizes, and a convolution of so many inputs.

    With values of 256, a block of 1,024 threads has 64 registers for each, but the kernel takes 72 (keys of 128) or 122
    (256, as nvrtc 13.0 compiles it for an H200). Then nothing is launched and no error says so: the numbers are wrong.
    Keys of 256 with values of 128 were right there, with 122 registers of at most 128: too close to rely on.
    """
    here = mx.default_device().type == mx.gpu and mx.cuda.is_available()
    return here and d_k % (8 * PARTS) == 0 and d_v % 32 == 0 and max(d_k, d_v) <= LARGEST and taps > 1


@cache
def _kernel() -> Any:
    return mx.fast.cuda_kernel(
        name="hf2q_delta",
        input_names=["x", "gate", "alpha", "beta", "conv", "a", "dt", "norm", "known", "state"],
        output_names=["y", "known_after", "after"],
        source=SOURCE,
        header=HEADER,
    )


def between(
    x: Any,
    gate: Any,
    alpha: Any,
    beta: Any,
    conv: Any,
    a: Any,
    dt: Any,
    norm: Any,
    states: Sequence[tuple[Any, Any]],
    l2_eps: float,
    eps: float,
) -> tuple[Any, list[tuple[Any, Any]]]:
    """`delta_net`, and `gated_rms_norm` of what it gives: x (B, T, channels), gate (B, T, H · Dv) -> (B, T, H · Dv)."""
    heads, d_k, d_v = states[0][1].shape
    groups = (x.shape[-1] - heads * d_v) // (2 * d_k)
    # eps too: a small array may lie in the host's memory, where reading it takes longer than all the rest
    sizes = {"G": groups, "H": heads, "DK": d_k, "DV": d_v, "TAPS": conv.shape[1], "PARTS": PARTS}
    constants = {**sizes, "L2_EPS": _bits(l2_eps), "EPS": _bits(eps)}
    outs, after = [], []
    for row, (known, state) in enumerate(states):
        mine = [part[row : row + 1] for part in (x, gate, alpha, beta)]
        out, *new = _kernel()(
            inputs=[*mine, conv, a, dt, norm, known, state],
            template=list(constants.items()),
            grid=(heads * d_v * PARTS, 1, 1),
            threadgroup=(d_v * PARTS, 1, 1),
            output_shapes=[mine[1].shape, known.shape, state.shape],
            output_dtypes=[mx.float32] * 3,
        )
        outs.append(out)
        after.append((new[0], new[1]))
    return outs[0] if len(outs) == 1 else mx.concatenate(outs), after


def _bits(value: float) -> int:
    """Those of a float32, as an int32."""
    return int(np.float32(value).view(np.int32))
