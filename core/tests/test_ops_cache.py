"""What a sequence remembers: growing buffers, trimming, copies; on both backends."""

import numpy as np
import pytest

from hf2q.backends.cache import STEP, Cache, KVCache, StateCache
from hf2q.backends.reference import ReferenceOps
from hf2q.errors import UsageError


@pytest.fixture(params=["reference", pytest.param("mlx", marks=pytest.mark.mlx)])
def ops(request):
    if request.param == "reference":
        return ReferenceOps(threads=1)
    pytest.importorskip("mlx.core")
    from hf2q.backends.mlx import MlxOps

    return MlxOps(threads=1)


def tokens(ops, start, count):
    """Recognisable keys and values (count, 2, 3) for positions from `start` on."""
    numbers = np.arange(start, start + count, dtype=np.float32)[:, None, None]
    keys = numbers + np.array([0.25, 0.5], np.float32)[:, None] + np.zeros((count, 2, 3), np.float32)
    return ops.asarray(keys), ops.asarray(-keys)


def check(ops, got, count, first=0):
    keys, values = (ops.to_numpy(part) for part in got)
    wanted = ops.to_numpy(tokens(ops, first, count - first)[0]).swapaxes(0, 1)
    assert np.array_equal(keys, wanted)
    assert np.array_equal(values, -wanted)


@pytest.mark.parametrize("pieces", [[1] * 5, [STEP], [STEP - 1, 1, 1], [3, 2 * STEP, 1, STEP, 2]])
def test_keys_and_values_come_back_in_order(ops, pieces):
    cache, length = KVCache(ops), 0
    for count in pieces:
        got = cache.append(*tokens(ops, length, count))
        length += count
        check(ops, got, length)
    for buffer in cache.arrays():
        assert buffer.shape[1] % STEP == 0
        assert length <= buffer.shape[1] <= max(STEP, 2 * length + STEP)


def test_appending_one_by_one_grows_seldom(ops):
    cache, rooms = KVCache(ops), set()
    for position in range(5 * STEP):
        cache.append(*tokens(ops, position, 1))
        rooms |= {buffer.shape[1] for buffer in cache.arrays()}
    assert len(rooms) <= 4


def test_a_trimmed_cache_is_filled_again(ops):
    cache = KVCache(ops)
    cache.append(*tokens(ops, 0, 3))
    cache.append(*tokens(ops, 100, 5))
    cache.trim(3)
    check(ops, cache.append(*tokens(ops, 3, 4)), 7)


def test_a_copy_is_independent(ops):
    cache = KVCache(ops)
    cache.append(*tokens(ops, 0, 3))
    copy = cache.copy()
    cache.append(*tokens(ops, 100, 1))
    check(ops, copy.append(*tokens(ops, 3, 2)), 5)
    copy.trim(2)
    assert cache.length == 4


def hybrid(ops):
    attention, state = KVCache(ops), StateCache(ops)
    cache = Cache([state, attention])
    attention.append(*tokens(ops, 0, 3))
    state.states = (ops.asarray(np.ones((1, 2), np.float32)),)
    cache.position = 3
    return cache


def test_recurrent_states_cannot_be_cut_back_but_start_anew(ops):
    cache = hybrid(ops)
    assert [cache.can_trim(position) for position in range(5)] == [True, False, False, True, False]
    assert len(list(cache.arrays())) == 3
    for position in (2, 4, -1):
        with pytest.raises(UsageError, match=f"cut back to {position}"):
            cache.trim(position)
    assert cache.position == 3
    cache.trim(3)
    copy = cache.copy()
    cache.trim(0)
    assert cache.position == 0
    assert cache.parts[0].states == ()
    assert copy.position == 3
    assert copy.parts[0].states != ()
    assert copy.parts[1].length == 3


def test_attention_only_is_cut_anywhere(ops):
    attention = KVCache(ops)
    cache = Cache([attention])
    attention.append(*tokens(ops, 0, 4))
    cache.position = 4
    cache.trim(1)
    assert (cache.position, attention.length) == (1, 1)
    with pytest.raises(UsageError):
        cache.trim(2)


def test_a_window_forgets_what_no_query_can_see(ops):
    cache, window = KVCache(ops, window=5), 5
    for position in range(4 * STEP):
        got = cache.append(*tokens(ops, position, 1))
        assert cache.first <= max(0, position + 1 - window), "all that the next query sees is kept"
        check(ops, got, position + 1, cache.first)
    assert cache.first > 3 * STEP
    for buffer in cache.arrays():
        assert buffer.shape[1] <= 2 * STEP
    with_chunks = KVCache(ops, window=5)
    for start in range(0, 4 * STEP, 7):
        check(ops, with_chunks.append(*tokens(ops, start, 7)), start + 7, with_chunks.first)


def test_a_window_can_be_cut_back_as_far_as_it_is_filled(ops):
    cache, window = KVCache(ops, window=4), 4
    for position in range(2 * STEP):
        cache.append(*tokens(ops, position, 1))
    assert cache.first > 0
    allowed = [p for p in range(1, 2 * STEP + 1) if cache.can_trim(p)]
    assert allowed == list(range(cache.first + window - 1, 2 * STEP + 1))
    cache.trim(allowed[0])
    check(ops, cache.append(*tokens(ops, allowed[0], 2)), allowed[0] + 2, cache.first)
    cache.trim(0)
    check(ops, cache.append(*tokens(ops, 0, 3)), 3)


@pytest.mark.parametrize("count", [0, 3, 2 * STEP + 1])
def test_what_is_saved_can_be_restored(ops, count):
    attention, window, state = KVCache(ops), KVCache(ops, window=3), StateCache(ops)
    cache = Cache([attention, state, window])
    for position in range(count):
        attention.append(*tokens(ops, position, 1))
        window.append(*tokens(ops, position, 1))
    state.states = (ops.asarray(np.ones((2, 2), np.float32)), ops.asarray(np.zeros(3, np.float32)))
    cache.position = count
    other = Cache([KVCache(ops), StateCache(ops), KVCache(ops, window=3)])
    other.restore(cache.save())
    assert other.position == count
    check(ops, other.parts[0].append(*tokens(ops, count, 2)), count + 2)
    check(ops, other.parts[2].append(*tokens(ops, count, 2)), count + 2, other.parts[2].first)
    assert [ops.to_numpy(array).tolist() for array in other.parts[1].states] == [[[1, 1], [1, 1]], [0, 0, 0]]
