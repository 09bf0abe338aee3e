"""Rows of a sequence against a plain list, for any order of additions and returns."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf2q.backends.reference import ReferenceOps
from hf2q_arch_deepseek4.graph_cache import STEP, BlockCache, Pool, Rows

OPS = ReferenceOps(threads=1)


def vectors(start, count):
    """Vector number n is (n, -n)."""
    numbers = np.arange(start, start + count, dtype=np.float32)
    return np.stack([numbers, -numbers], axis=-1)[:, None]


ACTIONS = st.lists(st.tuples(st.sampled_from(["add", "back", "copy", "save"]), st.integers(0, 150)), max_size=30)


@settings(max_examples=200, deadline=None)
@given(keep=st.none() | st.integers(0, 40), actions=ACTIONS)
def test_rows_are_those_that_came_last(keep, actions):
    rows, length = Rows(OPS, keep), 0
    for action, number in actions:
        if action == "add" and number:
            found = rows.append(vectors(length, number))
            length += number
            assert np.array_equal(found[0], vectors(rows.first, length - rows.first)[:, 0])
            assert rows.first == 0 or (keep is not None and rows.first <= length - number - keep)
            assert keep is None or found.shape[1] <= 2 * keep + STEP + number
        elif action == "back":
            back = max(length - number, 0)
            allowed = keep is None or back == 0 or rows.first == 0 or back - rows.first >= keep
            assert rows.can_trim(back) == allowed
            if allowed:
                rows.trim(back)
                length = back
        elif action == "copy":
            other = rows.copy()
            rows.append(vectors(1000, 3))  # the original goes on, the copy does not see it
            rows = other
        elif action == "save":
            other = Rows(OPS, keep)
            other.restore(rows.save())
            rows = other
        assert rows.length == length
        kept = rows.kept()
        assert (kept is None) == (length == rows.first)
        if kept is not None:
            assert np.array_equal(kept[0], vectors(rows.first, length - rows.first)[:, 0])


def test_room_grows_seldom_and_is_bounded_by_what_is_needed():
    written = []

    class Watched(ReferenceOps):
        def zeros(self, shape, *, grows=False):
            assert grows
            written.append(shape[1])
            return super().zeros(shape, grows=grows)

    rows = Rows(Watched(threads=1), 15)
    for n in range(2000):
        rows.append(vectors(n, 1))
    assert written == [STEP, 2 * STEP]
    written.clear()
    entries = Rows(Watched(threads=1))
    for n in range(2000):
        entries.append(vectors(n, 1))
    assert written[-1] >= 2000
    assert len(written) < 12


@pytest.mark.parametrize("position", [0, 3, 4, 7, 8, 21])
def test_a_block_goes_back_inside_of_entries(position):
    """Entries are as many as are complete at a position; the rows of the next one are still there."""
    part = BlockCache(OPS, 10, [Pool(OPS, 4, True)])
    part.window.append(vectors(0, 22))
    part.pools[0].pending.append(vectors(0, 22))
    part.pools[0].entries.append(vectors(0, 5))
    assert part.can_trim(position)
    part.trim(position)
    assert part.window.length == part.pools[0].pending.length == position
    assert part.pools[0].entries.length == position // 4
    assert len(list(part.arrays())) == 3
    assert set(part.save()) >= {"window.length", "0.pending.first", "0.entries.length"}
