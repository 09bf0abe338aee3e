"""Kernels of the cpu backend that do several ops at once, and those that choose: against the reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from hf2q.backends.cpu.ops import READ_ONLY, CpuOps
from hf2q.backends.cpu.team import Work, Works
from hf2q.backends.cpu.teamwork import ARRAYS, DATA
from hf2q.backends.reference import ReferenceOps
from hf2q.codec import QuantCodec
from hf2q.simd import INT, kernel

REF = ReferenceOps(threads=1)


@pytest.fixture(scope="module", params=[1, 3])
def cpu(request):
    ops = CpuOps(threads=request.param)
    yield ops
    ops.team.close()


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def states_of(rows, channels, taps, heads, keys, values):
    return [
        (normal(taps - 1, channels, seed=row), 0.1 * normal(heads, keys, values, seed=9 + row)) for row in range(rows)
    ]


def net(rows, tokens, groups, heads, keys, values, seed=0):
    channels = 2 * groups * keys + heads * values
    x, conv = normal(rows, tokens, channels, seed=seed), 0.5 * normal(channels, 4, seed=1)
    a, dt = -np.exp(normal(heads, seed=2)), normal(heads, seed=3)
    alpha, beta = 4 * normal(rows, tokens, heads, seed=4), normal(rows, tokens, heads, seed=5)
    return (x, conv, a, dt, alpha, beta), states_of(rows, channels, 4, heads, keys, values)


@pytest.mark.parametrize("sizes", [(2, 4, 16, 32), (1, 3, 128, 64), (2, 18, 32, 32), (2, 2, 8, 8)])
@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_delta_net(cpu, tokens, sizes):
    inputs, states = net(2, tokens, *sizes)
    wanted, after = REF.delta_net(*inputs, [tuple(map(np.copy, state)) for state in states], 1e-6)
    out, kept = cpu.delta_net(*inputs, [tuple(map(np.copy, state)) for state in states], 1e-6)
    np.testing.assert_allclose(out, wanted, rtol=2e-5, atol=2e-5)
    for ours, theirs in zip(kept, after, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_a_row_of_a_delta_net_is_the_same_alone_and_in_pieces(cpu):
    inputs, states = net(3, 6, 2, 4, 32, 32)
    x, conv, a, dt, alpha, beta = inputs
    whole, _ = cpu.delta_net(*inputs, [tuple(map(np.copy, state)) for state in states], 1e-6)
    state = [tuple(map(np.copy, states[1]))]
    pieces = []
    for part in (slice(0, 1), slice(1, 4), slice(4, 6)):
        out, state = cpu.delta_net(x[1:2, part], conv, a, dt, alpha[1:2, part], beta[1:2, part], state, 1e-6)
        pieces.append(out)
    assert np.array_equal(np.concatenate(pieces, axis=1), whole[1:2])


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 300), st.integers(1, 70), st.integers(0, 99))
def test_gated_norms(rows, columns, seed):
    cpu = CpuOps(threads=1)
    x, gate, weight = normal(rows, columns, seed=seed), 3 * normal(rows, columns, seed=1), normal(columns, seed=2)
    np.testing.assert_allclose(
        cpu.gated_rms_norm(x, weight, 1e-6, gate), REF.gated_rms_norm(x, weight, 1e-6, gate), rtol=2e-5, atol=2e-5
    )


VALUES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, -3e38, 3e38, 1e-42, -1e-42, np.inf, -np.inf])


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 9), st.data())
def test_the_largest_and_their_mask(rows, data):
    cpu = CpuOps(threads=1)
    columns = data.draw(st.integers(1, 40))
    k = data.draw(st.integers(1, columns))
    flat = data.draw(st.lists(VALUES, min_size=rows * columns, max_size=rows * columns))
    x = np.array(flat, np.float32).reshape(rows, columns)
    for got, wanted in zip(cpu.top_k(x, k), REF.top_k(x, k), strict=True):
        assert np.array_equal(got, wanted)
        assert got.dtype == wanted.dtype
    assert np.array_equal(cpu.top_k_mask(x, k), REF.top_k_mask(x, k))


def test_masks_of_many_numbers(cpu):
    x = np.round(normal(5, 3000, seed=7), 2)  # with equal ones
    for k in (1, 64, 500, 3000, 4000):
        assert np.array_equal(cpu.top_k_mask(x, k), REF.top_k_mask(x, min(k, 3000)))


@pytest.mark.parametrize("shape", [(1, 1), (3, 16), (2, 5, 37), (300, 256)])
def test_softmax(cpu, shape):
    x = 5 * normal(*shape)
    x[..., 0] = -np.inf if shape[-1] > 1 else 0
    np.testing.assert_allclose(cpu.softmax(x), REF.softmax(x), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("shape", "iterations"), [((4, 4), 20), ((2, 3, 4, 4), 20), ((700, 3, 3), 1)])
def test_sinkhorn(cpu, shape, iterations):
    x = 2 * normal(*shape)
    np.testing.assert_allclose(cpu.sinkhorn(x, iterations, 1e-6), REF.sinkhorn(x, iterations, 1e-6), rtol=2e-5)


def test_large_results_leave_without_a_copy_and_cannot_be_changed(cpu):
    f32 = QuantCodec(
        name="F32",
        ggml_type=0,
        block_size=1,
        type_size=4,
        encoder="hf2q.formats.floats:encode_f32",
        decoder="hf2q.formats.floats:decode_f32",
    )
    weight = cpu.matrix(normal(READ_ONLY + 1, 4).view(np.uint8), f32, (READ_ONLY + 1, 4))
    logits = cpu.linear(normal(1, 1, 4), weight)
    assert cpu.to_numpy(logits) is logits
    with pytest.raises(ValueError, match="read-only"):
        logits[0] = 0
    small = cpu.zeros((2, 3))
    assert not np.shares_memory(cpu.to_numpy(small), small)


def test_states_lie_on_memory_of_their_own(cpu):
    a, b = cpu.zeros((16, 128, 128)), cpu.zeros((16, 128, 128))
    a[...] = 1
    c = cpu.copy(a)
    a[...] = 2
    assert not b.any()
    assert (c == 1).all()
    assert a.flags.writeable
    assert a.ctypes.data % 64 == 0


@kernel(INT, INT, INT)
def fail(job: int, member: int, team: int) -> None:
    raise ValueError("on purpose")


@pytest.mark.parametrize("shared", [False, True])
def test_prepared_work_names_the_data_of_arrays_and_reports_failures(cpu, shared):
    work, array = Work(fail, (7,), shared=shared), np.zeros(3, np.float32)
    with pytest.raises(RuntimeError, match="fail"):
        cpu.team.apply(work, id(array), 0, id(array[1:]))
    assert work.words[0] == array.ctypes.data
    assert work.words[1] == 0
    assert work.words[ARRAYS] == 7
    assert object.__basicsize__ == DATA * 8


def test_prepared_work_is_forgotten_when_there_is_too_much():
    works = Works()
    for number in range(5000):
        works.keep(number, Work(fail, (), shared=False))
    assert len(works) < 4097
    assert 4999 in works
