"""Checkpoints that are damaged, or made to do harm: each is refused naming file and tensor."""

import contextlib
import json
import os
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf2q.errors import FormatError, Hf2qError, MissingFileError, SourceError
from hf2q.formats.safetensors import open_checkpoint

ONE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def raw_file(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype="F32", shape=(2,), begin=0, end=8, **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]} | more


def good():
    header = {
        "__metadata__": {"format": "pt"},
        "a": entry("F32", (2, 1), 0, 8),
        "b": entry("BF16", (3,), 8, 14),
        "c": entry("F16", (), 14, 16),
        "d": entry("F64", (0, 9), 8, 8),
    }
    return raw_file(header, bytes(range(16)))


def look(folder):
    found = open_checkpoint(folder)
    for name, info in found.tensors.items():
        rows = 1
        for size in info.shape[:-1]:
            rows *= size
        found.rows(name).read(0, rows)
    return found


def test_the_good_file_is_read(tmp_path):
    (tmp_path / ONE).write_bytes(good())
    assert list(look(tmp_path).tensors) == ["a", "b", "c", "d"]


def test_a_cut_at_any_byte_is_noticed(tmp_path):
    raw = good()
    for stop in range(len(raw)):
        (tmp_path / ONE).write_bytes(raw[:stop])
        with pytest.raises(FormatError, match=r"model\.safetensors"):
            open_checkpoint(tmp_path)


CASES = {
    "nothing": (b"", "has 0 bytes"),
    "7 bytes": (b"1234567", "has 7 bytes"),
    "header of nothing": (raw_file(b"", b"{}"), r"the header of 0 bytes begins with b'', expected b'\{'"),
    "header beyond the ceiling": (raw_file({}, length=100_000_001), "is 100000001, expected at most 100000000"),
    "header of 2^64-1": (raw_file({}, length=(1 << 64) - 1), "is 18446744073709551615, expected at most"),
    "header beyond the file": (raw_file({}, length=3), "needs 3 bytes after byte 8, but the file has only 10"),
    "header begins with a space": (raw_file(b" {}"), "begins with b' '"),
    "not JSON": (raw_file(b"{,}"), "not valid JSON"),
    "more after the JSON": (raw_file(b"{}{}"), "not valid JSON"),
    "NaN": (raw_file(b'{"a": NaN}'), "NaN is not JSON"),
    "not UTF-8": (raw_file(b'{"\xff": 1}'), "byte 2 of the JSON text is not UTF-8"),
    "half a surrogate": (raw_file(b'{"\\ud800": 1}'), "is not valid text"),
    "nested deeply": (raw_file(b'{"a":' + b"[" * 100_000), "nested too deeply"),
    "endless number": (raw_file(b'{"a":' + b"9" * 5000 + b"}"), "not valid JSON"),
    "tensor twice": (raw_file(b'{"a": 1, "a": 2}'), "'a' occurs twice"),
    "field twice": (raw_file(b'{"a": {"dtype": "F32", "dtype": "F32"}}'), "'dtype' occurs twice"),
    "metadata is a list": (raw_file({"__metadata__": []}), "__metadata__ is"),
    "metadata holds a number": (raw_file({"__metadata__": {"a": 1}}), "__metadata__ is"),
    "tensor is a number": (raw_file({"a": 1}), "'a' is described by 1"),
    "field missing": (raw_file({"a": {"dtype": "F32", "shape": [1]}}), "'a' is described by"),
    "field too many": (raw_file({"a": entry(strides=[1])}, bytes(8)), "'a' is described by"),
    "dtype unknown": (raw_file({"a": entry("F33")}, bytes(8)), "'a' has the dtype 'F33'"),
    "dtype is a list": (raw_file({"a": entry(["F32"])}, bytes(8)), "'a' has the dtype"),
    "shape is a number": (raw_file({"a": {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]}}), "'a' has the shape 2"),
    "size below 0": (raw_file({"a": entry(shape=(-2, -1))}, bytes(8)), "'a' has the shape"),
    "size is true": (raw_file({"a": entry(shape=(2, True))}, bytes(8)), "'a' has the shape"),
    "size is 2.0": (raw_file({"a": entry(shape=(2.0,))}, bytes(8)), "'a' has the shape"),
    "size is 2^63": (raw_file({"a": entry(shape=(1 << 63, 0), end=0)}), "'a' has the shape"),
    "65 sizes": (raw_file({"a": entry(shape=[1] * 64 + [2])}, bytes(8)), "'a' has the shape"),
    "sizes that wrap": (raw_file({"a": entry(shape=(1 << 62, 4), end=0)}), "'a' has 0 bytes"),
    "sizes that wrap to 8": (raw_file({"a": entry(shape=((1 << 62) + 2,))}, bytes(8)), "'a' has 8 bytes"),
    "one offset": (raw_file({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}}), "'a' has the data_offsets"),
    "offset below 0": (raw_file({"a": entry(begin=-8, end=0)}, bytes(8)), "'a' has the data_offsets"),
    "offsets reversed": (raw_file({"a": entry(begin=8, end=0)}, bytes(8)), "'a' lies at bytes 8 to 0"),
    "offset beyond the data": (raw_file({"a": entry(end=12, shape=(3,))}, bytes(8)), "'a' lies at bytes 0 to 12"),
    "too few bytes": (raw_file({"a": entry(shape=(3,))}, bytes(8)), "'a' has 8 bytes, but .* need 12"),
    "half a byte": (raw_file({"a": entry("F4", (3,), 0, 1)}, bytes(1)), "'a' has 1 bytes, but .* need 1.5"),
    "overlap": (
        raw_file({"a": entry(), "b": entry(begin=4, end=12)}, bytes(12)),
        "tensors 'a' and 'b' overlap at byte",
    ),
    "same place": (raw_file({"a": entry(), "b": entry()}, bytes(8)), "tensors 'a' and 'b' overlap"),
    "hole": (raw_file({"a": entry(), "b": entry(begin=9, end=17)}, bytes(17)), "before tensor 'b', belong to no"),
    "hole at the start": (raw_file({"a": entry(begin=1, end=9)}, bytes(9)), "before tensor 'a', belong to no"),
    "hole at the end": (raw_file({"a": entry()}, bytes(9)), "at the end, belong to no tensor"),
    "data of nobody": (raw_file({}, bytes(1)), "at the end, belong to no tensor"),
}


@pytest.mark.parametrize(("raw", "message"), CASES.values(), ids=CASES)
def test_refused(tmp_path, raw, message):
    (tmp_path / ONE).write_bytes(raw)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=message) as caught:
            open_checkpoint(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert ONE in caught.value.message
    assert len(caught.value.message) < 1000


def put(folder, files, weight_map):
    """Write files of {file: names of tensors} and an index with `weight_map`."""
    for file, names in files.items():
        header = {name: entry(begin=8 * i, end=8 * i + 8) for i, name in enumerate(names)}
        (folder / file).write_bytes(raw_file(header, bytes(8 * len(names))))
    if weight_map is not None:
        (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


X, Y = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
DISAGREE = {
    "shard missing": ({X: ["a"]}, {"a": X, "b": Y}, MissingFileError, f"lacks 1 of the 2 files .* {Y}"),
    "tensor missing": ({X: ["a"]}, {"a": X, "b": X}, FormatError, "names 1 tensors .* do not hold: b"),
    "tensor too many": ({X: ["a", "b"]}, {"a": X}, FormatError, f"does not name 1 tensors of {X}: b"),
    "tensor elsewhere": ({X: ["a"], Y: ["b"]}, {"a": Y, "b": X}, FormatError, f"'a' is in {Y}, but it is in {X}"),
    "tensor in two": ({X: ["a"], Y: ["a", "b"]}, {"a": X, "b": Y}, FormatError, f"'a' is in both {X} and {Y}"),
    "two without index": ({X: ["a"], Y: ["a"]}, None, FormatError, f"'a' is in both {X} and {Y}"),
    "series incomplete": ({X: ["a"]}, None, MissingFileError, f"has 1 files of the series {X}, expected 2"),
    "number beyond the series": (
        {X: ["a"], "model-00003-of-00002.safetensors": ["b"]},
        None,
        MissingFileError,
        "expected 2",
    ),
    "index and single file": ({ONE: ["a"], X: ["a"]}, {"a": X}, FormatError, "has both model.safetensors and an index"),
    "empty map": ({X: ["a"]}, {}, FormatError, "weight_map is {}"),
    "map is a list": ({X: ["a"]}, ["a"], FormatError, "weight_map is"),
    "file is a number": ({X: ["a"]}, {"a": 1}, FormatError, "'a' is said to be in 1"),
    "file outside": ({X: ["a"]}, {"a": "../x.safetensors"}, FormatError, "said to be in '../x.safetensors'"),
    "file far outside": ({X: ["a"]}, {"a": "a/../../x.safetensors"}, FormatError, "said to be in"),
    "file at the root": ({X: ["a"]}, {"a": "/x.safetensors"}, FormatError, "said to be in"),
    "file with zero": ({X: ["a"]}, {"a": "x\0.safetensors"}, FormatError, "said to be in"),
    "file of Windows": ({X: ["a"]}, {"a": "..\\x.safetensors"}, FormatError, "said to be in"),
    "file spelled twice": ({X: ["a"]}, {"a": f"./{X}"}, FormatError, "said to be in"),
    "pickle in the index": ({X: ["a"]}, {"a": "pytorch_model.bin"}, FormatError, "said to be in 'pytorch_model.bin'"),
}


@pytest.mark.parametrize(("files", "weight_map", "kind", "message"), DISAGREE.values(), ids=DISAGREE)
def test_index_and_files_must_agree(tmp_path, files, weight_map, kind, message):
    put(tmp_path, files, weight_map)
    with pytest.raises(kind, match=message):
        open_checkpoint(tmp_path)


def test_the_agreeing_ones_are_read(tmp_path):
    put(tmp_path, {X: ["a"], Y: ["b"]}, {"a": X, "b": Y})
    assert list(open_checkpoint(tmp_path).tensors) == ["a", "b"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": {"a": "x", "a": "y"}}', "{"])
def test_an_index_that_is_none(tmp_path, text):
    put(tmp_path, {X: ["a"]}, None)
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(FormatError, match=r"index\.json"):
        open_checkpoint(tmp_path)


def test_an_index_that_is_too_large(tmp_path):
    put(tmp_path, {X: ["a"]}, None)
    with (tmp_path / INDEX).open("wb") as file:
        file.truncate(100_000_001)
    with pytest.raises(FormatError, match="expected at most 100000000"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", [ONE, INDEX])
def test_pointers_of_git_lfs(tmp_path, name):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    with pytest.raises(MissingFileError, match="git-lfs pointer") as caught:
        open_checkpoint(tmp_path)
    assert "git lfs pull" in caught.value.hint


def test_folders_without_a_checkpoint(tmp_path):
    with pytest.raises(MissingFileError, match="does not exist"):
        open_checkpoint(tmp_path / "none")
    with pytest.raises(MissingFileError, match="does not exist"):
        open_checkpoint("a\0b")
    with pytest.raises(MissingFileError, match=r"has neither .* nor a file model\*\.safetensors"):
        open_checkpoint(tmp_path)
    (tmp_path / "adapter.safetensors").write_bytes(b"")
    with pytest.raises(MissingFileError, match=r"but adapter\.safetensors"):
        open_checkpoint(tmp_path)
    with pytest.raises(MissingFileError, match="is a file, expected the folder"):
        open_checkpoint(tmp_path / "adapter.safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(MissingFileError, match="only PyTorch pickles"):
        open_checkpoint(tmp_path)


def test_what_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / ONE)
    with pytest.raises(SourceError, match="not a regular file"):
        open_checkpoint(tmp_path)
    (tmp_path / ONE).unlink()
    (tmp_path / ONE).mkdir()
    with pytest.raises(SourceError, match="is a directory"):
        open_checkpoint(tmp_path)
    (tmp_path / ONE).rmdir()
    (tmp_path / ONE).symlink_to(tmp_path / "gone")
    with pytest.raises(MissingFileError, match="does not exist"):
        open_checkpoint(tmp_path)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.integers(0, len(good()) * 8 - 1), min_size=1, max_size=4))
def test_flipped_bits_never_do_anything_but_raise_our_errors(tmp_path, flips):
    raw = bytearray(good())
    for bit in flips:
        raw[bit // 8] ^= 1 << (bit % 8)
    (tmp_path / ONE).write_bytes(raw)
    with contextlib.suppress(Hf2qError):
        look(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["F32", "BF16"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries({"dtype": JSON, "shape": JSON, "data_offsets": JSON})


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(st.text(max_size=3) | st.just("__metadata__"), JSON | FIELDS, max_size=3))
def test_any_json_in_the_header(tmp_path, header):
    (tmp_path / ONE).write_bytes(raw_file(header, bytes(8)))
    with contextlib.suppress(Hf2qError):
        look(tmp_path)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(JSON | st.fixed_dictionaries({"weight_map": JSON}))
def test_any_json_in_the_index(tmp_path, index):
    put(tmp_path, {X: ["a"]}, None)
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(Hf2qError):
        open_checkpoint(tmp_path)


def test_an_index_with_a_file_name_of_absurd_length(tmp_path):
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "x" * 5000 + ".safetensors"}}))
    with pytest.raises(MissingFileError, match="lacks 1 of the 1 files"):
        open_checkpoint(tmp_path)
