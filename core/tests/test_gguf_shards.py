"""Models in several files: found as a whole or not at all, and appearing as a whole or not at all."""

import msgspec
import numpy as np
import pytest

from hf2q.convert.shards import cut_plan, group_tensors, shard_paths
from hf2q.errors import FormatError, MissingFileError, SourceError, UsageError, WriteError
from hf2q.formats.gguf import GgufWriter, open_gguf
from hf2q.formats.gguf.shards import ShardedWriter, open_shards, split_fields
from hf2q.types import MetadataField, Plan, TensorPlan

COUNT = 5


def tensor(index, columns=8):
    return TensorPlan(
        name=f"blk.{index}.x.weight",
        shape=(2, columns),
        qtype="F32",
        via="F32",
        reason="",
        nbytes=8 * columns,
        offset=index * 64,
        inputs=(),
    )


@pytest.fixture
def plan():
    fields = (MetadataField.string("general.architecture", "a"), MetadataField.u32("a.block_count", COUNT))
    return Plan(arch="a", recipe="f32", via="f32", metadata=fields, tensors=tuple(tensor(i) for i in range(COUNT)))


def data(index):
    return np.full((2, 8), index, np.float32).view(np.uint8)


def writer(folder, plan, counts):
    paths = [str(path) for path in shard_paths(folder / "m.gguf", len(counts), ".gguf")]
    return ShardedWriter(paths, cut_plan(plan, counts)), paths


@pytest.fixture
def written(plan, tmp_path):
    def write(counts=(2, 2, 1)):
        made, paths = writer(tmp_path, plan, counts)
        for i in range(COUNT):
            made.write(f"blk.{i}.x.weight", data(i))
        made.close()
        return paths

    return write


@pytest.mark.parametrize("counts", [(2, 2, 1), (1, 4), (0, 5), (5, 0), (3, 0, 2)])
def test_what_is_written_is_found(written, counts):
    paths = written(counts)
    files = open_shards(paths[0])
    assert [len(file.tensors) for file in files] == list(counts)
    for index, file in enumerate(files):
        keys = ["split.no", "split.count", "split.tensors.count"]
        assert list(file.keys_in_order) == (["general.architecture", "a.block_count"] if index == 0 else []) + keys
        own = [file.field(key) for key in keys]
        assert own == list(split_fields(index, len(counts), COUNT))
        assert [field.type.name for field in own] == ["UINT16", "UINT16", "INT32"]
        for name in file.tensors:
            assert np.array(file.rows(name)).tobytes() == data(int(name.split(".")[1])).tobytes()
        file.close()


def test_names(tmp_path):
    assert [path.name for path in shard_paths(tmp_path / "m.gguf", 2, ".gguf")] == [
        "m-00001-of-00002.gguf",
        "m-00002-of-00002.gguf",
    ]
    assert shard_paths(tmp_path / "m.v1", 1, ".gguf")[0].name == "m.v1-00001-of-00001.gguf"


def test_no_name_appears_before_the_last_byte(plan, tmp_path):
    made, _ = writer(tmp_path, plan, (2, 2, 1))
    for i in range(COUNT):
        made.write(f"blk.{i}.x.weight", data(i))
        assert not list(tmp_path.glob("*.gguf"))
    made.close()
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("until", range(COUNT))
def test_an_abort_leaves_nothing(plan, tmp_path, until):
    made, _ = writer(tmp_path, plan, (2, 2, 1))
    for i in range(until):
        made.write(f"blk.{i}.x.weight", data(i))
    made.abort()
    made.abort()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("order", [(1,), (0, 2), (0, 1, 3), (0, 0)])
def test_a_wrong_order_leaves_nothing(plan, tmp_path, order):
    made, _ = writer(tmp_path, plan, (2, 2, 1))
    *right, wrong = order
    for i in right:
        made.write(f"blk.{i}.x.weight", data(i))
    with pytest.raises(WriteError):
        made.write(f"blk.{wrong}.x.weight", data(wrong))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(WriteError):
        made.close()


def test_a_missing_end_leaves_nothing(plan, tmp_path):
    made, _ = writer(tmp_path, plan, (2, 3))
    for i in range(4):
        made.write(f"blk.{i}.x.weight", data(i))
    with pytest.raises(WriteError, match=r"blk\.4\.x\.weight"):
        made.close()
    assert list(tmp_path.iterdir()) == []


def test_the_first_shard_gets_its_name_last(written, plan, tmp_path, monkeypatch):
    named = []
    publish = GgufWriter.publish
    monkeypatch.setattr(GgufWriter, "publish", lambda self: (named.append(self._path), publish(self)))
    paths = written()
    assert named == paths[::-1]


def test_unfinished_files_get_no_name(plan, tmp_path):
    made = GgufWriter(str(tmp_path / "x.gguf"), plan)
    with pytest.raises(WriteError, match="not finished"):
        made.publish()
    made.abort()
    with pytest.raises(WriteError, match="not finished"):
        made.publish()


def test_later_shards_are_no_way_in(written):
    paths = written()
    with pytest.raises(SourceError, match="shard 2 of 3") as caught:
        open_shards(paths[1])
    assert paths[0] in caught.value.hint


def test_missing_shards_are_named(written, tmp_path):
    paths = written()
    (tmp_path / "m-00002-of-00003.gguf").unlink()
    with pytest.raises(MissingFileError, match=r"m-00002-of-00003\.gguf does not exist; it is shard 2 of 3"):
        open_shards(paths[0])


def test_renamed_shards(written, tmp_path):
    paths = written()
    (tmp_path / "m-00001-of-00003.gguf").rename(tmp_path / "first.gguf")
    with pytest.raises(FormatError, match="first of 3 shards, but its name does not"):
        open_shards(str(tmp_path / "first.gguf"))
    (tmp_path / "first.gguf").rename(paths[0])
    (tmp_path / "m-00003-of-00003.gguf").replace(tmp_path / "m-00002-of-00003.gguf")
    with pytest.raises(FormatError, match="says that it is shard 3 of 3, expected 2 of 3"):
        open_shards(paths[0])


def test_shards_of_two_models(plan, tmp_path):
    """Each says the right number, but together they hold a tensor twice, or too few."""
    plans = cut_plan(plan, (2, 3))
    paths = [str(path) for path in shard_paths(tmp_path / "m.gguf", 2, ".gguf")]
    for second, words in ((cut_plan(plan, (1, 4))[1], "is in both"), (cut_plan(plan, (4, 1))[1], "count is 5")):
        for path, one in zip(paths, (plans[0], second), strict=True):
            made = GgufWriter(path, one)
            for part in one.tensors:
                made.write(part.name, data(0))
            made.close()
        with pytest.raises(FormatError, match=words):
            open_shards(paths[0])


@pytest.mark.parametrize(
    ("size", "tensors", "counts"),
    [
        (64, None, (1, 1, 1, 1, 1)),
        (128, None, (2, 2, 1)),
        (191, None, (2, 2, 1)),
        (192, None, (3, 2)),
        (None, 2, (2, 2, 1)),
        (None, 5, (5,)),
        (192, 2, (2, 2, 1)),
        (128, 3, (2, 2, 1)),
        (1 << 40, None, (5,)),
    ],
)
def test_limits(plan, size, tensors, counts):
    assert group_tensors(plan, size, tensors) == counts


def test_limits_that_cannot_be_kept(plan):
    with pytest.raises(UsageError, match="--split-max-tensors is 0"):
        group_tensors(plan, None, 0)


def test_a_tensor_larger_than_the_limit_gets_a_file_of_its_own(plan, caplog):
    big = msgspec.structs.replace(plan, tensors=(tensor(0), tensor(1, 64), tensor(2), tensor(3)))
    assert group_tensors(big, 128, None) == (1, 1, 2)
    assert group_tensors(msgspec.structs.replace(big, tensors=big.tensors[1:]), 128, None) == (1, 2)
    assert "--split-max-size is 128 bytes, and 1 tensors are larger" in caplog.text
    assert "blk.1.x.weight (512)" in caplog.text


def test_padding_counts_where_gguf_split_would_divide_the_file(plan):
    odd = msgspec.structs.replace(plan, tensors=tuple(tensor(i, 5) for i in range(4)))  # 40 bytes, 64 with padding
    assert group_tensors(odd, 120, None) == (3, 1)
    assert group_tensors(msgspec.structs.replace(odd, recipe="q8_0"), 120, None) == (1, 1, 1, 1)
    assert group_tensors(msgspec.structs.replace(odd, via=""), 128, None) == (2, 2)


def test_offsets_begin_anew_in_each_shard(plan):
    assert [[t.offset for t in one.tensors] for one in cut_plan(plan, (2, 3))] == [[0, 64], [0, 64, 128]]


def test_one_file_is_a_set_of_one(plan, tmp_path):
    made = GgufWriter(str(tmp_path / "x.gguf"), plan)
    for i in range(COUNT):
        made.write(f"blk.{i}.x.weight", data(i))
    made.close()
    (only,) = open_shards(str(tmp_path / "x.gguf"))
    with only, open_gguf(tmp_path / "x.gguf") as same:
        assert list(only.tensors) == list(same.tensors)
