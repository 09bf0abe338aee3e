"""The GGUF reader against files that the `gguf` package writes, and its checks of blocks and its summary."""

import json
import subprocess
import sys

import gguf
import numpy as np
import pytest

from hf2q.errors import FormatError, LoadError, MissingFileError, SourceError
from hf2q.formats.ggml_types import GGML_TYPES, ggml_type, row_bytes
from hf2q.formats.gguf import check_blocks, describe, open_gguf
from hf2q.types import MetadataField, ValueType

SCALARS = {
    "x.u8": (ValueType.UINT8, 200),
    "x.i8": (ValueType.INT8, -7),
    "x.u16": (ValueType.UINT16, 65535),
    "x.i16": (ValueType.INT16, -300),
    "x.u32": (ValueType.UINT32, 4_000_000_000),
    "x.i32": (ValueType.INT32, -5),
    "x.f32": (ValueType.FLOAT32, 0.5),
    "x.bool": (ValueType.BOOL, True),
    "x.str": (ValueType.STRING, "grüße 漢字 🙂"),
    "x.u64": (ValueType.UINT64, 1 << 63),
    "x.i64": (ValueType.INT64, -(1 << 62)),
    "x.f64": (ValueType.FLOAT64, 1e-300),
}
ARRAYS = {
    "y.str": (ValueType.STRING, ("a", "", "ü", "<|end|>")),
    "y.i32": (ValueType.INT32, (1, -2, 3)),
    "y.f32": (ValueType.FLOAT32, (0.25, -1.0)),
    "y.bool": (ValueType.BOOL, (True, False, True)),
}


def peer_file(path, tensors=(), *, blocks=None, alignment=None):
    """A file by the independent writer: all value types, then `tensors` of (name, array)."""
    writer = gguf.GGUFWriter(str(path), "toy")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    if blocks is not None:
        writer.add_block_count(blocks)
    for key, (kind, value) in SCALARS.items():
        writer.add_key_value(key, value, gguf.GGUFValueType(int(kind)))
    for key, (_, values) in ARRAYS.items():
        writer.add_array(key, list(values))
    for name, array in tensors:
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def arrays():
    rng = np.random.default_rng(1)
    return [
        ("token_embd.weight", rng.standard_normal((5, 32), np.float32)),
        ("blk.0.attn_norm.weight", rng.standard_normal(32, np.float32)),
        ("blk.0.ffn_up_exps.weight", rng.standard_normal((3, 4, 32)).astype(np.float16)),
        ("blk.1.attn_norm.weight", np.arange(7, dtype=np.int32)),
    ]


def test_table_of_types_agrees_with_the_gguf_package():
    for known in set(gguf.GGMLQuantizationType) - {gguf.GGMLQuantizationType.Q8_1}:  # it says 40, ggml-common.h 36
        ours = GGML_TYPES[known.name]
        assert (ours.id, ours.block_size, ours.type_size) == (known.value, *gguf.GGML_QUANT_SIZES[known])
        assert ggml_type(known.value) is ours
    assert row_bytes("Q4_K", 512) == 288
    assert row_bytes("F32", 0) == 0


@pytest.mark.parametrize("number", [-1, 4, 31, 38, 43, 1 << 31])
def test_types_that_do_not_exist_are_refused(number):
    with pytest.raises(FormatError, match=str(number)):
        ggml_type(number)


def test_a_row_must_be_whole_blocks_of_a_known_type():
    with pytest.raises(FormatError, match="not a whole number of Q4_K blocks of 256"):
        row_bytes("Q4_K", 255)
    with pytest.raises(FormatError, match="'Q9_Z' is unknown"):
        row_bytes("Q9_Z", 256)


@pytest.mark.parametrize("alignment", [None, 8, 256])
def test_reads_what_the_gguf_package_writes(tmp_path, alignment):
    tensors = arrays()
    path = peer_file(tmp_path / "peer.gguf", tensors, alignment=alignment)
    with open_gguf(path) as file:
        assert (file.version, file.alignment, file.arch) == (3, alignment or 32, "toy")
        for key, (kind, value) in SCALARS.items():
            assert file.field(key) == MetadataField(key=key, type=kind, value=value)
        for key, (element, values) in ARRAYS.items():
            assert file.field(key) == MetadataField.array(key, element, values)
            assert file.array(key, element) == values == file.metadata[key]
            assert file.array_length(key) == len(values)
        assert set(file.keys_in_order) >= {"general.architecture", *SCALARS, *ARRAYS}
        assert file.keys_in_order == tuple(file.metadata)
        assert list(file.tensors) == [name for name, _ in tensors]
        for name, array in tensors:
            assert file.tensors[name].shape == array.shape
            assert file.tensors[name].nbytes == array.nbytes
            assert file.tensors[name].offset % file.alignment == 0
            rows = file.rows(name)
            assert rows.dtype == np.uint8
            assert rows.shape == (int(np.prod(array.shape[:-1])), array.shape[-1] * array.itemsize)
            assert rows.tobytes() == array.tobytes()


def test_quantized_rows_and_views_that_outlive_the_file(tmp_path):
    raw = np.random.default_rng(2).integers(0, 256, (6, 288), np.uint8)
    writer = gguf.GGUFWriter(str(tmp_path / "q.gguf"), "toy")
    writer.add_tensor("w", raw.reshape(2, 3, 288), raw_dtype=gguf.GGMLQuantizationType.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = open_gguf(str(tmp_path / "q.gguf"))
    assert file.tensors["w"].shape == (2, 3, 512)
    assert file.tensors["w"].qtype == "Q4_K"
    rows = file.rows("w")
    assert not rows.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        rows[0, 0] = 1
    file.close()
    file.close()
    assert np.array_equal(rows, raw)
    with pytest.raises(ValueError, match="closed"):
        file.rows("w")


def test_arrays_are_read_only_when_asked_for(tmp_path):
    """A token that is not UTF-8 does not stop the file from opening, only its array from being read."""
    path = peer_file(tmp_path / "peer.gguf")
    raw = path.read_bytes()
    path.write_bytes(raw.replace("ü".encode(), b"\xff\xff", 2).replace(b"gr\xff\xff", "grü".encode()))
    with open_gguf(path) as file:
        assert file.array_length("y.str") == 4
        assert file.metadata.head("y.str", 2) == ("a", "")
        with pytest.raises(FormatError, match=r"element 2 of 'y\.str' is not UTF-8"):
            file.metadata["y.str"]


def test_wrong_questions_are_refused(tmp_path):
    with open_gguf(peer_file(tmp_path / "peer.gguf")) as file:
        with pytest.raises(FormatError, match=r"no tensor 'w'"):
            file.rows("w")
        for ask in (file.field, file.array_length):
            with pytest.raises(FormatError, match="no key 'nothing'"):
                ask("nothing")
        with pytest.raises(FormatError, match=r"'x\.u8' is of type UINT8, expected an array"):
            file.array_length("x.u8")
        with pytest.raises(FormatError, match=r"'y\.i32' is an array of INT32, expected an array of STRING"):
            file.array("y.i32", ValueType.STRING)
        with pytest.raises(FormatError, match=r"'x\.str' is STRING, expected an array of STRING"):
            file.array("x.str", ValueType.STRING)


def test_files_that_are_none(tmp_path):
    with pytest.raises(MissingFileError, match="does not exist"):
        open_gguf(tmp_path / "nothing.gguf")
    with pytest.raises(SourceError, match="is a directory"):
        open_gguf(tmp_path)
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(FormatError, match="not a GGUF file"):
        open_gguf(tmp_path / "empty")
    (tmp_path / "pointer").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(MissingFileError, match="git-lfs pointer"):
        open_gguf(tmp_path / "pointer")
    with pytest.raises(MissingFileError, match="cannot be the name of a file"):
        open_gguf("a\0b")


def test_check_blocks(tmp_path):
    def opened(blocks, names):
        tensors = [(name, np.zeros(4, np.float32)) for name in names]
        return open_gguf(peer_file(tmp_path / "blocks.gguf", tensors, blocks=blocks))

    with opened(2, ["blk.0.a", "blk.1.a", "blk.1.b", "output"]) as file:
        assert check_blocks(file) == 2
    with opened(0, ["output"]) as file:
        assert check_blocks(file) == 0
    with opened(2, ["blk.0.a", "blk.2.a"]) as file, pytest.raises(LoadError, match="tensors of block 2"):
        check_blocks(file)
    with opened(3, ["blk.0.a", "blk.2.a"]) as file, pytest.raises(LoadError, match="block 1 has no tensors"):
        check_blocks(file)
    with opened(4_000_000_000, ["blk.0.a"]) as file, pytest.raises(LoadError, match="block 1 has no tensors"):
        check_blocks(file)
    with opened(None, ["blk.0.a"]) as file, pytest.raises(LoadError, match=r"no key 'toy\.block_count'"):
        check_blocks(file)


def test_description_is_json_and_complete(tmp_path):
    writer = gguf.GGUFWriter(str(tmp_path / "d.gguf"), "toy")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list([f"token{i}" for i in range(300)])
    writer.add_token_merges(["a b", "c d"])
    writer.add_eos_token_id(7)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{{ messages }}")
    writer.add_float32("toy.infinite", float("inf"))
    writer.add_array("toy.numbers", list(range(20)))
    for name, array in arrays():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with (tmp_path / "d.gguf").open("ab") as more:
        more.write(b"tail")
    with open_gguf(tmp_path / "d.gguf") as file:
        found = json.loads(json.dumps(describe(file), allow_nan=False))
    keys = {entry["key"]: entry for entry in found["metadata"]}
    assert found["tokenizer"] == {
        "model": "gpt2",
        "pre": "qwen35",
        "tokens": 300,
        "merges": 2,
        "special_ids": {"eos": 7},
        "add": {"add_bos_token": False},
    }
    assert found["chat_template"] == {"length": 14, "named": []}
    assert keys["tokenizer.ggml.tokens"] == {
        "key": "tokenizer.ggml.tokens",
        "type": "ARRAY",
        "element": "STRING",
        "length": 300,
        "head": [],
    }
    assert keys["toy.numbers"]["head"] == list(range(8))
    assert keys["toy.infinite"]["value"] == "inf"
    assert found["parameters"] == 5 * 32 + 32 + 3 * 4 * 32 + 7
    assert found["tensor_bytes"] == sum(array.nbytes for _, array in arrays())
    assert found["qtypes"]["F16"] == {"tensors": 1, "parameters": 384, "nbytes": 768}
    assert found["bits_per_weight"] == round(found["tensor_bytes"] * 8 / found["parameters"], 4)
    assert found["tensors"][2] == {
        "name": "blk.0.ffn_up_exps.weight",
        "shape": [3, 4, 32],
        "qtype": "F16",
        "nbytes": 768,
    }
    assert found["trailing_bytes"] == 4
    assert found["size"] == (tmp_path / "d.gguf").stat().st_size


def test_description_without_tokenizer_or_weights(tmp_path):
    with open_gguf(peer_file(tmp_path / "peer.gguf")) as file:
        found = describe(file)
    assert found["tokenizer"] is None
    assert found["chat_template"] is None
    assert found["bits_per_weight"] is None
    assert (found["parameters"], found["tensors"]) == (0, [])


def test_a_large_vocabulary_is_not_materialised(tmp_path):
    """250,000 tokens: the summary decodes none of them and imports no numpy."""
    writer = gguf.GGUFWriter(str(tmp_path / "v.gguf"), "toy")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(250_000)])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    code = (
        "import sys, tracemalloc\n"
        "from hf2q.formats.gguf import open_gguf, describe\n"
        "tracemalloc.start()\n"
        "with open_gguf(sys.argv[1]) as file: print(describe(file)['tokenizer']['tokens'])\n"
        "assert tracemalloc.get_traced_memory()[1] < 1_000_000, tracemalloc.get_traced_memory()\n"
        "assert 'numpy' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "v.gguf")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "250000\n"), done.stderr
