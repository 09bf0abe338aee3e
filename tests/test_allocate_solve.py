"""The allocation of types: best within its budget against brute force, and what cannot be asked for."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf2q.errors import UsageError
from hf2q.quality.allocate import solve as solving
from hf2q.quality.allocate.budget import is_budget, parse_budget
from hf2q.quality.allocate.solve import Option, hull, solve

OPTION = st.builds(Option, nbytes=st.integers(0, 40), error=st.floats(0, 10, allow_subnormal=False))
TABLE = st.lists(st.lists(OPTION, min_size=1, max_size=4), min_size=1, max_size=5)


def by_brute_force(table, budget):
    sums = ((sum(o.nbytes for o in picked), sum(o.error for o in picked)) for picked in product(*table))
    return min((error for nbytes, error in sums if nbytes <= budget), default=None)


@settings(max_examples=150, deadline=None)
@given(TABLE, st.integers(0, 200))
def test_the_choice_is_the_best_within_the_budget(table, budget):
    best = by_brute_force(table, budget)
    if best is None:
        with pytest.raises(UsageError, match="less than the smallest"):
            solve(table, budget)
        return
    found = solve(table, budget)
    picked = [options[pick] for options, pick in zip(table, found.picks, strict=True)]
    assert found.nbytes == sum(o.nbytes for o in picked) <= budget
    assert found.error == pytest.approx(sum(o.error for o in picked))
    assert found.exact
    assert found.error == pytest.approx(best, rel=1e-8, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(TABLE, st.integers(0, 200))
def test_with_little_room_the_choice_is_within_its_bound(table, budget):
    best = by_brute_force(table, budget)
    if best is None:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solving, "MOST", 1)
        found = solve(table, budget)
    assert found.nbytes <= budget
    assert found.bound <= best * (1 + 1e-8) + 1e-12
    assert best <= found.error * (1 + 1e-8) + 1e-12
    assert not found.exact or found.error == pytest.approx(best, rel=1e-8, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(TABLE, st.integers(0, 200), st.data())
def test_no_start_is_better(table, budget, data):
    start = [data.draw(st.integers(0, len(options) - 1)) for options in table]
    if by_brute_force(table, budget) is None:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solving, "MOST", 1)
        found = solve(table, budget, [start])
    assert found.nbytes <= budget
    if sum(options[pick].nbytes for options, pick in zip(table, start, strict=True)) <= budget:
        assert found.error <= sum(options[pick].error for options, pick in zip(table, start, strict=True))


def test_the_hull_leaves_out_what_a_mix_of_others_beats():
    options = [Option(nbytes=n, error=e) for n, e in ((4, 1.0), (1, 10.0), (2, 9.5), (3, 2.0), (5, 1.0))]
    assert [options[place].nbytes for place in hull(options)] == [1, 3, 4]


def test_more_bytes_off_the_hull_are_taken_when_they_fit_exactly():
    table = [[Option(nbytes=1, error=10.0), Option(nbytes=2, error=9.5), Option(nbytes=3, error=2.0)]]
    assert solve(table, 2).picks == (1,)


@pytest.mark.parametrize("wrong", [[[]], [[Option(nbytes=-1, error=0)]], [[Option(nbytes=1, error=float("nan"))]]])
def test_tables_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match="expected one option"):
        solve(wrong, 10)


def test_many_tensors_of_a_model_take_no_time():
    table = [
        [Option(nbytes=bits * 1000 * (1 + layer % 3), error=(1 + layer % 7) * 4.0**-bits) for bits in range(2, 9)]
        for layer in range(300)
    ]
    budget = sum(options[0].nbytes for options in table) * 9 // 4
    found = solve(table, budget)
    assert found.nbytes <= budget
    assert found.error <= found.bound * 1.001


def test_budgets_are_read():
    assert is_budget("AUTO-BPW=4.5")
    assert is_budget("auto-size=3")
    assert not is_budget("auto")
    assert not is_budget("q4_0")
    assert parse_budget("auto-bpw=4.5").for_tensors(1001, 7) == 563  # 4504.5 bits
    for text, nbytes in (("12GiB", 12 << 30), ("900M", 900_000_000), ("1.5kb", 1500), ("77", 77), ("2 MiB", 2 << 20)):
        assert parse_budget(f"auto-size={text}").for_tensors(5, 7) == nbytes - 7


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("auto-bpw=four", "'four' is no number"),
        ("auto-bpw=", "'' is no number"),
        ("auto-bpw", "'' is no number"),
        ("auto-bpw=-4", "'-4' is no number"),
        ("auto-bpw=nan", "'nan' is no number"),
        ("auto-bpw=0.0", "'0.0' is no number"),
        ("auto-bpw=4,5", "'4,5' is no number"),
        ("auto-size=12XB", "'xb' is no unit, expected one of K, M"),
        ("auto-size=GiB", "'gib' is no size"),
        ("auto-size=0GiB", "is no size"),
        ("auto-size=1e9", "is no size|is no unit"),
    ],
)
def test_budgets_that_are_none_are_refused(name, message):
    with pytest.raises(UsageError, match=message):
        parse_budget(name)
