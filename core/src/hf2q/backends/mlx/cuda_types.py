"""How CUDA code reads ggml's blocks: for each qtype a function that gives eight consecutive weights of a block.

Each is the body of ``void read(const uint8_t* b, int i, float* w)``: weights 8·i to 8·i+7 of the block at `b`. Helpers
are in `HEADER`. Layouts as in llama.cpp, ggml/src/ggml-common.h (`block_q4_0` and those after it) and
ggml/src/ggml-quants.c, `dequantize_row_*`; the arithmetic has the same products of the same float32 numbers.
"""

from __future__ import annotations

from hf2q.types import Record


class BlockType(Record, frozen=True, kw_only=True):
    """Weights and bytes of a block, and the code that reads it."""

    weights: int
    bytes: int
    read: str


HEADER = r"""
__device__ __forceinline__ float half_at(const uint8_t* p) {
    return __half2float(__ushort_as_half((unsigned short)(p[0] | p[1] << 8)));
}
// of the K-quants: scale and minimum number j of 12 bytes
__device__ __forceinline__ void scale_min(const uint8_t* q, int j, float& s, float& m) {
    if (j < 4) {
        s = q[j] & 63;
        m = q[j + 4] & 63;
    } else {
        s = (q[j + 4] & 15) | (q[j - 4] >> 6) << 4;
        m = (q[j + 4] >> 4) | (q[j] >> 6) << 4;
    }
}
__device__ const float IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
__device__ const float FP4_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
"""

TYPES = {
    "Q4_0": BlockType(
        weights=32,
        bytes=18,
        read="""
        float d = half_at(b);
        const uint8_t* q = b + 2 + (i & 1) * 8;
        int shift = i >> 1 << 2;
        for (int k = 0; k < 8; k++) w[k] = d * ((q[k] >> shift & 15) - 8);
        """,
    ),
    "Q4_1": BlockType(
        weights=32,
        bytes=20,
        read="""
        float d = half_at(b), m = half_at(b + 2);
        const uint8_t* q = b + 4 + (i & 1) * 8;
        int shift = i >> 1 << 2;
        for (int k = 0; k < 8; k++) w[k] = __fadd_rn(__fmul_rn(d, (float)(q[k] >> shift & 15)), m);
        """,
    ),
    "Q5_0": BlockType(
        weights=32,
        bytes=22,
        read="""
        float d = half_at(b);
        uint32_t high = b[2] | b[3] << 8 | b[4] << 16 | (uint32_t)b[5] << 24;
        const uint8_t* q = b + 6 + (i & 1) * 8;
        int shift = i >> 1 << 2;
        for (int k = 0; k < 8; k++)
            w[k] = d * ((int)((q[k] >> shift & 15) | (high >> (8 * i + k) & 1) << 4) - 16);
        """,
    ),
    "Q5_1": BlockType(
        weights=32,
        bytes=24,
        read="""
        float d = half_at(b), m = half_at(b + 2);
        uint32_t high = b[4] | b[5] << 8 | b[6] << 16 | (uint32_t)b[7] << 24;
        const uint8_t* q = b + 8 + (i & 1) * 8;
        int shift = i >> 1 << 2;
        for (int k = 0; k < 8; k++)
            w[k] = __fadd_rn(__fmul_rn(d, (float)((q[k] >> shift & 15) | (high >> (8 * i + k) & 1) << 4)), m);
        """,
    ),
    "Q8_0": BlockType(
        weights=32,
        bytes=34,
        read="""
        float d = half_at(b);
        const int8_t* q = (const int8_t*)(b + 2) + 8 * i;
        for (int k = 0; k < 8; k++) w[k] = d * q[k];
        """,
    ),
    "IQ4_NL": BlockType(
        weights=32,
        bytes=18,
        read="""
        float d = half_at(b);
        const uint8_t* q = b + 2 + (i & 1) * 8;
        int shift = i >> 1 << 2;
        for (int k = 0; k < 8; k++) w[k] = d * IQ4_VALUES[q[k] >> shift & 15];
        """,
    ),
    "MXFP4": BlockType(
        weights=32,
        bytes=17,
        read="""
        // half of the scale, as the values are doubled: 2^(e - 128)
        uint32_t e = b[0];
        float d = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
        const uint8_t* q = b + 1 + (i & 1) * 8;
        int shift = i >> 1 << 2;
        for (int k = 0; k < 8; k++) w[k] = d * FP4_VALUES[q[k] >> shift & 15];
        """,
    ),
    "Q2_K": BlockType(
        weights=256,
        bytes=84,
        read="""
        float d = half_at(b + 80), m = half_at(b + 82);
        int sub = i >> 1;  // 16 weights
        uint8_t s = b[sub];
        float scale = d * (s & 15), low = m * (s >> 4);
        const uint8_t* q = b + 16 + (i >> 4) * 32 + (i & 3) * 8;
        int shift = (i >> 2 & 3) * 2;
        for (int k = 0; k < 8; k++) w[k] = __fsub_rn(__fmul_rn(scale, (float)(q[k] >> shift & 3)), low);
        """,
    ),
    "Q3_K": BlockType(
        weights=256,
        bytes=110,
        read="""
        int sub = i >> 1;
        const uint8_t* s = b + 96;
        int scale = (sub < 8 ? s[sub] & 15 : s[sub - 8] >> 4) | (s[8 + (sub & 3)] >> 2 * (sub >> 2) & 3) << 4;
        float d = half_at(b + 108) * (scale - 32);
        const uint8_t* q = b + 32 + (i >> 4) * 32 + (i & 3) * 8;
        const uint8_t* high = b + (i & 3) * 8;
        int shift = (i >> 2 & 3) * 2, bit = i >> 2;
        for (int k = 0; k < 8; k++) w[k] = d * ((q[k] >> shift & 3) - (high[k] >> bit & 1 ? 0 : 4));
        """,
    ),
    "Q4_K": BlockType(
        weights=256,
        bytes=144,
        read="""
        float d = half_at(b), m = half_at(b + 2), s, low;
        int sub = i >> 2;  // 32 weights
        scale_min(b + 4, sub, s, low);
        s *= d;
        low *= m;
        uint2 v = *(const uint2*)(b + 16 + (sub >> 1) * 32 + (i & 3) * 8);
        int shift = (sub & 1) * 4;
        for (int k = 0; k < 8; k++) {
            uint32_t q = (k < 4 ? v.x : v.y) >> (8 * (k & 3) + shift) & 15;
            w[k] = __fsub_rn(__fmul_rn(s, (float)q), low);
        }
        """,
    ),
    "Q5_K": BlockType(
        weights=256,
        bytes=176,
        read="""
        float d = half_at(b), m = half_at(b + 2), s, low;
        int sub = i >> 2;
        scale_min(b + 4, sub, s, low);
        s *= d;
        low *= m;
        uint2 h = *(const uint2*)(b + 16 + (i & 3) * 8);
        uint2 v = *(const uint2*)(b + 48 + (sub >> 1) * 32 + (i & 3) * 8);
        int shift = (sub & 1) * 4;
        for (int k = 0; k < 8; k++) {
            uint32_t q = (k < 4 ? v.x : v.y) >> (8 * (k & 3) + shift) & 15;
            q |= ((k < 4 ? h.x : h.y) >> (8 * (k & 3) + sub) & 1) << 4;
            w[k] = __fsub_rn(__fmul_rn(s, (float)q), low);
        }
        """,
    ),
    "Q6_K": BlockType(
        weights=256,
        bytes=210,
        read="""
        int part = i >> 4, quarter = i >> 2 & 3, at = (i & 3) * 8;  // 128 weights, 32 of them, 8 of these
        float d = half_at(b + 208) * ((const int8_t*)b)[192 + part * 8 + quarter * 2 + (at >> 4)];
        const uint8_t* q = b + part * 64 + (quarter & 1) * 32 + at;
        const uint8_t* high = b + 128 + part * 32 + at;
        int shift = (quarter >> 1) * 4, two = quarter * 2;
        for (int k = 0; k < 8; k++) w[k] = d * (((q[k] >> shift & 15) | (high[k] >> two & 3) << 4) - 32);
        """,
    ),
    "IQ4_XS": BlockType(
        weights=256,
        bytes=136,
        read="""
        int sub = i >> 2;
        int scale = (b[4 + (sub >> 1)] >> 4 * (sub & 1) & 15) | ((b[2] | b[3] << 8) >> 2 * sub & 3) << 4;
        float d = half_at(b) * (scale - 32);
        const uint8_t* q = b + 8 + sub * 16 + (i & 1) * 8;
        int shift = (i >> 1 & 1) * 4;
        for (int k = 0; k < 8; k++) w[k] = d * IQ4_VALUES[q[k] >> shift & 15];
        """,
    ),
}
"""qtype -> how its blocks are read."""
