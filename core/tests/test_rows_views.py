"""The lazy views of `hf2q.rows` against numpy, whatever rows are asked for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf2q import rows
from hf2q.errors import TensorMismatchError

SIZES = st.integers(1, 6)


@st.composite
def arrays(draw, dims=2):
    shape = tuple(draw(SIZES) for _ in range(dims))
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def check(view, expected):
    """Same shape, and the same rows for every start and stop."""
    assert view.shape == expected.shape
    matrix = expected.reshape(-1, expected.shape[-1])
    for start in range(len(matrix) + 1):
        for stop in range(start, len(matrix) + 1):
            found = view.read(start, stop)
            assert found.dtype == np.float32
            assert found.flags.c_contiguous
            np.testing.assert_array_equal(found, matrix[start:stop])


@given(arrays(3))
def test_from_array_reads_leading_sizes_as_rows(x):
    check(rows.from_array(x), x)
    assert rows.n_rows(rows.from_array(x)) == x.shape[0] * x.shape[1]


@given(arrays(2), st.data())
def test_reshape_splits_and_joins_rows(x, data):
    n, columns = x.shape
    divisor = data.draw(st.sampled_from([k for k in range(1, columns + 1) if columns % k == 0]))
    split = x.reshape(n, columns // divisor, divisor)
    check(rows.reshape(rows.from_array(x), split.shape), split)
    check(rows.reshape(rows.from_array(split), x.shape), x)
    check(rows.reshape(rows.from_array(x), (n, 1, columns)), x.reshape(n, 1, columns))


@pytest.mark.parametrize("shape", [(4, 3), (3, 5), (6,)])
def test_reshape_refuses_what_it_cannot_show(shape):
    with pytest.raises(TensorMismatchError):
        rows.reshape(rows.from_array(np.zeros((2, 4), np.float32)), shape)


@given(arrays(2), st.data())
def test_rows_and_columns_in_a_new_order(x, data):
    row_order = np.array(data.draw(st.permutations(range(x.shape[0]))), np.intp)
    column_order = np.array(data.draw(st.permutations(range(x.shape[1]))), np.intp)
    check(rows.gather_rows(rows.from_array(x), row_order), x[row_order])
    check(rows.gather_columns(rows.from_array(x), column_order), x[:, column_order])


@given(arrays(2), st.data())
def test_some_rows(x, data):
    index = np.array(data.draw(st.lists(st.integers(0, len(x) - 1), min_size=1, max_size=8)), np.intp)
    check(rows.take_rows(rows.from_array(x), index, (len(index), x.shape[1])), x[index])


def test_orders_that_do_not_fit_are_refused():
    x = rows.from_array(np.zeros((3, 4), np.float32))
    for bad in (
        lambda: rows.gather_rows(x, np.arange(2)),
        lambda: rows.gather_columns(x, np.arange(5)),
        lambda: rows.take_rows(x, np.arange(2), (3, 4)),
        lambda: rows.take_rows(x, np.array([3]), (1, 4)),
        lambda: rows.take_rows(x, np.array([-1]), (1, 4)),
        lambda: rows.take_rows(x, np.arange(2), (2, 5)),
    ):
        with pytest.raises(TensorMismatchError):
            bad()


@given(arrays(2), st.integers(1, 4))
def test_stack_and_concatenate(x, count):
    parts = [x + 100 * k for k in range(count)]
    views = [rows.from_array(part) for part in parts]
    check(rows.stack(views), np.stack(parts))
    check(rows.concatenate(views), np.concatenate(parts))


def test_joining_parts_that_differ_is_refused():
    a, b = (rows.from_array(np.zeros(shape, np.float32)) for shape in ((2, 3), (2, 4)))
    with pytest.raises(TensorMismatchError, match="shapes"):
        rows.stack([a, b])
    with pytest.raises(TensorMismatchError, match="shapes"):
        rows.concatenate([a, b])
    with pytest.raises(TensorMismatchError, match="dtypes"):
        rows.stack([a, rows.from_array(np.zeros((2, 3), np.float32), "BF16")])


def test_dtype_survives_moving_values_but_not_arithmetic():
    x = rows.from_array(np.ones((2, 3), np.float32), "BF16")
    assert rows.gather_rows(x, np.arange(2)).dtype == "BF16"
    assert rows.reshape(x, (2, 1, 3)).dtype == "BF16"
    assert rows.stack([x, x]).dtype == "BF16"
    assert rows.slice_rows(x, 0, 1, (1, 3)).dtype == "BF16"
    assert rows.elementwise(x, lambda v: v * 2).dtype == "F32"


def test_slice_and_elementwise():
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    check(rows.slice_rows(rows.from_array(x), 1, 3, (2, 3)), x[1:3])
    check(rows.elementwise(rows.from_array(x), lambda v: v.astype(np.float64) + 0.5), x + np.float32(0.5))
