"""Importance matrices made to do harm or cut by accident: each is refused with an error that says where."""

import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf2q.errors import FormatError, Hf2qError, MissingFileError, SourceError
from hf2q.formats.imatrix import read_imatrix

DATA = Path(__file__).parent / "data" / "imatrix"


def i32(*numbers):
    return struct.pack(f"<{len(numbers)}i", *numbers)


def one(name=b"blk.0.a.weight", chunks=3, values=(1.0, 2.0), length=None, count=None):
    length = len(name) if length is None else length
    count = len(values) if count is None else count
    return i32(length) + name + i32(chunks, count) + struct.pack(f"<{len(values)}f", *values)


GOOD = i32(1) + one() + i32(3, 5) + b"a.txt"


@pytest.fixture
def attempt(tmp_path):
    path = tmp_path / "matrix"

    def read(raw):
        path.write_bytes(raw)
        return read_imatrix(path)

    return read


def test_the_good_file_and_older_ones_are_read(attempt):
    matrix = attempt(GOOD)
    assert (matrix.datasets, matrix.chunk_count) == (("a.txt",), 3)
    assert matrix.entries["blk.0.a.weight"].sums.tolist() == [[1, 2]]
    assert attempt(i32(1) + one()).chunk_count == 0
    assert attempt(i32(1) + one() + i32(9)).chunk_count == 9
    assert attempt(i32(1) + one() + i32(9, 0)).datasets == ()
    assert attempt(i32(1) + one() + i32(9, 2) + b"\xff\n").datasets == ("\\xff\n",)
    # values of no chunks are taken as they are
    np.testing.assert_array_equal(attempt(i32(1) + one(chunks=0)).weights_for("blk.0.a.weight", (4, 2)), [[1, 2]])


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"", "is no importance matrix"),
        (b"GG", "is no importance matrix"),
        (b"hello, this is text and not a matrix", "begins with b'hell'"),
        (i32(0) + one(), "is no importance matrix"),
        (i32(-1) + one(), "is no importance matrix"),
        (i32(1 << 30) + one(), "is no importance matrix"),
        (i32(2) + one() + i32(3, 5) + b"a.txt", "byte 37: the length of name 1|name 1 "),
        (i32(2) + one() + one(), "entry 'blk.0.a.weight' occurs twice"),
        (i32(1) + one(length=-5), "byte 4: the length of name 0 is -5, expected at least 1"),
        (i32(1) + one(b""), "the length of name 0 is 0"),
        (i32(1) + one(b"a" * 64), "name 0 has 64 bytes, expected at most 63"),
        (i32(1) + one(length=1 << 30), "name 0 has 1073741824 bytes"),
        (i32(1) + one(b"blk.\xff.weight"), "byte 12: name 0 is not UTF-8"),
        (i32(1) + one(b"blk\0weight"), "expected text without zero bytes"),
        (i32(1) + one(chunks=-1), "the number of chunks of blk.0.a.weight is -1"),
        (i32(1) + one(count=0), "the number of values of blk.0.a.weight is 0"),
        (i32(1) + one(count=-7), "the number of values of blk.0.a.weight is -7"),
        (i32(1) + one(count=(1 << 31) - 1), "the values of blk.0.a.weight needs 8589934588 bytes"),
        (i32(1) + one(values=(1, float("nan"))), "blk.0.a.weight holds nan at position 1"),
        (i32(1) + one(values=(-1, 0)), "blk.0.a.weight holds -1.0 at position 0"),
        (GOOD + b"x", "1 bytes follow after the end"),
        (i32(1) + one() + b"\0\0", "the number of chunks needs 4 bytes"),
        (i32(1) + one() + i32(-3), "the number of chunks is -3"),
        (i32(1) + one() + i32(3, -1), "the length of the dataset's name is -1"),
        (i32(1) + one() + i32(3, 1 << 30), "the dataset's name needs 1073741824 bytes"),
    ],
)
def test_bad_legacy_files_are_refused(attempt, raw, told):
    with pytest.raises(FormatError, match=told):
        attempt(raw)


def test_every_cut_of_a_legacy_file_is_noticed_or_is_an_older_file(attempt):
    raw = (DATA / "legacy.dat").read_bytes()
    end = len(raw) - 8 - len("dir/b ü.txt".encode())
    for cut in range(len(raw)):
        if cut in (end, end + 4):  # without a dataset, and without the number of chunks
            assert len(attempt(raw[:cut]).entries) == 4
        else:
            with pytest.raises(FormatError):
                attempt(raw[:cut])


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["legacy.dat", "sorted.imatrix"]), st.data())
def test_any_change_is_refused_or_harmless(tmp_path_factory, name, data):
    raw = bytearray((DATA / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + 4] = data.draw(st.sampled_from([b"\0\0\0\0", b"\xff\xff\xff\x7f", b"\x01\0\0\0", b"\xff" * 4]))
    path = tmp_path_factory.mktemp("changed") / "matrix"
    path.write_bytes(raw)
    tracemalloc.start()
    try:
        matrix = read_imatrix(path)
    except Hf2qError as error:
        text = str(error)
    else:
        text = str(path)
        for one_entry in matrix.entries.values():
            assert np.isfinite(one_entry.sums).all()
            assert (one_entry.counts >= 0).all()
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert "matrix" in text
    assert peak < 8 << 20


def test_what_is_no_file_or_an_unloaded_one(tmp_path):
    with pytest.raises(MissingFileError):
        read_imatrix(tmp_path / "nothing")
    with pytest.raises(SourceError, match="a directory"):
        read_imatrix(tmp_path)
    pointer = tmp_path / "pointer.dat"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(MissingFileError, match="git-lfs"):
        read_imatrix(pointer)


@pytest.fixture
def made(tmp_path):
    """Reads a GGUF file made of parts."""

    def read(tensors, *, datasets=("x",), count=3, size=512, kind="imatrix", raw=None):
        path = str(tmp_path / "matrix.gguf")
        file = gguf.GGUFWriter(path, "none")
        file.add_string("general.type", kind)
        if datasets is not None:
            file.add_array("imatrix.datasets", list(datasets))
        if count is not None:
            (file.add_uint32 if raw is None else raw.__get__(file))("imatrix.chunk_count", count)
        if size is not None:
            file.add_uint32("imatrix.chunk_size", size)
        for name, values in tensors.items():
            file.add_tensor(name, values)
        file.write_header_to_file()
        file.write_kv_data_to_file()
        file.write_tensors_to_file()
        file.close()
        return read_imatrix(path)

    return read


def f32(*values, shape=None):
    array = np.array(values, np.float32)
    return array if shape is None else array.reshape(shape)


def pair(sums, counts, name="a.weight"):
    return {f"{name}.in_sum2": sums, f"{name}.counts": counts}


def test_other_shapes_of_the_same_numbers_are_read(made):
    # older files have a row for each matrix and one count
    found = made(pair(f32(*range(12), shape=(3, 4)), f32(2))).entries["a.weight"]
    assert found.sums.shape == (1, 12)
    found = made(pair(f32(*range(12)), f32(2, 3, 4))).entries["a.weight"]
    assert found.sums.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert made(pair(f32(1, 1, 1, 1), f32(0.5, 1.4999, 2.5, 16777216))).entries["a.weight"].counts.tolist() == [
        1,
        1,
        3,
        16777216,
    ]


def test_tensors_of_other_kinds_are_left_out(made):
    assert list(made({**pair(f32(1), f32(1)), "a.weight.in_sum": f32(1)}).entries) == ["a.weight"]


@pytest.mark.parametrize(
    ("tensors", "options", "told"),
    [
        ({}, {}, "holds no importance"),
        ({"blk.0.attn_q.weight": f32(1)}, {}, "holds no importance"),
        (
            {"a.weight.in_sum2": f32(1)},
            {},
            r"there is no tensor a\.weight\.counts, expected \.in_sum2 and \.counts for every entry",
        ),
        ({"a.weight.counts": f32(1)}, {}, r"there is no tensor a\.weight\.in_sum2"),
        (pair(f32(1).astype(np.float16), f32(1)), {}, r"a\.weight\.in_sum2 is F16, expected F32"),
        (pair(f32(1), np.array([1], np.int32)), {}, r"a\.weight\.counts is I32, expected F32"),
        (pair(f32(1, 2, 3), f32(1, 2)), {}, "3 sums and 2 counts"),
        (pair(f32(1, np.nan), f32(1)), {}, r"a\.weight holds nan at position 1"),
        (pair(f32(1, 2), f32(1, -1)), {}, r"count 1 of a\.weight is -1\.0"),
        (pair(f32(1), f32(np.nan)), {}, r"count 0 of a\.weight is nan"),
        (pair(f32(1), f32(1e30)), {}, r"count 0 of a\.weight is 1\.0\d*e\+30"),
        (pair(f32(1), f32(1)), {"size": 0}, "imatrix.chunk_size is 0"),
        (pair(f32(1), f32(1)), {"count": None}, r"an importance matrix without imatrix\.chunk_count"),
        (pair(f32(1), f32(1)), {"size": None, "kind": "model"}, "of type 'model' without imatrix.chunk_size"),
        (pair(f32(1), f32(1)), {"datasets": None}, "without imatrix.datasets"),
        (pair(f32(1), f32(1)), {"datasets": (1, 2)}, "imatrix.datasets' is an array of INT32"),
        (pair(f32(1), f32(1)), {"raw": gguf.GGUFWriter.add_uint64}, "imatrix.chunk_count is of type UINT64"),
    ],
)
def test_bad_gguf_files_are_refused(made, tensors, options, told):
    with pytest.raises(FormatError, match=told):
        made(tensors, **options)
