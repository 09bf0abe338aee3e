"""Scalar encoders, one block at a time: the independent second implementation that the kernels are compared with.

Written from the description of the search algorithms (llama.cpp, ggml/src/ggml-quants.c: quantize_row_*_ref,
make_qx_quants, make_qkx2_quants), in float32 throughout, with sums strictly from left to right and no fused
multiply-add. Slow on purpose: a step here is a step of the description. Codes are Python ints, bytes are assembled
element by element, nothing is shared with the kernels.
"""

import numpy as np

f = np.float32
MAGIC = f(12582912.0)
TINY = f(1e-15)


def running_sum(terms, start=None):
    """Left to right in float32, from `start` (0 where not given)."""
    first = f(0) if start is None else start
    return np.add.accumulate(np.concatenate([[first], terms]).astype(f), dtype=f)[-1]


def nearest(v):
    """Nearest integer, ties to even, by adding 1.5 * 2**23: out of range it wraps."""
    return ((np.asarray(v, f) + MAGIC).astype(f).view(np.int32) & 0x7FFFFF) - 0x400000


def clamped(v, low, high):
    return np.minimum(np.maximum(nearest(v), low), high)


def half(x):
    return f(np.float16(x))


def half_bytes(x):
    return list(np.float16(x).tobytes())


def largest(values):
    """The value of largest magnitude with its sign; the first one wins."""
    size = most = f(0)
    for v in values:
        if abs(v) > size:
            size, most = abs(v), v
    return size, most


def truncated_bytes(v):
    """(int8) v of C on x86: toward zero, and 0 where the conversion to int overflows."""
    return [int(np.int8(int(e) & 0xFF if int(e) < 128 else 0)) if np.isfinite(e) else 0 for e in v]


def q8_0(x):
    d = f(np.max(np.abs(x)) / f(127))
    scaled = x * (f(1) / d if d else f(0))
    codes = [0 if not np.isfinite(v) else int(np.sign(v)) * int(np.floor(abs(float(v)) + 0.5)) for v in scaled]
    return half_bytes(d) + [c & 255 for c in codes]


def legacy_codes(x, levels):
    """Scale and codes of Q4_0 (16 levels) and Q5_0 (32): the largest magnitude becomes the lowest code."""
    d = f(largest(x)[1] / f(-levels // 2))
    inverse = f(1) / d if d else f(0)
    return d, [min(levels - 1, c) for c in truncated_bytes(x * inverse + f(levels // 2 + 0.5))]


def q4_0(x):
    d, codes = legacy_codes(x, 16)
    return half_bytes(d) + [(codes[k] | codes[k + 16] << 4) & 255 for k in range(16)]


def q5_0(x):
    d, codes = legacy_codes(x, 32)
    fifth = sum((code >> 4 & 1) << k for k, code in enumerate(codes))
    low = [codes[k] & 15 | (codes[k + 16] & 15) << 4 for k in range(16)]
    return half_bytes(d) + list(fifth.to_bytes(4, "little")) + low


def fit_line(x, w, levels, rmin, rdelta, steps):
    """make_qkx2_quants with squared errors: scale, minimum (sign turned) and codes that approximate x."""
    bottom, top = np.min(x), np.max(x)
    weight, moment = running_sum(w[1:], w[0]), running_sum((w * x)[1:], w[0] * x[0])
    bottom = min(bottom, f(0))
    if top == bottom:
        return f(0), f(-bottom), np.zeros(len(x), np.int64)

    def error(scale, low, codes):
        d = scale * codes.astype(f) + low - x
        return running_sum(w * (d * d))

    inverse = f(levels) / (top - bottom)
    scale = f(1) / inverse
    codes = clamped(inverse * (x - bottom), 0, levels)
    best = error(scale, bottom, codes)
    for step in range(steps + 1):
        inverse = (f(rmin) + f(rdelta) * f(step) + f(levels)) / (top - bottom)
        trial = clamped(inverse * (x - bottom), 0, levels)
        wl = w * trial.astype(f)
        sl, sll, slx = running_sum(wl), running_sum(wl * trial.astype(f)), running_sum(wl * x)
        det = weight * sll - sl * sl
        if det > 0:
            s, m = (weight * slx - moment * sl) / det, (sll * moment - sl * slx) / det
            if m > 0:
                s, m = slx / sll, f(0)
            e = error(s, m, trial)
            if e < best:
                best, scale, bottom, codes = e, s, m, trial
    return scale, f(-bottom), codes


def six_bit_bytes(scales, minimums):
    out = [0] * 12
    for j in range(4):
        out[j] = scales[j] | scales[j + 4] >> 4 << 6
        out[4 + j] = minimums[j] | minimums[j + 4] >> 4 << 6
        out[8 + j] = scales[j + 4] & 15 | (minimums[j + 4] & 15) << 4
    return [byte & 255 for byte in out]


def q4_k(x):
    groups = x.reshape(8, 32)
    found = []
    for group in groups:
        mean = np.sqrt(running_sum(group * group) / f(32))
        found.append(fit_line(group, mean + np.abs(group), 15, -1, 0.1, 20))
    scales, minimums = [s for s, _, _ in found], [m for _, m, _ in found]
    top_scale, top_minimum = max([f(0), *scales]), max([f(0), *minimums])
    up = f(63) / top_scale if top_scale > 0 else f(0)
    down = f(63) / top_minimum if top_minimum > 0 else f(0)
    ls = [min(63, int(nearest(up * s)) & 255) for s in scales]
    lm = [min(63, int(nearest(down * m)) & 255) for m in minimums]
    d, dmin = top_scale / f(63), top_minimum / f(63)
    codes = []
    for group, (_, _, searched), s, m in zip(groups, found, ls, lm, strict=True):
        step = half(d) * f(s)
        codes.append(clamped((group + half(dmin) * f(m)) / step, 0, 15) if step != 0 else searched)
    packed = [int(a) | int(b) << 4 for j in range(0, 8, 2) for a, b in zip(codes[j], codes[j + 1], strict=True)]
    return half_bytes(d) + half_bytes(dmin) + six_bit_bytes(ls, lm) + packed


def fit_scale(x, levels):
    """make_qx_quants with rmse_type 1: scale and codes 0 to 2 * levels - 1 that approximate x symmetrically."""
    size, most = largest(x)
    if size < TINY:
        return f(0), np.zeros(len(x), np.int64)
    w = x * x

    def sums(inverse):
        codes = clamped(inverse * x, -levels, levels - 1)
        c = codes.astype(f)
        return codes, running_sum(w * x * c), running_sum(w * c * c)

    codes, lx, ll = sums(f(-levels) / most)
    scale = lx / ll if ll != 0 else f(0)
    best = scale * lx
    for step in [*range(-9, 0), *range(1, 10)]:
        trial, lx, ll = sums(-(f(levels) + f(0.1) * f(step)) / most)
        if ll > 0 and lx * lx > best * ll:
            codes, scale = trial, lx / ll
            best = scale * lx
    return scale, codes + levels


def q6_k(x):
    groups = x.reshape(16, 16)
    found = [fit_scale(group, 32) for group in groups]
    size, most = largest([s for s, _ in found])
    if size < TINY:
        return [0] * 210
    inverse = f(-128) / most
    d = f(1) / inverse
    scales = [min(127, int(nearest(inverse * s))) for s, _ in found]
    codes = []
    for group, (_, searched), s in zip(groups, found, scales, strict=True):
        step = half(d) * f(np.int8(np.uint8(s & 255)))
        codes += [int(c) for c in (clamped(group / step, -32, 31) + 32 if step != 0 else searched)]
    low, high = [0] * 128, [0] * 64
    for i, code in enumerate(codes):
        part, row, column = i // 128, i % 128 // 32, i % 32
        low[64 * part + 32 * (row % 2) + column] |= (code & 15) << (4 * (row // 2))
        high[32 * part + column] |= (code >> 4) << (2 * row)
    return low + high + [s & 255 for s in scales] + half_bytes(d)


ENCODE = {"Q8_0": (32, q8_0), "Q4_0": (32, q4_0), "Q5_0": (32, q5_0), "Q4_K": (256, q4_k), "Q6_K": (256, q6_k)}


def encode(qtype, x):
    """The bytes of x (float32, any multiple of the block size) as uint8 (blocks, bytes per block)."""
    size, block = ENCODE[qtype]
    with np.errstate(all="ignore"):
        return np.array([block(b) for b in np.asarray(x, f).reshape(-1, size)], np.uint8)
