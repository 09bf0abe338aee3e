"""Scratch memory, columns, half precision, dot products, and vectors as ordinary values, against numpy."""

import threading

import numpy as np
import pytest
from numba import njit

from hf2q.simd import (
    F32,
    I32,
    WIDE,
    columns,
    dot,
    from_half,
    inline,
    kernel,
    load,
    load_u16,
    reads,
    scratch,
    store,
    to_half,
    total,
    writes,
)
from hf2q.simd.half import _from_half_integer, _to_half_integer

F, I = F32(WIDE), I32(WIDE)  # noqa: E741
R = np.random.default_rng(1)
FLOATS = reads("float32", 1)


@kernel(reads("uint16", 1), writes("float32", 1), writes("float32", 1))
def halves_to_floats(a, machine, integer):
    for k in range(0, a.size, WIDE):
        store(machine, k, from_half(load_u16(I, a, k)))
        store(integer, k, _from_half_integer(load_u16(I, a, k)))


@kernel(FLOATS, writes("int32", 1), writes("int32", 1))
def floats_to_halves(a, machine, integer):
    for k in range(0, a.size, WIDE):
        store(machine, k, to_half(load(F, a, k)))
        store(integer, k, _to_half_integer(load(F, a, k)))


def test_every_half_reads_as_its_value():
    h = np.arange(65536, dtype=np.uint16)
    want = h.view(np.float16).astype(np.float32)
    ways = [np.zeros(65536, np.float32) for _ in range(2)]
    halves_to_floats(h, *ways)
    real = ~np.isnan(want)
    for got in ways:
        assert (got.view(np.uint32) == want.view(np.uint32))[real].all()
        assert np.isnan(got[~real]).all()


def test_halves_round_to_nearest_even():
    h = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    h = h[np.isfinite(h)]
    up, down = (np.nextafter(h, np.float32(s)) for s in (np.inf, -np.inf))
    between = (h[:-1] + h[1:]) / 2  # ties
    beyond = np.float32([65519.996, 65520, 65536, 1e30, np.inf, -65520, -np.inf, 1e-45, -1e-45, 3e38])
    x = np.concatenate([h, up, down, between, np.nextafter(between, np.float32(np.inf)), beyond])
    x = np.concatenate([x, np.zeros(-x.size % WIDE, np.float32)])
    with np.errstate(over="ignore"):
        want = x.astype(np.float16).view(np.uint16)
    for got in (ways := [np.zeros(x.size, np.int32) for _ in range(2)]):
        assert not got.any()
    floats_to_halves(x, *ways)
    for got in ways:
        assert (got == want).all()


G = I32(16)


@kernel(reads("int32", 1), reads("uint8", 1), reads("int8", 1), writes("int32", 1))
def dots(t, u, s, out):
    store(out, 0, dot(load(G, t, 0), load(G, u, 0), load(G, s, 0)))


def test_dot_is_exact_at_the_extremes():
    for _ in range(200):
        t = R.integers(-(2**31), 2**31, 16).astype(np.int32)
        u = R.choice([0, 1, 127, 128, 255], 64).astype(np.uint8)
        s = R.choice([-128, -127, -1, 0, 127], 64).astype(np.int8)
        out = np.zeros(16, np.int32)
        dots(t, u, s, out)
        assert (out == t + (u.astype(np.int32) * s).reshape(16, 4).sum(1, dtype=np.int32)).all()


@njit
def crossing(n, v, pair, s):
    """Not merged into its caller: a vector, a tuple and a scratch cross a real, recursive call."""
    if n == 0:
        return v, (pair[1], pair[0])
    s[n] = v
    return crossing(n - 1, v + s[n], (pair[1], pair[0] * 2), s)


@inline
def two(v):
    return v + 1, v * 2


@kernel(FLOATS, writes("float32", 1))
def values(a, out):
    s = scratch(F, 5)
    v, w = F(0), (F(1), F(2))
    for k in range(4):
        v, (first, second) = crossing(k, v + load(F, a, 0), w, s)
        w = (second, first) if k & 1 else (first, second)
    p, q = two(v)
    s[0] = p
    s[1] = q
    s[0, 3] = 7.0
    store(out, 0, s[0] + w[0] - w[1])
    store(out, WIDE, s[1])
    out[2 * WIDE] = s[0, 3] + s[1, 0]
    out[2 * WIDE + 1] = total(F(1))


def test_a_part_cannot_be_called_from_python():
    with pytest.raises(TypeError, match="two is a part of kernels"):
        two(1.0)


def test_vectors_are_ordinary_values():
    a = R.integers(-8, 8, WIDE).astype(np.float32)
    out = np.zeros(2 * WIDE + 2, np.float32)
    values(a, out)
    v, w = np.zeros(WIDE, np.float32), (1, 2)
    for k in range(4):
        v, pair = v + a, w
        for _ in range(k):
            v, pair = v + v, (pair[1], pair[0] * 2)
        pair = (pair[1], pair[0])
        w = (pair[1], pair[0]) if k & 1 else pair
    first = v + 1
    first[3] = 7
    assert (out[:WIDE] == first + w[0] - w[1]).all()
    assert (out[WIDE : 2 * WIDE] == v * 2).all()
    assert out[2 * WIDE] == 7 + 2 * v[0]
    assert out[2 * WIDE + 1] == WIDE


@kernel(FLOATS, writes("float32"))
def thirty_two_columns(a, out):
    s = scratch(F, 32)
    columns(s, 32, a, 5, 100, 2, WIDE - 1)
    for k in range(32):
        store(out, k * WIDE, s[k])


def test_columns_put_one_row_in_each_lane():
    a = np.arange(100 * WIDE + 32, dtype=np.float32)
    out = np.zeros((32, WIDE), np.float32)
    thirty_two_columns(a, out)
    rows = np.minimum(2 + np.arange(WIDE), WIDE - 1)  # spare lanes repeat the last row
    assert (out == 5 + 100 * rows + np.arange(32)[:, None]).all()


def test_threads_may_make_the_first_call_together():
    @kernel(FLOATS, writes("float32", 1))
    def doubled(a, out):
        for k in range(0, a.size, WIDE):
            store(out, k, load(F, a, k) * 2)

    a = np.arange(64, dtype=np.float32)
    results, problems = [np.zeros_like(a) for _ in range(8)], []

    def work(out):
        try:
            doubled(a, out)
        except Exception as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(out,)) for out in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert all((out == 2 * a).all() for out in results)


def test_a_kernel_keeps_its_name_and_documentation():
    assert crossing.__doc__
    assert thirty_two_columns.__name__ == "thirty_two_columns"
    with pytest.raises(TypeError):
        thirty_two_columns(np.zeros(4, np.float32))


@kernel(reads("float32", 2), writes("float32", 1))
def reshaped(x, out):
    flat = x.reshape(-1)
    pairs = x.reshape((x.size // 2, 2))
    for k in range(x.size // 2):
        out[2 * k] = flat[2 * k + 1]
        out[2 * k + 1] = pairs[k, 0]


def test_an_array_may_be_reshaped():
    x, out = np.arange(24, dtype=np.float32).reshape(4, 6), np.zeros(24, np.float32)
    reshaped(x, out)
    assert (out.reshape(-1, 2) == x.reshape(-1, 2)[:, ::-1]).all()
