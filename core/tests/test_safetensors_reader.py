"""The checkpoint reader against files that the `safetensors` library writes and reads."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from hf2q.errors import ContractError, FormatError, MissingFileError, TensorMismatchError
from hf2q.formats.safetensors import CheckpointFile, open_checkpoint
from hf2q.formats.safetensors.header import BITS


def save(folder, files, metadata=None, index=True):
    """Write `files` of {file: {tensor: array}} and an index for them."""
    folder.mkdir(exist_ok=True)
    weight_map = {}
    for file, tensors in files.items():
        save_file(tensors, folder / file, metadata)
        weight_map |= dict.fromkeys(tensors, file)
    if index:
        text = json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(text)
    return folder


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "b.weight": rng.standard_normal((7, 5), np.float32),
        "a.weight": rng.standard_normal((2, 3, 4)).astype(np.float16),
        "B.bias": rng.standard_normal(6, np.float32),
        "scalar": np.array(2.5, np.float32),
        "empty": np.zeros((0, 4), np.float32),
        "hollow": np.zeros((4, 0), np.float32),
    }


def test_one_file(tmp_path):
    tensors = arrays()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    found = open_checkpoint(tmp_path)
    assert list(found.tensors) == sorted(tensors)
    assert found.files == (
        CheckpointFile(name="model.safetensors", size=(tmp_path / "model.safetensors").stat().st_size),
    )
    assert dict(found.metadata["model.safetensors"]) == {"format": "pt"}
    for name, array in tensors.items():
        info, rows = found.tensors[name], found.rows(name)
        assert info.shape == rows.shape == array.shape
        assert info.dtype == rows.dtype == {"float32": "F32", "float16": "F16"}[array.dtype.name]
        assert info.nbytes == array.nbytes
        raw = (tmp_path / info.file).read_bytes()[info.offset : info.offset + info.nbytes]
        assert raw == array.tobytes()
        matrix = array.astype(np.float32).reshape(int(np.prod(array.shape[:-1])), *(array.shape[-1:] or (1,)))
        read = rows.read(0, len(matrix))
        assert read.dtype == np.float32
        assert read.flags.c_contiguous
        assert read.flags.owndata or read.base.flags.owndata
        assert np.array_equal(read, matrix)


def test_any_range_of_rows(tmp_path):
    array = np.arange(60, dtype=np.float16).reshape(3, 4, 5)
    save_file({"w": array}, tmp_path / "model.safetensors")
    rows = open_checkpoint(tmp_path).rows("w")
    matrix = array.reshape(12, 5).astype(np.float32)
    for start in range(13):
        for stop in range(start, 13):
            assert np.array_equal(rows.read(start, stop), matrix[start:stop])
    for start, stop in ((-1, 2), (3, 2), (0, 13), (13, 13)):
        with pytest.raises(ContractError, match="within its 12"):
            rows.read(start, stop)


def test_a_read_is_a_copy(tmp_path):
    save_file({"w": np.ones((2, 2), np.float32)}, tmp_path / "model.safetensors")
    rows = open_checkpoint(tmp_path).rows("w")
    rows.read(0, 2)[:] = 7
    assert np.array_equal(rows.read(0, 2), np.ones((2, 2)))


def test_every_bfloat16_is_the_upper_half_of_a_float32(tmp_path):
    bits = np.arange(65536, dtype="<u2")
    header = json.dumps({"w": {"dtype": "BF16", "shape": [256, 256], "data_offsets": [0, 131072]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bits.tobytes())
    rows = open_checkpoint(tmp_path).rows("w")
    assert rows.dtype == "BF16"
    assert rows.read(0, 256).tobytes() == b"".join(b"\0\0" + int(value).to_bytes(2, "little") for value in bits)
    assert rows.read(63, 65)[0, 128] == 1.0  # 0x3F80


def test_every_float16_is_exact(tmp_path):
    bits = np.arange(65536, dtype=np.uint16)
    save_file({"w": bits.view(np.float16).reshape(256, 256)}, tmp_path / "model.safetensors")
    read = open_checkpoint(tmp_path).rows("w").read(0, 256)
    exponent, fraction = (bits >> 10 & 31).astype(np.int64), (bits & 1023).astype(np.float64)
    exact = np.where(exponent == 0, fraction * 2.0**-24, (1 + fraction / 1024) * 2.0 ** (exponent - 15))
    exact = np.where(bits >> 15, -exact, exact)
    finite = exponent != 31
    assert np.array_equal(read.ravel()[finite], exact[finite])
    assert np.isnan(read.ravel()[(exponent == 31) & (fraction > 0)]).all()
    assert np.isinf(read.ravel()[(exponent == 31) & (fraction == 0)]).all()


def test_float64_is_rounded_and_never_overflows(tmp_path):
    values = np.array([[1 / 3, 1 + 2**-24, 1 + 3 * 2**-24, np.inf, np.nan, 1e-50]])
    save_file({"good": values, "bad": np.array([[0.0], [1e39]])}, tmp_path / "model.safetensors")
    found = open_checkpoint(tmp_path)
    expected = np.array([[np.float32(1 / 3), 1, 1 + 2**-22, np.inf, np.nan, 0]], np.float32)
    assert np.array_equal(found.rows("good").read(0, 1), expected, equal_nan=True)
    assert np.array_equal(found.rows("bad").read(0, 1), [[0]])
    with pytest.raises(TensorMismatchError, match="'bad' holds F64 values beyond"):
        found.rows("bad").read(0, 2)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.bool_])
def test_small_integers_are_listed_but_not_read(tmp_path, dtype):
    save_file({"ids": np.zeros(3, dtype), "w": np.ones(1, np.float32)}, tmp_path / "model.safetensors")
    found = open_checkpoint(tmp_path)
    assert found.tensors["ids"].shape == (3,)
    with pytest.raises(TensorMismatchError, match=f"'ids' has the dtype {found.tensors['ids'].dtype}"):
        found.rows("ids")
    with pytest.raises(TensorMismatchError, match="no tensor 'none'"):
        found.rows("none")


@pytest.mark.parametrize("dtype", sorted(BITS))
def test_every_dtype_has_the_size_that_the_library_gives_it(tmp_path, dtype):
    header = json.dumps({"w": {"dtype": dtype, "shape": [8], "data_offsets": [0, BITS[dtype]]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(BITS[dtype]))
    with safe_open(tmp_path / "model.safetensors", "np") as peer:
        assert list(peer.keys()) == ["w"]
    assert open_checkpoint(tmp_path).tensors["w"].nbytes == BITS[dtype]


@pytest.mark.parametrize("names", [
    ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
    ("model.safetensors-00001-of-00002.safetensors", "model.safetensors-00002-of-00002.safetensors"),
])  # fmt: skip
@pytest.mark.parametrize("index", [True, False])
def test_shards_come_by_file_and_then_by_name(tmp_path, names, index):
    first = {"z": np.ones(1, np.float32), "m": np.ones(1, np.float16)}
    second = {"a": np.ones(2, np.float32), "B": np.ones(1, np.float16)}
    save(tmp_path, {names[1]: second, names[0]: first}, index=index)
    found = open_checkpoint(str(tmp_path))
    assert list(found.tensors) == ["m", "z", "B", "a"]
    assert [file.name for file in found.files] == list(names)
    assert found.tensors["a"].file == names[1]
    assert np.array_equal(found.rows("a").read(0, 1), [[1, 1]])


def test_the_index_decides_which_files_count(tmp_path):
    save(tmp_path, {"model-1.safetensors": {"a": np.ones(1, np.float32)}})
    save_file({"a": np.zeros(1, np.float32)}, tmp_path / "model-old.safetensors")
    save_file({"c": np.zeros(1, np.float32)}, tmp_path / "consolidated.safetensors")
    assert list(open_checkpoint(tmp_path).tensors) == ["a"]


def test_an_index_may_name_files_in_folders_below(tmp_path):
    (tmp_path / "weights").mkdir()
    save(tmp_path, {"weights/part.safetensors": {"a": np.ones(1, np.float32)}})
    found = open_checkpoint(tmp_path)
    assert found.tensors["a"].file == "weights/part.safetensors"
    assert np.array_equal(found.rows("a").read(0, 1), [[1]])


def test_links_of_the_hubs_cache_are_followed(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    save_file({"a": np.ones(1, np.float32)}, tmp_path / "blobs" / "0123")
    (tmp_path / "snapshot" / "model.safetensors").symlink_to("../blobs/0123")
    assert np.array_equal(open_checkpoint(tmp_path / "snapshot").rows("a").read(0, 1), [[1]])


def test_what_mlx_wrote_can_be_told(tmp_path):
    save(tmp_path, {"model.safetensors": arrays()}, {"format": "mlx"})
    assert {data["format"] for data in open_checkpoint(tmp_path).metadata.values()} == {"mlx"}


def test_threads_read_alike(tmp_path):
    array = np.random.default_rng(5).standard_normal((400, 64), np.float32)
    save_file({"w": array}, tmp_path / "model.safetensors")
    rows = open_checkpoint(tmp_path).rows("w")
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda start: rows.read(start, start + 4), range(0, 400, 4)))
    assert np.array_equal(np.concatenate(parts), array)


def test_a_file_that_changes_underneath_is_noticed(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"w": np.ones((2, 2), np.float32)}, path)
    rows = open_checkpoint(tmp_path).rows("w")
    os.utime(path, ns=(0, 0))
    with pytest.raises(FormatError, match="changed while it was being read"):
        rows.read(0, 1)
    path.unlink()
    with pytest.raises(MissingFileError, match="does not exist"):
        rows.read(0, 1)


@pytest.mark.parametrize("change", [lambda path: os.truncate(path, 100), lambda path: os.utime(path, ns=(0, 0))])
def test_a_file_that_changes_between_being_opened_and_read_is_noticed(tmp_path, monkeypatch, change):
    path = tmp_path / "model.safetensors"
    save_file({"w": np.ones((8, 8), np.float32)}, path)
    rows = open_checkpoint(tmp_path).rows("w")
    real = os.preadv

    def late(descriptor, buffers, offset):
        change(path)
        return real(descriptor, buffers, offset)

    monkeypatch.setattr("hf2q.formats.files.os.preadv", late)
    with pytest.raises(FormatError, match=r"model\.safetensors changed while it was being read") as raised:
        rows.read(0, 8)
    assert raised.value.hint == "start again"


def test_nothing_stays_open_and_no_numpy_is_needed_to_look(tmp_path):
    save_file(arrays(), tmp_path / "model.safetensors")
    code = (
        "import os, sys\n"
        "from hf2q.formats.safetensors import open_checkpoint\n"
        "before = set(os.listdir('/dev/fd'))\n"
        "found = open_checkpoint(sys.argv[1])\n"
        "assert 'numpy' not in sys.modules\n"
        "found.rows('b.weight').read(0, 7)\n"
        "assert set(os.listdir('/dev/fd')) == before\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_tables_of_integers_are_read_exactly_or_refused(tmp_path, dtype):
    table = np.array([[0, 1, 255], [-7, 1 << 20, (1 << 24) - 1]], dtype)
    save_file({"ids": table, "large": np.array([1 << 24], dtype)}, tmp_path / "model.safetensors")
    found = open_checkpoint(tmp_path)
    assert np.array_equal(found.rows("ids").read(0, 2), table.astype(np.float32))
    with pytest.raises(TensorMismatchError, match="'large' holds integers"):
        found.rows("large").read(0, 1)
