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
    """Recognisable keys and values (1, 2, count, 3) for positions from `start` on."""
    numbers = np.arange(start, start + count, dtype=np.float32)[None, None, :, None]
    keys = numbers + np.array([0.25, 0.5], np.float32)[None, :, None, None] + np.zeros((1, 2, count, 3), np.float32)
    return ops.asarray(keys), ops.asarray(-keys)


def check(ops, got, count):
    keys, values = (ops.to_numpy(part) for part in got)
    wanted = ops.to_numpy(tokens(ops, 0, count)[0])
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
        assert buffer.shape[2] % STEP == 0
        assert length <= buffer.shape[2] <= max(STEP, 2 * length + STEP)


def test_appending_one_by_one_grows_seldom(ops):
    cache, rooms = KVCache(ops), set()
    for position in range(5 * STEP):
        cache.append(*tokens(ops, position, 1))
        rooms |= {buffer.shape[2] for buffer in cache.arrays()}
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
    attention, state = KVCache(ops), StateCache()
    cache = Cache([state, attention])
    attention.append(*tokens(ops, 0, 3))
    state.states = (ops.asarray(np.ones((1, 2), np.float32)),)
    cache.advance(3)
    return cache


def test_recurrent_states_cannot_be_cut_back_but_start_anew(ops):
    cache = hybrid(ops)
    assert not cache.trimmable
    assert len(cache.arrays()) == 3
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
    cache.advance(4)
    cache.trim(1)
    assert (cache.position, attention.length) == (1, 1)
    with pytest.raises(UsageError):
        cache.trim(2)
