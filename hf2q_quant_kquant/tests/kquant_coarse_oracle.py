"""Scalar encoders of ternary types, MXFP4, IQ2 and IQ3 types, one sub-block at a time: what kernels must equal.

Written from llama.cpp's ggml-quants.c (quantize_row_*_ref and _impl, iq2xs_init_impl, iq3xs_init_impl) in float32, sums
strictly from left to right. Only the trials of one search, which do not depend on each other, are computed together.
Nothing is shared with the kernels; the points of the grids come from gguf-py there as well.
"""

import math
from functools import cache

import numpy as np
from gguf import quants

f = np.float32
MAGIC = f(12582912.0)
LARGEST = np.finfo(f).max


def running_sum(terms):
    """Left to right along the last axis, from 0."""
    return np.add.accumulate(np.concatenate([np.zeros_like(terms[..., :1]), terms], -1), axis=-1)[..., -1]


def clamped(v, top):
    """Nearest integer, ties to even, wrapped beyond 2**22, then clamped to 0..top."""
    wrapped = ((np.asarray(v, f) + MAGIC).astype(f).view(np.int32) & 0x7FFFFF) - 0x400000
    return np.minimum(np.maximum(wrapped, 0), top)


def half_bytes(x):
    return list(np.float16(x).tobytes())


# ---------------------------------------------------------------------------------------------- ternary, MXFP4


def digits(x):
    """The largest magnitude and round(x / it) + 1, halves away from zero; 1 where the inverse overflows."""
    d = np.max(np.abs(x))
    scaled = x * (f(1) / d if d else f(0))
    return d, [1 if not np.isfinite(v) else 1 + int(np.sign(v)) * math.floor(abs(float(v)) + 0.5) for v in scaled]


def tq2_0(x, w):
    d, t = digits(x)
    return [sum(t[128 * h + 32 * n + m] << 2 * n for n in range(4)) for h in range(2) for m in range(32)] + half_bytes(
        d
    )


def tq1_0(x, w):
    d, t = digits(x)
    out = []
    for start, width, count, rows in ((0, 32, 32, 5), (160, 16, 16, 5), (240, 4, 4, 4)):
        for m in range(count):
            number = 0
            for n in range(5):
                number = 3 * number + (t[start + width * n + m] if n < rows else 0)
            out.append((number * 256 + 242) // 243)
    return out + half_bytes(d)


STEPS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], f)


def mxfp4(x, w):
    largest = float(np.max(np.abs(x)))
    e = max(0, math.floor(f(math.log2(largest))) + 125) if largest > 0 else 0
    step = f(2.0 ** (e - 128))
    codes = np.abs(STEPS * step - x[:, None]).argmin(1)
    return [e] + [int(codes[k] | codes[k + 16] << 4) for k in range(16)]


# ------------------------------------------------------------------------------------------------------- grids


class Points:
    """Points of a grid: odd coordinates, the number of each code, and for every code the points to choose from."""

    def __init__(self, qtype, bits, top, shells):
        source = getattr(quants, qtype)
        source.init_grid()
        values = list(source.grid_map)
        rows = source.grid.reshape(source.grid_shape).tolist()
        self.size, self.bits, self.top = source.grid_shape[1], bits, top
        self.levels = np.array([[values.index(v) for v in row] for row in rows])
        self.numbers = {code: number for number, code in enumerate(self.codes(self.levels).tolist())}
        self.shells = shells
        self.lists = {}

    def codes(self, levels):
        return (levels << self.bits * np.arange(self.size)).sum(-1)

    def near(self, code):
        """Numbers of the points to choose from for a group with this code: itself, or the nearest."""
        if code in self.numbers:
            return [self.numbers[code]]
        if code not in self.lists:
            levels = [code >> self.bits * i & (1 << self.bits) - 1 for i in range(self.size)]
            distance = ((2 * self.levels - 2 * np.array(levels)) ** 2).sum(1)
            reach = np.unique(distance)[: self.shells][-1]
            order = sorted(np.flatnonzero(distance <= reach), key=lambda j: (distance[j], j))
            self.lists[code] = order
        return self.lists[code]

    def rounded(self, x, root, inverse, scale):
        """Levels of trials (t, groups, size) and whether each group was a point; x, root (groups, size)."""
        levels = clamped(f(0.5) * (inverse[:, None, None] * x - f(1)), self.top)
        unique, place = np.unique(self.codes(levels), return_inverse=True)
        lists = [self.near(code) for code in unique.tolist()]
        longest = max(len(one) for one in lists)
        choice = np.array([one + [one[0]] * (longest - len(one)) for one in lists])[place]
        odd = (2 * self.levels[choice] + 1).astype(f)
        d = scale[:, None, None, None] * odd - x[:, None]
        error = running_sum(root[:, None] * d * d)
        best = np.where(error < LARGEST, error, LARGEST).argmin(-1)
        found = np.take_along_axis(choice, best[..., None], -1)[..., 0]
        inside = np.array([code in self.numbers for code in unique.tolist()])[place]
        return np.where(inside[..., None], levels, self.levels[found]), inside


# qtype: bits of a level, greatest level, how many of the smallest distances give points to choose from
GRIDS = {"IQ2_XS": (2, 2, 2), "IQ2_S": (2, 2, 1), "IQ3_XXS": (3, 7, 2), "IQ3_S": (3, 7, 3)}


@cache
def points(qtype):
    return Points(qtype, *GRIDS[qtype])


def search(grid, x, w, step, reach, whole):
    """Scale and point numbers of a sub-block of magnitudes x with weights w (groups, size)."""
    largest = np.max(x)
    root, odd_top = np.sqrt(w), 2 * grid.top + 1
    inverse = (f(odd_top) + np.arange(-reach, reach + 1).astype(f) * f(step)) / largest

    def sums(levels):
        odd = (2 * levels + 1).reshape(-1).astype(f)
        flat = w.reshape(-1)
        return running_sum(flat * x.reshape(-1) * odd), running_sum(flat * odd * odd)

    scale, best = largest / f(odd_top), f(0)
    kept, inside = np.zeros(x.shape, int), np.full(len(x), not whole)
    for levels, point in zip(*grid.rounded(x, root, inverse, f(1) / inverse), strict=True):
        lx, ll = sums(levels)
        if ll > 0 and lx * lx > best * ll:
            scale = lx / ll
            best, kept, inside = scale * lx, levels, point
    if not inside.all() and scale > 0:
        again = grid.rounded(x, root, np.array([f(1) / scale]), np.array([scale]))[0][0]
        kept = again if whole else np.where(inside[:, None], kept, again)
        lx, ll = sums(kept)
        if ll > 0:
            scale = lx / ll
    if not np.isfinite(w).all():
        scale = f(np.nan)  # the reference ends the process where no point has a finite error
    return scale, [grid.numbers[code] for code in grid.codes(kept).tolist()]


def sub_blocks(qtype, x, w, size, step, reach, empty, prepare):
    """Scales (not negative), point numbers and signs (bits) of all sub-blocks; zeros for an empty one."""
    grid, found = points(qtype), []
    for part, weight in zip(x.reshape(-1, size), w.reshape(-1, size), strict=True):
        minus = [bool(v < 0) for v in part]
        values = prepare(np.abs(part), weight, minus)
        shape = (-1, grid.size)
        if empty(np.max(values)):
            found.append((f(0), [0] * (size // grid.size), [False] * size))
            continue
        scale, numbers = search(grid, values.reshape(shape), weight.reshape(shape), step, reach, qtype == "IQ3_S")
        if scale < 0:
            scale, minus = -scale, [not m for m in minus]
        found.append((scale, numbers, minus))
    return zip(*found, strict=True)


def integer_scales(scales, factor):
    """The bytes of d and the four-bit scales."""
    top = f(0)
    for scale in scales:
        top = scale if np.isnan(scale) or scale > top else top
    if top == 0:
        return half_bytes(f(0)), [0] * len(scales)
    d = top / f(31)
    return half_bytes(d * f(factor)), [int(clamped(f(0.5) * (f(1) / d * s - f(1)), 15)) for s in scales]


def bits_of(flags):
    return sum(int(flag) << k for k, flag in enumerate(flags))


def unchanged(x, w, minus):
    return x


def even(x, w, minus):
    """Make the number of signs of every eight weights even: the one whose error counts least is turned."""
    x = x.copy()
    for start in range(0, len(x), 8):
        if sum(minus[start : start + 8]) % 2:
            part = slice(start, start + 8)
            k = start + int((w[part] * x[part] * x[part]).argmin())
            x[k], minus[k] = -x[k], not minus[k]
    return x


def iq3_xxs(x, w):
    scales, numbers, minus = sub_blocks("IQ3_XXS", x, w, 32, 0.2, 15, lambda top: top < f(1e-8), even)
    d, integers = integer_scales(scales, 1.0125)
    words = []
    for scale, flags in zip(integers, minus, strict=True):
        word = sum(bits_of(flags[8 * k : 8 * k + 7]) << 7 * k for k in range(4)) | scale << 28
        words += list(word.to_bytes(4, "little"))
    return d + [n for part in numbers for n in part] + words


def iq3_s(x, w):
    scales, numbers, minus = sub_blocks("IQ3_S", x, w, 32, 0.2, 9, lambda top: top == 0, unchanged)
    d, integers = integer_scales(scales, 1.033)
    flat = [n for part in numbers for n in part]
    high = [bits_of([n >> 8 for n in part]) for part in numbers]
    signs = [byte for flags in minus for byte in bits_of(flags).to_bytes(4, "little")]
    packed = [integers[j] | integers[j + 1] << 4 for j in range(0, 8, 2)]
    return d + [n & 255 for n in flat] + high + signs + packed


def iq2_s(x, w):
    scales, numbers, minus = sub_blocks("IQ2_S", x, w, 16, 0.1, 9, lambda top: top < f(1e-8), unchanged)
    d, integers = integer_scales(scales, 0.9875)
    flat = [n for part in numbers for n in part]
    signs = [byte for flags in minus for byte in bits_of(flags).to_bytes(2, "little")]
    high = [sum(flat[4 * j + k] >> 8 << 2 * k for k in range(4)) for j in range(8)]
    packed = [integers[j] | integers[j + 1] << 4 for j in range(0, 16, 2)]
    return d + [n & 255 for n in flat] + signs + high + packed


def iq2_xs(x, w):
    scales, numbers, minus = sub_blocks("IQ2_XS", x, w, 16, 0.1, 9, lambda top: top < f(1e-15), even)
    d, integers = integer_scales(scales, 1)
    words = []
    for pair, flags in zip(numbers, minus, strict=True):
        for k, number in enumerate(pair):
            words += list((number | bits_of(flags[8 * k : 8 * k + 7]) << 9).to_bytes(2, "little"))
    packed = [integers[j] | integers[j + 1] << 4 for j in range(0, 16, 2)]
    return d + words + packed


# qtype: weights of a block, its encoder, what the double mean square counts in the weights of errors by default (IQ2_XS
# has no default, and takes the mean square itself)
ENCODE = {
    "TQ1_0": (256, tq1_0, None),
    "TQ2_0": (256, tq2_0, None),
    "MXFP4": (32, mxfp4, None),
    "IQ2_XS": (256, iq2_xs, 0),
    "IQ2_S": (256, iq2_s, 0.25),
    "IQ3_S": (256, iq3_s, 0),
    "IQ3_XXS": (256, iq3_xxs, 0),
}


def encode(qtype, x, importance=None):
    """The bytes of x (float32 rows of whole blocks) as uint8 (blocks, bytes per block); importance is one row.

    IQ2_XS must have it; for the other types it may be None.
    """
    size, block, share = ENCODE[qtype]
    out = []
    with np.errstate(all="ignore"):
        for row in np.asarray(x, f).reshape(-1, np.shape(x)[-1]):
            for k in range(0, len(row), size):
                part, w = row[k : k + size], None
                if share is not None:
                    variance = f(1 if qtype == "IQ2_XS" else 2) * running_sum(part * part) / f(256)
                    w = f(share) * variance + part * part if share else part * part
                    if importance is not None:
                        w = importance[k : k + size] * np.sqrt(variance + part * part)
                out.append(block(part, w))
    return np.array(out, np.uint8)
