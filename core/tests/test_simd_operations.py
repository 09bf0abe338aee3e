"""Every primitive against numpy, bit for bit, on this process's lane width (test_simd_widths.py forces the others).

Many operations share a kernel, one row of the output each: compiling is what takes time here.
"""

import numpy as np
import pytest

from hf2q.simd import (
    F32,
    FLOAT,
    I32,
    INT,
    LANES,
    WIDE,
    as_float,
    as_int,
    below,
    bits,
    every,
    first,
    fma,
    highest,
    kernel,
    load,
    load_i8,
    load_u8,
    load_u16,
    lowest,
    lshr,
    numbers,
    prefetch,
    put16,
    put32,
    reads,
    spread,
    spread_u8,
    spread_u16,
    sqrt,
    store,
    store_u8,
    total,
    where,
    writes,
)

F, I = F32(WIDE), I32(WIDE)  # noqa: E741
R = np.random.default_rng(0)
UINT = np.uint32
FLOATS, INTS = reads("float32", 1), reads("int32", 1)


def floats():
    """Two vectors with equal, opposite, zero and infinite lanes among the random ones."""
    x, y = (R.standard_normal(WIDE).astype(np.float32) for _ in range(2))
    x[:6] = [1, 0.0, -0.0, np.inf, -2.5, 3e-40]
    y[:6] = [1, -0.0, 0.0, -np.inf, 2.5, -3e-40]
    return x, y


def integers():
    x, y = (R.integers(-(2**31), 2**31, WIDE).astype(np.int32) for _ in range(2))
    x[:5] = [0, -1, 2**31 - 1, -(2**31), 7]
    y[:5] = [0, 1, 1, -1, 7]
    return x, y


def check(got, want):
    """Rows equal bit for bit; a NaN matches any NaN."""
    for row, (mine, numpys) in enumerate(zip(got, want, strict=True)):
        numpys = np.asarray(numpys).astype(mine.dtype)
        equal = mine.view(UINT) == numpys.view(UINT)
        if mine.dtype == np.float32:
            equal |= np.isnan(mine) & np.isnan(numpys)
        assert equal.all(), (row, mine, numpys)


@kernel(FLOATS, FLOATS, writes("float32"))
def float_operators(x, y, out):
    a, b = load(F, x, 0), load(F, y, 0)
    store(out, 0, a + b)
    store(out, WIDE, a - b)
    store(out, 2 * WIDE, a * b)
    store(out, 3 * WIDE, a / b)
    store(out, 4 * WIDE, -a)
    store(out, 5 * WIDE, abs(a))
    store(out, 6 * WIDE, min(a, b))
    store(out, 7 * WIDE, max(a, b))
    store(out, 8 * WIDE, sqrt(abs(a)) + 1 / b)
    store(out, 9 * WIDE, max(a, 0.5) * 3 - min(2, b))
    c = a
    c += b
    c *= 0.1
    c -= a
    c /= 3
    store(out, 10 * WIDE, c)
    store(out, 11 * WIDE, as_float(as_int(a) ^ as_int(b)))


def test_float_operators():
    x, y = floats()
    out = np.zeros((12, WIDE), np.float32)
    float_operators(x, y, out)
    one, three, tenth = np.float32(1), np.float32(3), np.float32(0.1)
    with np.errstate(all="ignore"):
        smaller, greater = np.where(y < x, y, x), np.where(y > x, y, x)  # the second only if strictly better
        want = [x + y, x - y, x * y, x / y, -x, abs(x), smaller, greater, np.sqrt(abs(x)) + one / y]
        want += [np.maximum(x, np.float32(0.5)) * three - np.where(y < 2, y, np.float32(2))]
        want += [((x + y) * tenth - x) / three, (x.view(UINT) ^ y.view(UINT)).view(np.float32)]
    check(out, want)


@kernel(INTS, INTS, writes("int32"))
def integer_operators(x, y, out):
    a, b = load(I, x, 0), load(I, y, 0)
    store(out, 0, a + b)
    store(out, WIDE, a - b)
    store(out, 2 * WIDE, a * b)
    store(out, 3 * WIDE, (a & b) | 5)
    store(out, 4 * WIDE, a ^ b)
    store(out, 5 * WIDE, a << 3)
    store(out, 6 * WIDE, a >> 5)
    store(out, 7 * WIDE, lshr(a, 7))
    store(out, 8 * WIDE, -a)
    store(out, 9 * WIDE, ~a)
    store(out, 10 * WIDE, abs(b))
    store(out, 11 * WIDE, min(a, b))
    store(out, 12 * WIDE, max(a, b))
    store(out, 13 * WIDE, where(below(a, b), a, b))
    store(out, 14 * WIDE, lshr(a, numbers(I)))
    c = a
    c |= 1
    c &= b
    c ^= 3
    c <<= 1
    c >>= 2
    store(out, 15 * WIDE, c)


def test_integer_operators():
    x, y = integers()
    out = np.zeros((16, WIDE), np.int32)
    integer_operators(x, y, out)
    u, v = x.view(UINT), y.view(UINT)
    with np.errstate(over="ignore"):
        want = [x + y, x - y, x * y, (x & y) | 5, x ^ y, x << 3, x >> 5, (u >> 7).view(np.int32), -x, ~x, abs(y)]
        want += [np.minimum(x, y), np.maximum(x, y), np.minimum(u, v).view(np.int32)]
        want += [(u >> (np.arange(WIDE, dtype=UINT))).view(np.int32), ((((x | 1) & y) ^ 3) << 1) >> 2]
    check(out, want)


@kernel(FLOATS, FLOATS, INTS, INTS, writes("int32"))
def comparisons(x, y, i, j, out):
    a, b, c, d = load(F, x, 0), load(F, y, 0), load(I, i, 0), load(I, j, 0)
    store(out, 0, I(a < b) + I(a <= b) * 2 + I(a > b) * 4 + I(a >= b) * 8 + I(a == b) * 16 + I(a != b) * 32)
    store(out, WIDE, I(c < d) + I(c <= d) * 2 + I(c > d) * 4 + I(c >= d) * 8 + I(c == d) * 16 + I(c != d) * 32)
    store(out, 2 * WIDE, I((a < b) & (c < d)) + 2 * I((a < b) | (c < d)) + 4 * I((a < b) ^ (c < d)) + 8 * I(~(a < b)))
    store(out, 3 * WIDE, where(a < 0, c, d))
    store(out, 4 * WIDE, where(c < d, 7, d))


def test_comparisons_and_masks():
    x, y = floats()
    x[6] = np.nan
    y[7] = np.nan
    i, j = integers()
    out = np.zeros((5, WIDE), np.int32)
    comparisons(x, y, i, j, out)

    def all_six(p, q):
        return sum(np.int32(1 << k) * f for k, f in enumerate([p < q, p <= q, p > q, p >= q, p == q, p != q]))

    p, q = x < y, i < j
    masks = (p & q) + 2 * (p | q) + 4 * (p ^ q) + np.int32(8) * ~p
    check(out, [all_six(x, y), all_six(i, j), masks, np.where(x < 0, i, j), np.where(i < j, 7, j)])


@kernel(FLOATS, INTS, FLOAT, INT, writes("float32"))
def conversions(x, i, scalar, number, out):
    a, c = load(F, x, 0), load(I, i, 0)
    store(out, 0, F(I(a * 100)))
    store(out, WIDE, F(c))
    store(out, 2 * WIDE, F(a > 0))
    store(out, 3 * WIDE, F(scalar))
    store(out, 4 * WIDE, as_float(I(number)))
    store(out, 5 * WIDE, F(number) + scalar)


def test_conversions():
    x = R.standard_normal(WIDE).astype(np.float32)
    i = integers()[0]
    out = np.zeros((6, WIDE), np.float32)
    conversions(x, i, 0.1, 3, out)
    tenth, ones = np.float32(0.1), np.ones(WIDE, np.float32)
    three = np.full(WIDE, 3, np.int32)
    truncated = np.trunc(x * 100) + 0  # an integer has no negative zero
    check(out, [truncated, i, x > 0, tenth * ones, three.view(np.float32), (3 + tenth) * ones])


WORD, LONG = I32(32), I32(64)


@kernel(INTS, writes("int64", 1), writes("float32", 1))
def reductions(x, whole, sums):
    a = load(I, x, 0)
    whole[0] = every(a == a)
    whole[1] = every(a > 0)
    whole[2] = bits(a < 0)
    whole[3] = bits(load(WORD, x, 0) < 0)
    whole[4] = bits(load(LONG, x, 0) < 0)
    whole[5] = first(a == x[WIDE - 1])
    whole[6] = first(load(LONG, x, 0) == -1)
    whole[7] = first(a == 1000)
    sums[0] = total(F(a & 255))
    sums[1], sums[2] = lowest(F(a)), highest(F(a))


def test_reductions():
    x = R.integers(-100, 100, 64).astype(np.int32)
    x[63] = -1
    whole, sums = np.zeros(8, np.int64), np.zeros(3, np.float32)
    reductions(x, whole, sums)

    def word(n):
        return sum(1 << k for k in range(n) if x[k] < 0)

    assert list(whole[:4]) == [1, 0, word(WIDE), word(32)]
    assert whole.view(np.uint64)[4] == word(64)
    assert list(whole[5:]) == [list(x).index(x[WIDE - 1]), list(x).index(-1), 64]
    assert list(sums) == [(x[:WIDE] & 255).sum(), x[:WIDE].min(), x[:WIDE].max()]


@kernel(FLOATS, FLOATS, writes("float32", 1), writes("float32", 1))
def sums_of_products(x, y, plain, fused):
    s = t = F(0)
    for k in range(0, x.size, WIDE):
        s += load(F, x, k) * load(F, y, k)
        t = fma(load(F, x, k), load(F, y, k), t)
    store(plain, 0, s)
    store(fused, 0, t)


def test_nothing_is_contracted_and_fma_is():
    x, y = (R.standard_normal(4096).astype(np.float32) for _ in range(2))
    plain, fused = np.zeros(WIDE, np.float32), np.zeros(WIDE, np.float32)
    sums_of_products(x, y, plain, fused)
    twice, once = np.zeros(WIDE, np.float32), np.zeros(WIDE, np.float32)
    for a, b in zip(x.reshape(-1, WIDE), y.reshape(-1, WIDE), strict=True):
        twice += a * b
        once = (once + a.astype(np.float64) * b).astype(np.float32)
    check([plain], [twice])
    if LANES > 4:  # bare SSE2 has no such instruction
        assert (fused != twice).any()
    np.testing.assert_allclose(fused, once, rtol=1e-4, atol=1e-5)


BYTES, HALVES = reads("uint8", 1), reads("uint16", 1)


@kernel(BYTES, HALVES, INTS, writes("int32"))
def loads(small, middle, large, out):
    store(out, 0, load_u8(I, small, 3))
    store(out, WIDE, load_i8(I, small, 3))
    store(out, 2 * WIDE, load_u16(I, middle, 3))
    store(out, 3 * WIDE, load(I, large, 3))
    store(out, 4 * WIDE, spread_u8(I, small, 5))
    store(out, 5 * WIDE, spread_u16(I, middle, 5))
    store(out, 6 * WIDE, spread(I, large, 5))
    store(out, 7 * WIDE, load(I, small, 1))  # bytes at an odd place, taken as 32-bit elements


def test_loads():
    small = R.integers(0, 256, 4 * WIDE + 8).astype(np.uint8)
    middle = R.integers(0, 65536, WIDE + 8).astype(np.uint16)
    large = integers()[0].repeat(2)
    small[5], middle[5] = 200, 40000
    out = np.zeros((8, WIDE), np.int32)
    loads(small, middle, large, out)
    ones, three = np.ones(WIDE, np.int32), slice(3, 3 + WIDE)
    want = [small[three], small[three].view(np.int8), middle[three], large[three], ones * 200, ones * 40000]
    check(out, [*want, ones * large[5], small[1 : 1 + 4 * WIDE].copy().view(np.int32)])


@kernel(INTS, writes("uint8", 1), INT)
def stores(x, out, address):
    store_u8(out, 1, load(I, x, 0))
    put16(out, WIDE + 1, 0x12345)
    put32(out, WIDE + 3, -2)
    prefetch(x, 1 << 40)
    store(address, 4, load(I, address, 4) + 1)


def test_stores_write_their_bytes_and_no_others():
    x = integers()[0]
    out, memory = np.full(WIDE + 9, 0xA5, np.uint8), np.arange(WIDE + 2, dtype=np.int32)
    stores(x, out, memory.ctypes.data)
    want = [0xA5, *(x & 255), 0x45, 0x23, 0xFE, 0xFF, 0xFF, 0xFF, 0xA5, 0xA5]
    assert list(out) == want
    assert list(memory) == [0, *range(2, WIDE + 2), WIDE + 1]


def test_read_only_and_unaligned_arrays_share_one_compilation():
    x, y = floats()
    out = np.zeros((12, WIDE), np.float32)
    float_operators(x, y, out)
    raw = np.zeros(out.nbytes + 1, np.uint8)
    odd = raw[1:].view(np.float32).reshape(out.shape)
    frozen = np.frombuffer(b"?" + x.tobytes(), np.float32, offset=1)
    assert not odd.flags.aligned
    assert not frozen.flags.writeable
    float_operators(frozen, y, odd)
    assert odd.tobytes() == out.tobytes()


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((12, 2 * WIDE), np.float32)[:, ::2],
        np.zeros((12, WIDE), np.float64),
        np.zeros(12 * WIDE, np.float32),
        np.zeros((12, WIDE), np.float32, order="F"),
    ],
    ids=["strided", "dtype", "dimensions", "column order"],
)
def test_other_arrays_are_refused(wrong):
    x, y = floats()
    with pytest.raises(TypeError, match="kernel float_operators: argument 2 is"):
        float_operators(x, y, wrong)


def test_a_read_only_output_is_refused():
    x, y = floats()
    out = np.zeros((12, WIDE), np.float32)
    out.flags.writeable = False
    with pytest.raises(TypeError, match="kernel float_operators: argument 2 is"):
        float_operators(x, y, out)


def test_a_mask_of_another_length_is_refused_when_compiling():
    half = F32(LANES)

    @kernel(FLOATS, writes("float32", 1))
    def bad(x, out):
        store(out, 0, where(load(half, x, 0) < 0, load(F, x, 0), 0))

    with pytest.raises(Exception, match="a mask of"):
        bad.compile()
