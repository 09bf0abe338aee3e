"""Kernels of the cpu backend that do several ops at once, and those that choose: against the reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from cpu_toys import matrix, normal

from hf2q.backends import composed
from hf2q.backends.cpu.kernels.chain import Chain, Patch
from hf2q.backends.cpu.kernels.pending import MOST, Pending
from hf2q.backends.cpu.native import atomic_add, peek
from hf2q.backends.cpu.ops import READ_ONLY, CpuOps
from hf2q.backends.cpu.team import Work, Works
from hf2q.backends.cpu.teamwork import ARRAYS, DATA, barrier
from hf2q.backends.ops import DeltaWeights
from hf2q.backends.reference import ReferenceOps
from hf2q.simd import INT, kernel

REF = ReferenceOps(threads=1)


@pytest.fixture(scope="module", params=[1, 3])
def cpu(request):
    ops = CpuOps(threads=request.param)
    yield ops
    ops.team.close()


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


@pytest.mark.parametrize("sizes", [(2, 4, 16, 32), (1, 3, 128, 64), (2, 18, 32, 32), (2, 2, 8, 8), (1, 2, 32, 128)])
@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_delta_net(cpu, tokens, sizes):
    inputs, states = net(2, tokens, *sizes)
    wanted, after = REF.delta_net(*inputs, [tuple(map(np.copy, state)) for state in states], 1e-6)
    out, kept = cpu.delta_net(*inputs, [tuple(map(np.copy, state)) for state in states], 1e-6)
    np.testing.assert_allclose(out, wanted, rtol=2e-5, atol=2e-5)
    for ours, theirs in zip(kept, after, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("values", [32, 128])
def test_a_row_of_a_delta_net_is_the_same_alone_and_in_pieces(cpu, values):
    inputs, states = net(3, 6, 2, 4, 32, values)
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


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (8, 1), (3, 20)])
def test_feed_forward_layers_also_after_larger_products(cpu, shape):
    norm, values = normal(64), [normal(160, 64, seed=1), normal(160, 64, seed=2), normal(64, 160, seed=3)]
    x, parts = normal(*shape, 64, seed=4), [0.1 * value for value in values]
    wanted = REF.gated_ffn(x, norm, 1e-6, *(matrix(REF, part) for part in parts))
    weights = [matrix(cpu, part) for part in parts]
    for rows in (1, 40, 400):
        for _ in range(3):
            np.testing.assert_allclose(cpu.gated_ffn(x, norm, 1e-6, *weights), wanted, rtol=2e-5, atol=2e-5)
        cpu.linear(normal(rows, 64), weights[0])
    alone = cpu.gated_ffn(x[:1, :1], norm, 1e-6, *weights)
    assert np.array_equal(alone, cpu.gated_ffn(x, norm, 1e-6, *weights)[:1, :1])


def delta_weights(ops, *, heads=4, groups=2, keys=32, values=128, columns=64):
    channels = 2 * groups * keys + heads * values
    parts = [(channels, columns), (heads * values, columns), (heads, columns), (heads, columns)]
    mixed, gate, beta, alpha = (matrix(ops, 0.2 * normal(*part, seed=k)) for k, part in enumerate(parts))
    return DeltaWeights(
        norm=ops.asarray(normal(columns, seed=5)),
        mixed=mixed,
        gate=gate,
        beta=beta,
        alpha=alpha,
        conv=ops.asarray(normal(channels, 4, seed=6)),
        a=ops.asarray(-np.abs(normal(heads, seed=7))),
        dt=ops.asarray(normal(heads, seed=8)),
        head_norm=ops.asarray(normal(values, seed=9)),
        out=matrix(ops, 0.1 * normal(columns, heads * values, seed=10)),
        eps=1e-6,
        l2_eps=1e-6,
    )


def delta_states(batch, *, heads=4, groups=2, keys=32, values=128):
    channels = 2 * groups * keys + heads * values
    return [(normal(3, channels, seed=20 + k), normal(heads, keys, values, seed=30 + k)) for k in range(batch)]


@pytest.mark.parametrize("values", [128, 96])
@pytest.mark.parametrize("shape", [(1, 1), (8, 1), (2, 7), (1, 40)])
def test_delta_layers_token_by_token_and_in_batches(cpu, shape, values):
    x, reference, weights = (
        normal(*shape, 64, seed=4),
        delta_weights(REF, values=values),
        delta_weights(cpu, values=values),
    )
    wanted, after = REF.delta_layer(x, reference, delta_states(shape[0], values=values))
    for rows in (1, 400):
        out, states = cpu.delta_layer(x, weights, delta_states(shape[0], values=values))
        np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-4)
        same_states(cpu, states, after)
        cpu.linear(normal(rows, 64), weights.mixed)
    row = delta_states(shape[0], values=values)[-1:]
    alone = []
    for t in range(shape[1]):
        one, row = cpu.delta_layer(x[-1:, t : t + 1], weights, row)
        alone.append(one)
    if shape[1] == 1:
        assert np.array_equal(alone[0], out[-1:])
    np.testing.assert_allclose(np.concatenate(alone, 1), out[-1:], rtol=1e-5, atol=1e-5)


def same_states(cpu, states, wanted):
    """Those of the cpu backend, with what still waits folded in, against those of the reference."""
    Pending(cpu.team).settle(states)
    for found, right in zip(states, wanted, strict=True):
        for array, reference_array in zip(found[:2], right, strict=True):
            np.testing.assert_allclose(array, reference_array, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch", [1, 3, 40])
@pytest.mark.parametrize("keys", [32, 128])
def test_updates_of_states_may_wait_for_any_number_of_tokens(cpu, batch, keys):
    """One token at a time, several at once, and again: where updates wait, are folded in, and where none are kept."""
    reference, weights = delta_weights(REF, keys=keys), delta_weights(cpu, keys=keys)
    wanted_states, states = delta_states(batch, keys=keys), delta_states(batch, keys=keys)
    for place, tokens in enumerate([1] * (MOST + 2) + [2, 1, 5, 60] + [1] * (2 * MOST + 1)):
        x = normal(batch, tokens, 64, seed=place)
        wanted, wanted_states = REF.delta_layer(x, reference, wanted_states)
        out, states = cpu.delta_layer(x, weights, states)
        np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-4)
    assert all(len(state) == 3 and state[2][0, 0] > 0 for state in states)
    same_states(cpu, states, wanted_states)


def test_rows_whose_updates_wait_for_different_numbers_of_tokens_are_as_alone(cpu):
    weights = delta_weights(cpu)
    rows = [[row] for row in delta_states(3)]
    for row, ahead in enumerate((0, 3, MOST)):
        for t in range(ahead):
            _, rows[row] = cpu.delta_layer(normal(1, 1, 64, seed=t), weights, rows[row])
    copies = [[tuple(map(np.copy, state)) for state in row] for row in rows]
    together = [state for row in rows for state in row]
    for t in range(MOST + 1):
        x = normal(3, 1, 64, seed=100 + t)
        out, together = cpu.delta_layer(x, weights, together)
        for row in range(3):
            alone, copies[row] = cpu.delta_layer(x[row : row + 1], weights, copies[row])
            assert np.array_equal(alone, out[row : row + 1])


def test_a_gate_that_forgets_everything_leaves_nothing_of_what_waits(cpu):
    reference, weights = delta_weights(REF), delta_weights(cpu)
    zero = np.full(4, -1e9, np.float32)  # e^decay then
    forgetting = [w._replace(a=zero, conv=np.copy(w.conv)) for w in (reference, weights)]  # kernels know w by its conv
    wanted_states, states = delta_states(1), delta_states(1)
    for t in range(2 * MOST + 3):
        theirs, ours = forgetting if t in (4, MOST, MOST + 5) else (reference, weights)
        x = normal(1, 1, 64, seed=t)
        wanted, wanted_states = REF.delta_layer(x, theirs, wanted_states)
        out, states = cpu.delta_layer(x, ours, states)
        np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-4)
    same_states(cpu, states, wanted_states)


@pytest.mark.parametrize("shared", [False, True])
def test_a_chain_survives_the_failure_of_a_stage(cpu, shared):
    out = np.zeros(1, np.int64)
    works = [Work(count, (), shared=True), Work(fail_where_told, (0,), shared=shared), Work(count, (), shared=True)]
    chain = Chain(cpu.team, works, [Patch(0, 0, 0), Patch(2, 0, 0)], None)
    chain.run(id(out))
    assert out[0] == 2 * cpu.threads
    works[1].words[ARRAYS] = 1
    with pytest.raises(RuntimeError, match="chain"):
        chain.run(id(out))
    works[1].words[ARRAYS] = 0
    out[0] = 0
    for _ in range(100):
        chain.run(id(out))
    assert out[0] == 200 * cpu.threads


def test_large_results_leave_without_a_copy_and_cannot_be_changed(cpu):
    weight = matrix(cpu, normal(READ_ONLY + 1, 4))
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
def count(job: int, member: int, team: int) -> None:
    atomic_add(peek(job, 0), 0, 1)
    barrier(team)


@kernel(INT, INT, INT)
def fail_where_told(job: int, member: int, team: int) -> None:
    if peek(job, ARRAYS) and member == 0:
        raise ValueError("on purpose")
    barrier(team)


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


@pytest.mark.parametrize("shape", [(1, 128), (1, 300), (2, 64), (3, 100), (130, 1), (1, 161)])
def test_layers_of_many_tokens_go_through_in_slices(cpu, shape):
    """Whole ones through chains of kernels, the rest op by op: the same as all at once, and as each row alone."""
    x, weights, norm = normal(*shape, 64, seed=3), delta_weights(cpu), normal(64)
    out, states = cpu.delta_layer(x, weights, delta_states(shape[0]))
    wanted, after = composed.delta_layer(cpu, x, weights, delta_states(shape[0]))
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-4)
    same_states(cpu, states, after)
    ffn = [matrix(cpu, 0.1 * normal(*part, seed=k)) for k, part in enumerate([(96, 64), (96, 64), (64, 96)])]
    whole = cpu.gated_ffn(x, norm, 1e-6, *ffn)
    assert np.array_equal(whole, composed.gated_ffn(cpu, x, norm, 1e-6, *ffn))
    assert np.array_equal(whole[-1:, -1:], cpu.gated_ffn(x[-1:, -1:], norm, 1e-6, *ffn))
