"""The scalar searches behind `oracle.py`: one block at a time, as llama.cpp's ggml-quants.c describes them.

In float32 throughout, with sums strictly from left to right and no fused multiply-add. Slow on purpose: a step here is
a step of the description (make_qx_quants, make_q3_quants, make_qkx2_quants, make_qkx3_quants, make_qp_quants and
quantize_row_iq4_nl_impl). Nothing is shared with the kernels.
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


def largest(values):
    """The value of largest magnitude with its sign; the first one wins."""
    size = most = f(0)
    for v in values:
        if abs(v) > size:
            size, most = abs(v), v
    return size, most


def fit_line(x, w, levels, rmin, rdelta, steps, absolute=False):
    """make_qkx2_quants, make_qkx3_quants: scale, minimum (sign turned) and codes that approximate x."""
    bottom, top = np.min(x), np.max(x)
    weight, moment = running_sum(w[1:], w[0]), running_sum((w * x)[1:], w[0] * x[0])
    bottom = min(bottom, f(0))
    if top == bottom:
        return f(0), f(-bottom), np.zeros(len(x), np.int64)

    def error(scale, low, codes):
        d = scale * codes.astype(f) + low - x
        return running_sum(w * (np.abs(d) if absolute else d * d))

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


def fit_positive(x, w, levels):
    """make_qp_quants: scale and codes (bytes) that approximate numbers which are rarely negative."""
    top = f(0)
    for v in x:
        top = top if top > v else v
    if top < TINY:
        return f(0), [0] * len(x)

    def error(scale, codes):
        total = f(0)
        for v, weight, code in zip(x, w, codes, strict=True):
            d = v - scale * f(code)
            total = total + weight * d * d
        return total

    inverse = f(levels) / top
    best = error(f(1) / inverse, [int(nearest(inverse * v)) & 255 for v in x])
    for step in [*range(-4, 0), *range(1, 5)]:
        trial = (f(0.1) * f(step) + f(levels)) / top
        e = error(f(1) / trial, [min(levels, int(nearest(trial * v))) for v in x])
        if e < best:
            best, inverse = e, trial
    codes = [min(levels, int(nearest(inverse * v))) for v in x]
    lx = ll = f(0)
    for v, weight, code in zip(x, w, codes, strict=True):
        lx, ll = lx + weight * v * f(code), ll + weight * f(code) * f(code)
    codes = [code & 255 for code in codes]
    for _ in range(5):
        changed = False
        for i, (v, weight) in enumerate(zip(x, w, strict=True)):
            p, r = lx - weight * v * f(codes[i]), ll - weight * f(codes[i]) * f(codes[i])
            if not (p > 0 and r > 0):
                continue
            new = min(levels, int(nearest(v * r / p)))
            pn, rn = p + weight * v * f(new), r + weight * f(new) * f(new)
            if new != codes[i] and pn * pn * ll > lx * lx * rn:
                codes[i], lx, ll, changed = new & 255, pn, rn, True
        if not changed:
            break
    return (lx / ll if ll > 0 else f(0)), codes


def by_maximum(x, levels):
    """Scale and codes that give the largest of x the code `levels`."""
    top = max([f(0), *x])
    up = f(levels) / top if top > 0 else f(0)
    return f(top / f(levels)), [int(nearest(up * v)) & 255 for v in x]


def fit_scale(x, levels, w):
    """make_qx_quants with rmse_type 1: scale and codes 0 to 2 * levels - 1 that approximate x symmetrically."""
    size, most = largest(x)
    if size < TINY:
        return f(0), np.zeros(len(x), np.int64)

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


def refine_scale(x):
    """make_q3_quants with 4 levels: a first fit, then codes that move one by one."""
    size, most = largest(x)
    if size < TINY:
        return f(0), np.zeros(16, np.int64)
    w = x * x
    codes = [int(c) for c in clamped(f(-4) / most * x, -4, 3)]
    c = np.array(codes, f)
    lx, ll = running_sum(w * x * c), running_sum(w * c * c)
    for _ in range(5):
        changed = False
        for i in range(16):
            p = lx - w[i] * x[i] * f(codes[i])
            if not p > 0:
                continue
            r = ll - w[i] * f(codes[i]) * f(codes[i])
            new = int(clamped(x[i] * r / p, -4, 3))
            if new == codes[i]:
                continue
            pn, rn = p + w[i] * x[i] * f(new), r + w[i] * f(new) * f(new)
            if rn > 0 and pn * pn * ll > lx * lx * rn:
                codes[i], lx, ll, changed = new, pn, rn, True
        if not changed:
            break
    return (lx / ll if ll > 0 else f(0)), np.array(codes) + 4


NUMBERS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def best_index(v):
    """best_index_int8: bisection, then the nearer of two numbers."""
    if v <= NUMBERS[0]:
        return 0
    if v >= NUMBERS[15]:
        return 15
    low, high = 0, 15
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if v < NUMBERS[middle] else (middle, high)
    return high - 1 if v - f(NUMBERS[high - 1]) < f(NUMBERS[high]) - v else high


def fit_numbers(x, w):
    """The scale that quantize_row_iq4_nl_impl finds for 32 weights."""
    size, most = largest(x)
    if size < TINY:
        return f(0)

    def sums(inverse):
        numbers = np.array([NUMBERS[best_index(v)] for v in inverse * x], f)
        return running_sum(w * numbers * x), running_sum(w * numbers * numbers)

    lx, ll = sums(f(1) / (-most / f(-127)))
    scale = lx / ll if ll > 0 else f(0)
    best = scale * lx
    for step in range(-7, 8):
        lx, ll = sums(f(step - 127) / most)
        if ll > 0 and lx * lx > best * ll:
            scale = lx / ll
            best = scale * lx
    return scale
