"""Importance matrices on disk: both formats against files that llama-imatrix wrote, byte for byte."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf2q.errors import FormatError, UsageError, WriteError
from hf2q.formats.gguf import open_gguf
from hf2q.formats.imatrix import Entry, Imatrix, imatrix_format, read_imatrix, write_imatrix
from hf2q.testing.fixtures import fixtures_dir

DATA = Path(__file__).parent / "data" / "imatrix"


def entry(sums, counts):
    return Entry(sums=np.atleast_2d(np.asarray(sums, np.float32)), counts=np.asarray(counts, np.int64))


def same(a, b):
    assert list(a.entries) == list(b.entries)
    for name, one in a.entries.items():
        np.testing.assert_array_equal(one.sums, b.entries[name].sums)
        np.testing.assert_array_equal(one.counts, b.entries[name].counts)
    return (a.datasets, a.chunk_count, a.chunk_size) == (b.datasets, b.chunk_count, b.chunk_size)


def test_a_gguf_file_is_read():
    matrix = read_imatrix(DATA / "sorted.imatrix")
    assert matrix.datasets == ("a.txt", "dir/b ü.txt")
    assert (matrix.chunk_count, matrix.chunk_size) == (7, 300)
    assert {name: e.sums.shape for name, e in matrix.entries.items()} == {
        "blk.10.ffn_down_exps.weight": (4, 32),
        "blk.2.A.weight": (2, 1),
        "blk.2.attn_k_b.weight": (1, 48),
        "blk.2.ffn_up.weight": (1, 32),
        "blk.2.never.weight": (3, 8),
    }
    experts = matrix.entries["blk.10.ffn_down_exps.weight"]
    assert (experts.counts.tolist(), experts.covered) == ([700, 0, 33, 299], 3)
    assert experts.sums.dtype == np.float32
    assert not experts.sums.flags.writeable


def test_a_legacy_file_is_read():
    matrix = read_imatrix(DATA / "legacy.dat")
    assert matrix.datasets == ("dir/b ü.txt",)
    assert (matrix.chunk_count, matrix.chunk_size) == (7, 0)
    assert "blk.2.never.weight" not in matrix.entries
    assert matrix.entries["blk.10.ffn_down_exps.weight"].sums.shape == (1, 128)
    assert matrix.entries["blk.10.ffn_down_exps.weight"].counts.tolist() == [3]


def test_the_format_is_told_by_content(tmp_path):
    for name, form in (("sorted.imatrix", "gguf"), ("legacy.dat", "dat")):
        path = tmp_path / "matrix.bin"
        path.write_bytes((DATA / name).read_bytes())
        assert imatrix_format(path) == form
        assert same(read_imatrix(path), read_imatrix(DATA / name))


@pytest.mark.parametrize(
    ("source", "form", "expected"),
    [
        ("sorted.imatrix", "gguf", "sorted.imatrix"),
        ("sorted.imatrix", "dat", "legacy.dat"),
        ("legacy.dat", "dat", "legacy.dat"),
    ],
)
def test_the_bytes_are_those_of_llama_imatrix(source, form, expected, tmp_path):
    write_imatrix(tmp_path / "out", read_imatrix(DATA / source), form)
    assert (tmp_path / "out").read_bytes() == (DATA / expected).read_bytes()


def test_a_legacy_file_becomes_gguf_as_llama_imatrix_makes_it(tmp_path):
    write_imatrix(tmp_path / "out", read_imatrix(DATA / "legacy.dat").in_tokens(300), "gguf")
    assert (tmp_path / "out").read_bytes() == (DATA / "back.imatrix").read_bytes()


@pytest.mark.fixtures
@pytest.mark.parametrize("family", ["qwen3_5", "gemma4", "deepseek_v4_fp8.noA"])
def test_real_matrices_come_back_byte_for_byte(family, tmp_path):
    folder = fixtures_dir()
    path = folder.parent / "golden" / f"{family}.imatrix.gguf" if folder else None
    if path is None or not path.exists():
        pytest.skip(f"no golden {family}.imatrix.gguf beside the fixtures")
    matrix = read_imatrix(path)
    write_imatrix(tmp_path / "out", matrix, "gguf")
    assert (tmp_path / "out").read_bytes() == path.read_bytes()
    write_imatrix(tmp_path / "dat", matrix, "dat")
    legacy = read_imatrix(tmp_path / "dat")
    for name, one in matrix.entries.items():
        if one.covered:
            shape = (len(one.counts), 1, one.sums.shape[1])
            np.testing.assert_allclose(matrix.weights_for(name, shape), legacy.weights_for(name, shape), rtol=3e-7)


def test_the_gguf_library_agrees():
    import gguf

    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(DATA / "sorted.imatrix").tensors}
    for name, one in read_imatrix(DATA / "sorted.imatrix").entries.items():
        np.testing.assert_array_equal(tensors[f"{name}.in_sum2"].data.reshape(one.sums.shape), one.sums)
        np.testing.assert_array_equal(tensors[f"{name}.counts"].data.reshape(-1), one.counts)


NAMES = st.lists(st.from_regex(r"blk\.\d{1,2}\.[a-zA-Z_]{1,12}\.weight", fullmatch=True), min_size=1, unique=True)


@settings(max_examples=40, deadline=None)
@given(NAMES, st.data())
def test_any_matrix_comes_back(tmp_path_factory, names, data):
    entries = {}
    for name in names:
        n = data.draw(st.integers(1, 4))
        width = data.draw(st.integers(1, 5))
        values = st.floats(0, 2.0**100, width=32)
        sums = data.draw(st.lists(values, min_size=n * width, max_size=n * width))
        counts = data.draw(st.lists(st.integers(0, 1 << 24), min_size=n, max_size=n))
        entries[name] = Entry(sums=np.float32(sums).reshape(n, width), counts=np.int64(counts))
    texts = st.text(st.characters(codec="utf-8"), max_size=20)
    matrix = Imatrix(
        entries=entries,
        datasets=tuple(data.draw(st.lists(texts, max_size=3))),
        chunk_count=data.draw(st.integers(0, 1000)),
        chunk_size=data.draw(st.integers(1, 4096)),
    )
    path = tmp_path_factory.mktemp("any") / "matrix"
    write_imatrix(path, matrix, "gguf")
    back = read_imatrix(path)
    ordered = {name: entries[name] for name in sorted(entries, key=str.encode)}
    assert same(back, Imatrix(entries=ordered, datasets=matrix.datasets, chunk_count=matrix.chunk_count,
                              chunk_size=matrix.chunk_size))  # fmt: skip
    first = path.read_bytes()
    write_imatrix(path, back, "gguf")
    assert path.read_bytes() == first


def test_a_legacy_file_keeps_importance_but_for_rounding(tmp_path):
    rng = np.random.default_rng(0)
    name, shape = "blk.0.ffn_up_exps.weight", (6, 4, 64)
    counts = [0, 1, 999, 512, 513, 100_000]
    matrix = Imatrix(entries={name: entry(rng.random((6, 64)) * 100, counts)}, chunk_count=9, chunk_size=512)
    write_imatrix(tmp_path / "dat", matrix, "dat")
    legacy = read_imatrix(tmp_path / "dat")
    assert legacy.entries[name].counts.tolist() == [-(-100_000 // 512)]
    np.testing.assert_allclose(legacy.weights_for(name, shape), matrix.weights_for(name, shape), rtol=2e-7)
    assert (legacy.weights_for(name, shape)[0] == 1).all()


def test_counts_in_chunks_become_tokens_without_changing_importance():
    legacy = read_imatrix(DATA / "legacy.dat")
    tokens = legacy.in_tokens()
    assert tokens.chunk_size == 512
    assert tokens.in_tokens(7) is tokens
    for name, one in legacy.entries.items():
        shape = (1, one.sums.size)
        np.testing.assert_array_equal(tokens.weights_for(name, shape), legacy.weights_for(name, shape))
        assert tokens.entries[name].counts == one.counts * 512
    huge = Imatrix(entries={"a.weight": entry([3e38], [1])})
    with pytest.raises(FormatError, match=r"a\.weight holds inf at position 0"):
        huge.in_tokens()


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path):
    long = Imatrix(entries={"b" * 56: entry([1], [1])}, chunk_size=1)
    with pytest.raises(WriteError, match="too long a name"):
        write_imatrix(tmp_path / "out", long, "gguf")
    write_imatrix(tmp_path / "out", long, "dat")
    empty = Imatrix(entries={"a.weight": entry([1], [0])}, chunk_size=1)
    with pytest.raises(WriteError, match="no entry with data"):
        write_imatrix(tmp_path / "out", empty, "dat")
    vast = Imatrix(entries={"a.weight": entry([1], [1 << 40])}, chunk_size=1)
    with pytest.raises(WriteError, match="1099511627776"):
        write_imatrix(tmp_path / "out", vast, "dat")
    with pytest.raises(WriteError, match="nowhere"):
        write_imatrix(tmp_path / "nowhere" / "out", long, "dat")
    with pytest.raises(UsageError, match="csv"):
        write_imatrix(tmp_path / "out", long, "csv")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert list(read_imatrix(tmp_path / "out").entries) == ["b" * 56]


def test_files_of_another_kind_of_name_are_not_touched(tmp_path):
    foreign = [tmp_path / name for name in (".out.4711.tmp", ".out.0123456g.tmp", ".other.01234567.tmp")]
    for path in foreign:
        path.write_bytes(b"mine")
    write_imatrix(tmp_path / "out", read_imatrix(DATA / "legacy.dat"), "dat")
    assert [path.read_bytes() for path in foreign] == [b"mine"] * 3


def test_a_link_stays_one(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "out")
    write_imatrix(tmp_path / "link", read_imatrix(DATA / "legacy.dat"), "dat")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "out").read_bytes() == (DATA / "legacy.dat").read_bytes()


def test_what_llama_quantize_writes_about_a_matrix():
    fields = read_imatrix(DATA / "sorted.imatrix").provenance("some/" + "x" * 121 + "ü.gguf")
    assert [(f.key, f.value, f.type.name) for f in fields] == [
        ("quantize.imatrix.file", "some/" + "x" * 121, "STRING"),
        ("quantize.imatrix.dataset", "a.txt", "STRING"),
        ("quantize.imatrix.entries_count", 5, "UINT32"),
        ("quantize.imatrix.chunks_count", 7, "UINT32"),
    ]
    bare = Imatrix(entries={"a.weight": entry([1], [1])})
    assert [f.key for f in bare.provenance("m")] == ["quantize.imatrix.file", "quantize.imatrix.entries_count"]


def test_a_matrix_is_no_model():
    with (
        open_gguf(DATA / "sorted.imatrix") as file,
        pytest.raises(FormatError, match=r"general\.architecture is absent"),
    ):
        _ = file.arch
