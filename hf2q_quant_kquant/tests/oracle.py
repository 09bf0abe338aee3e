"""Scalar encoders, one block at a time: the independent second implementation that the kernels are compared with.

Written from the description of the types (llama.cpp, ggml/src/ggml-quants.c: quantize_row_*_ref and _impl) on the
searches of `kquant_searches.py`. Codes are Python ints, bytes are assembled element by element, nothing is shared with
the kernels.
"""

import numpy as np
from kquant_searches import (
    TINY,
    best_index,
    by_maximum,
    clamped,
    f,
    fit_line,
    fit_numbers,
    fit_positive,
    fit_scale,
    half,
    largest,
    nearest,
    refine_scale,
    running_sum,
)


def half_bytes(x):
    return list(np.float16(x).tobytes())


def truncated_bytes(v):
    """(int8) v of C on x86: toward zero, and 0 where the conversion to int overflows."""
    return [int(np.int8(int(e) & 0xFF if int(e) < 128 else 0)) if np.isfinite(e) else 0 for e in v]


def nibble_pairs(codes):
    return [(int(codes[k]) & 15 | (int(codes[k + 16]) & 15) << 4) for k in range(16)]


def fifth_bits(codes):
    return list(sum((int(code) >> 4 & 1) << k for k, code in enumerate(codes)).to_bytes(4, "little"))


def legacy_codes(x, levels):
    """Scale and codes of Q4_0 (16 levels) and Q5_0 (32): the largest magnitude becomes the lowest code."""
    d = f(largest(x)[1] / f(-levels // 2))
    inverse = f(1) / d if d else f(0)
    return d, [min(levels - 1, c) for c in truncated_bytes(x * inverse + f(levels // 2 + 0.5))]


def lined_codes(x, levels):
    """Scale, minimum and codes of Q4_1 (16 levels) and Q5_1 (32): lowest and highest weight become the end codes."""
    low = np.min(x)
    d = f((np.max(x) - low) / f(levels - 1))
    inverse = f(1) / d if d else f(0)
    return d, low, [min(levels - 1, c) for c in truncated_bytes((x - low) * inverse + f(0.5))]


def q8_0(x, w):
    d = f(np.max(np.abs(x)) / f(127))
    scaled = x * (f(1) / d if d else f(0))
    codes = [0 if not np.isfinite(v) else int(np.sign(v)) * int(np.floor(abs(float(v)) + 0.5)) for v in scaled]
    return half_bytes(d) + [c & 255 for c in codes]


def q4_0(x, w):
    d, codes = legacy_codes(x, 16) if w is None else fit_scale(x, 8, w)
    return half_bytes(d) + nibble_pairs(codes)


def q4_1(x, w):
    if w is None:
        d, low, codes = lined_codes(x, 16)
    else:
        d, minimum, codes = fit_line(x, w, 15, -0.9, 0.05, 36)
        low = -minimum
    return half_bytes(d) + half_bytes(low) + nibble_pairs(codes)


def q5_0(x, w):
    d, codes = legacy_codes(x, 32) if w is None else fit_scale(x, 16, w)
    return half_bytes(d) + fifth_bits(codes) + nibble_pairs(codes)


def q5_1(x, w):
    if w is None:
        d, low, codes = lined_codes(x, 32)
    else:
        d, minimum, codes = fit_line(x, w, 31, -0.9, 0.05, 36)
        low = -minimum
    return half_bytes(d) + half_bytes(low) + fifth_bits(codes) + nibble_pairs(codes)


def bit_pairs(codes):
    """64 bytes: weights i, i + 32, i + 64 and i + 96 of a half share one."""
    out = [0] * 64
    for i, code in enumerate(codes):
        out[32 * (i // 128) + i % 32] |= (int(code) & 3) << 2 * (i % 128 // 32)
    return out


def recoded(group, low, step, levels, searched):
    """Codes for the scale and minimum as a decoder will see them; those of the search where the scale is zero."""
    return clamped((group + low) / step, 0, levels) if step != 0 else searched


def q2_k(x, w):
    groups, found = x.reshape(16, 16), []
    for j, group in enumerate(groups):
        if w is None:
            found.append(fit_line(group, np.abs(group), 3, -0.5, 0.1, 15, absolute=True))
        else:
            found.append(fit_line(group, w.reshape(16, 16)[j], 3, -0.9, 0.05, 36))
    scales, minimums = [s for s, _, _ in found], [m for _, m, _ in found]
    if w is None:
        (d, ls), (dmin, lm) = by_maximum(scales, 15), by_maximum(minimums, 15)
    else:
        sums = [running_sum(group) for group in w.reshape(16, 16)]
        (d, ls), (dmin, lm) = fit_positive(scales, sums, 15), fit_positive(minimums, sums, 15)
    packed = [(s | m << 4) & 255 for s, m in zip(ls, lm, strict=True)]
    codes = []
    for group, (_, _, searched), byte in zip(groups, found, packed, strict=True):
        codes += list(recoded(group, half(dmin) * f(byte >> 4), half(d) * f(byte & 15), 3, searched))
    return packed + bit_pairs(codes) + half_bytes(d) + half_bytes(dmin)


def q3_k(x, w):
    groups = x.reshape(16, 16)
    if w is None:
        found = [refine_scale(group) for group in groups]
        most = largest([s for s, _ in found])[1]
        inverse = f(-32) / most
        d = f(1) / inverse if most else f(0)
        # the reference keeps the integer in a signed byte before it clamps it
        wrapped = [(int(nearest(inverse * s)) + 128) % 256 - 128 for s, _ in found]
        scales = [min(31, max(-32, s)) + 32 for s in wrapped] if most else [0] * 16
    else:
        found = [fit_scale(group, 4, w.reshape(16, 16)[j]) for j, group in enumerate(groups)]
        sums = np.array([running_sum(group) for group in w.reshape(16, 16)])
        d, scales = fit_scale(np.array([s for s, _ in found]), 32, sums)
    codes = []
    for group, (_, searched), s in zip(groups, found, scales, strict=True):
        step = half(d) * f(int(s) - 32)
        codes += [int(c) for c in (clamped(group / step, -4, 3) + 4 if step != 0 else searched)]
    third = [sum((codes[32 * j + k] >> 2) << j for j in range(8)) for k in range(32)]
    packed = [0] * 12
    for j, s in enumerate(int(s) for s in scales):
        packed[j % 8] |= (s & 15) << 4 * (j // 8)
        packed[8 + j % 4] |= (s >> 4) << 2 * (j // 4)
    return third + bit_pairs(codes) + packed + half_bytes(d)


def six_bit_bytes(scales, minimums):
    out = [0] * 12
    for j in range(4):
        out[j] = scales[j] | scales[j + 4] >> 4 << 6
        out[4 + j] = minimums[j] | minimums[j + 4] >> 4 << 6
        out[8 + j] = scales[j + 4] & 15 | (minimums[j + 4] & 15) << 4
    return [byte & 255 for byte in out]


def six_bits_of(data):
    """get_scale_min_k4: scales and minimums from the 12 bytes."""
    scales = [data[j] & 63 for j in range(4)] + [data[8 + j] & 15 | data[j] >> 6 << 4 for j in range(4)]
    minimums = [data[4 + j] & 63 for j in range(4)] + [data[8 + j] >> 4 | data[4 + j] >> 6 << 4 for j in range(4)]
    return scales, minimums


def q45_k(x, w, levels, rmin, steps):
    """Head and codes of Q4_K and Q5_K."""
    groups, found = x.reshape(8, 32), []
    for j, group in enumerate(groups):
        if w is None:
            mean = np.sqrt(running_sum(group * group) / f(32))
            found.append(fit_line(group, mean + np.abs(group), levels, rmin, 0.1, steps))
        else:
            found.append(fit_line(group, w.reshape(8, 32)[j], levels, -0.9, 0.05, 36))
    scales, minimums = [s for s, _, _ in found], [m for _, m, _ in found]
    if w is None:
        (d, ls), (dmin, lm) = by_maximum(scales, 63), by_maximum(minimums, 63)
    else:
        sums = [running_sum(group) for group in w.reshape(8, 32)]
        (d, ls), (dmin, lm) = fit_positive(scales, sums, 63), fit_positive(minimums, sums, 63)
    if w is None or levels == 31:
        ls, lm = [min(63, s) for s in ls], [min(63, m) for m in lm]
    packed = six_bit_bytes(ls, lm)
    codes = [
        recoded(group, half(dmin) * f(m), half(d) * f(s), levels, searched)
        for group, (_, _, searched), s, m in zip(groups, found, *six_bits_of(packed), strict=True)
    ]
    return half_bytes(d) + half_bytes(dmin) + packed, codes


def low_halves(codes):
    return [
        int(a) & 15 | (int(b) & 15) << 4 for j in range(0, 8, 2) for a, b in zip(codes[j], codes[j + 1], strict=True)
    ]


def q4_k(x, w):
    head, codes = q45_k(x, w, 15, -1, 20)
    return head + low_halves(codes)


def q5_k(x, w):
    head, codes = q45_k(x, w, 31, -0.5, 15)
    fifth = [sum((int(codes[j][k]) >> 4) << j for j in range(8)) for k in range(32)]
    return head + fifth + low_halves(codes)


def q6_k(x, w):
    groups = x.reshape(16, 16)
    found = [
        fit_scale(group, 32, group * group if w is None else w.reshape(16, 16)[j]) for j, group in enumerate(groups)
    ]
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


def numbered(x, scale):
    return nibble_pairs([best_index(v) for v in (f(1) / scale if scale else f(0)) * x])


def iq4_nl(x, w):
    d = fit_numbers(x, x * x if w is None else w)
    return half_bytes(d) + numbered(x, d)


def iq4_xs(x, w):
    groups = x.reshape(8, 32)
    scales = [fit_numbers(g, g * g if w is None else w.reshape(8, 32)[j]) for j, g in enumerate(groups)]
    d = -largest(scales)[1] / f(32)
    inverse = f(1) / d if d else f(0)
    integers = [int(clamped(inverse * s, -32, 31)) for s in scales]
    high = sum((s + 32 >> 4) << 2 * j for j, s in enumerate(integers))
    low = [(integers[j] + 32) & 15 | ((integers[j + 1] + 32) & 15) << 4 for j in range(0, 8, 2)]
    codes = [byte for g, s in zip(groups, integers, strict=True) for byte in numbered(g, d * f(s))]
    return half_bytes(d) + list(high.to_bytes(2, "little")) + low + codes


# qtype: weights of a block, its encoder, the variance in the weight of an error from a sum of squares and their number;
# legacy types sum over the row, the others over the block
ENCODE = {
    "Q8_0": (32, q8_0, None),
    "Q4_0": (32, q4_0, lambda square, n: square / f(n)),
    "Q4_1": (32, q4_1, lambda square, n: square / f(n)),
    "Q5_0": (32, q5_0, lambda square, n: square / f(n)),
    "Q5_1": (32, q5_1, lambda square, n: square / f(n)),
    "Q2_K": (256, q2_k, lambda square, n: square / f(n)),
    "Q3_K": (256, q3_k, lambda square, n: f(2) * square / f(n)),
    "Q4_K": (256, q4_k, lambda square, n: f(2) * square / f(n)),
    "Q5_K": (256, q5_k, lambda square, n: f(2) * square / f(n)),
    "Q6_K": (256, q6_k, None),
    "IQ4_NL": (32, iq4_nl, lambda square, n: square * f(2 / n)),
    "IQ4_XS": (256, iq4_xs, lambda square, n: square * f(2 / n)),
}
BY_ROW = ("Q4_0", "Q4_1", "Q5_0", "Q5_1")


def weights(qtype, row, k, importance):
    """What the errors of the block at k count: importance, times sqrt(variance + x * x) in most types."""
    size, _, variance = ENCODE[qtype]
    block, q = row[k : k + size], importance[k : k + size]
    if variance is None:
        return q
    among = row if qtype in BY_ROW else block
    return q * np.sqrt(variance(running_sum(among * among), len(among)) + block * block)


def encode(qtype, x, importance=None):
    """The bytes of x (float32 rows of whole blocks) as uint8 (blocks, bytes per block); importance is one row."""
    size, block, _ = ENCODE[qtype]
    out = []
    with np.errstate(all="ignore"):
        for row in np.asarray(x, f).reshape(-1, np.shape(x)[-1]):
            for k in range(0, len(row), size):
                w = None if importance is None else weights(qtype, row, k, importance)
                out.append(block(row[k : k + size], w))
    return np.array(out, np.uint8)
