"""What a codec gets for a tensor: equal names, experts stacked or single, experts never used, other sizes."""

import numpy as np
import pytest

from hf2q.errors import FormatError, TensorMismatchError, UsageError
from hf2q.formats.imatrix import Entry, Imatrix
from hf2q.formats.imatrix.record import check_sums

RNG = np.random.default_rng(1)


def entry(n, width, counts):
    return Entry(sums=(RNG.random((n, width)) * 50).astype(np.float32), counts=np.asarray(counts, np.int64))


def matrix(**entries):
    return Imatrix(entries={name.replace("__", "."): one for name, one in entries.items()}, chunk_size=512)


def test_a_dense_tensor_gets_sums_by_count_in_float32():
    one = entry(1, 32, [7])
    found = matrix(blk__0__attn_q__weight=one).weights_for("blk.0.attn_q.weight", (5, 32))
    assert (found.shape, found.dtype) == ((1, 32), np.float32)
    expected = np.array([np.float32(value) / np.float32(7) for value in one.sums[0]])
    np.testing.assert_array_equal(found[0], expected)


def test_nothing_is_known_about_other_tensors():
    one = matrix(blk__0__attn_q__weight=entry(1, 32, [7]))
    assert one.weights_for("blk.1.attn_q.weight", (5, 32)) is None
    assert one.weights_for("blk.0.ffn_up_exps.weight", (2, 5, 32)) is None
    assert one.weights_for("blk.0.ffn_up.1.weight", (5, 32)) is None


def test_experts_never_used_get_ones():
    one = entry(4, 32, [3, 0, 1 << 25, 9])
    found = matrix(blk__0__ffn_up_exps__weight=one).weights_for("blk.0.ffn_up_exps.weight", (4, 6, 32))
    assert found.shape == (4, 32)
    assert (found[1] == 1).all()
    np.testing.assert_array_equal(found[2], one.sums[2] / np.float32(1 << 25))
    np.testing.assert_array_equal(found[3], one.sums[3] / np.float32(9))


def test_one_count_may_stand_for_several_matrices():
    one = entry(1, 96, [4])
    found = matrix(blk__0__attn_k_b__weight=one).weights_for("blk.0.attn_k_b.weight", (3, 8, 32))
    np.testing.assert_array_equal(found, (one.sums / np.float32(4)).reshape(3, 32))


def test_a_tensor_without_any_data_gets_ones():
    found = matrix(blk__0__attn_q__weight=entry(1, 32, [0])).weights_for("blk.0.attn_q.weight", (5, 32))
    assert (found == 1).all()


@pytest.mark.parametrize("shape", [(5, 64), (5, 16), (2, 5, 32), (32, 5)])
def test_another_size_is_refused(shape):
    one = matrix(blk__0__attn_q__weight=entry(1, 32, [7]), token_embd__weight=entry(1, 32, [7]))
    with pytest.raises(TensorMismatchError, match=r"blk\.0\.attn_q\.weight has 1 x 32 values, expected \d"):
        one.weights_for("blk.0.attn_q.weight", shape)
    assert one.weights_for("token_embd.weight", shape) is None


def test_rows_are_never_put_together_from_two_counts():
    one = matrix(blk__0__attn_q__weight=entry(2, 16, [7, 7]))
    with pytest.raises(TensorMismatchError, match="2 x 16"):
        one.weights_for("blk.0.attn_q.weight", (5, 32))


def test_a_stack_is_put_together_from_single_experts():
    entries = {f"blk__3__ffn_gate__{e}__weight": entry(1, 32, [e + 1]) for e in (0, 1, 2, 10)}
    found = matrix(**entries).weights_for("blk.3.ffn_gate_exps.weight", (11, 6, 32))
    assert (found.shape, found.dtype) == ((11, 32), np.float32)
    for e in range(11):
        one = entries.get(f"blk__3__ffn_gate__{e}__weight")
        np.testing.assert_array_equal(found[e], np.ones(32) if one is None else one.sums[0] / np.float32(e + 1))


def test_a_single_expert_is_taken_from_a_stack():
    one = entry(4, 32, [3, 0, 2, 9])
    stacked = matrix(blk__3__ffn_down_exps__weight=one)
    for e in range(4):
        found = stacked.weights_for(f"blk.3.ffn_down.{e}.weight", (6, 32))
        assert found.shape == (1, 32)
        np.testing.assert_array_equal(found[0], one.sums[e] / np.float32(one.counts[e]) if e != 1 else np.ones(32))
    legacy = matrix(blk__3__ffn_down_exps__weight=entry(1, 4 * 32, [3]))  # one count, as legacy files have it
    assert legacy.weights_for("blk.3.ffn_down.3.weight", (6, 32)).shape == (1, 32)


def test_equal_names_go_first():
    both = matrix(blk__3__ffn_up__1__weight=entry(1, 32, [5]), blk__3__ffn_up_exps__weight=entry(2, 32, [1, 1]))
    expected = both.entries["blk.3.ffn_up.1.weight"].sums / np.float32(5)
    np.testing.assert_array_equal(both.weights_for("blk.3.ffn_up.1.weight", (6, 32)), expected)


def test_experts_of_another_model_are_refused():
    single = matrix(**{f"blk__0__ffn_up__{e}__weight": entry(1, 32, [1]) for e in range(8)})
    with pytest.raises(TensorMismatchError, match=r"has an expert 4 of blk\.0\.ffn_up, but the model has 4"):
        single.weights_for("blk.0.ffn_up_exps.weight", (4, 6, 32))
    with pytest.raises(TensorMismatchError, match=r"blk\.0\.ffn_up\.0\.weight has 1 x 32 values, expected 1 x 16"):
        single.weights_for("blk.0.ffn_up_exps.weight", (8, 6, 16))
    stacked = matrix(blk__0__ffn_up_exps__weight=entry(4, 32, [1] * 4))
    for name, shape in (("blk.0.ffn_up.4.weight", (6, 32)), ("blk.0.ffn_up.0.weight", (6, 24))):
        with pytest.raises(TensorMismatchError, match=r"ffn_up_exps\.weight has 4 x 32"):
            stacked.weights_for(name, shape)


def test_filters_are_parts_of_names(caplog):
    names = ("blk__0__attn_q__weight", "blk__0__attn_k__weight", "blk__1__ffn_up__weight")
    full = matrix(**{name: entry(1, 4, [1]) for name in names})
    assert list(full.filter(exclude=["attn"]).entries) == ["blk.1.ffn_up.weight"]
    assert list(full.filter(include=["attn_q", "blk.1"]).entries) == ["blk.0.attn_q.weight", "blk.1.ffn_up.weight"]
    assert full.filter().entries == full.entries
    assert full.filter(include=["blk"]).chunk_size == 512
    assert not caplog.records
    full.filter(exclude=["attn_q", "attn_w"])
    assert ["attn_w" in record.getMessage() for record in caplog.records] == [True]
    with pytest.raises(UsageError, match="together"):
        full.filter(include=["a"], exclude=["b"])
    for nothing in ({"include": ["x"]}, {"exclude": ["blk"]}):
        with pytest.raises(UsageError, match="leave nothing"):
            full.filter(**nothing)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1e-30])
@pytest.mark.parametrize("position", [0, 17, 63])
def test_values_that_no_sum_of_squares_has_are_named(bad, position):
    sums = np.ones((2, 32), np.float32)
    check_sums(sums, "matrix", "a.weight")
    check_sums(np.zeros((1, 3), np.float32), "matrix", "a.weight")
    sums.reshape(-1)[position] = bad
    with pytest.raises(FormatError, match=rf"matrix: the importance of a\.weight holds .* at position {position},"):
        check_sums(sums, "matrix", "a.weight")
