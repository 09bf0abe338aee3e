"""`hf2q info`: what is in a GGUF file, as text and as JSON; nothing of a hostile file reaches the terminal raw."""

import json
from pathlib import Path

import numpy as np
import pytest

from hf2q.cli import main
from hf2q.cli.output import printable, size
from hf2q.convert.shards import cut_plan, shard_paths
from hf2q.formats.gguf import GgufWriter
from hf2q.formats.gguf.shards import ShardedWriter
from hf2q.types import MetadataField, Plan, TensorPlan, ValueType


@pytest.fixture
def file(tmp_path):
    """A function that writes a small GGUF file with some metadata."""

    def make(*metadata, tensors=(("token_embd.weight", (4, 32), "F32", 512), ("blk.0.x.weight", (2, 64), "Q8_0", 136))):
        offset, plans = 0, []
        for name, shape, qtype, nbytes in tensors:
            plans.append(
                TensorPlan(
                    name=name, shape=shape, qtype=qtype, via=qtype, reason="", nbytes=nbytes, offset=offset, inputs=()
                )
            )
            offset += -(-nbytes // 32) * 32
        fields = (MetadataField.string("general.architecture", "qwen35"), *metadata)
        writer = GgufWriter(str(tmp_path / "m.gguf"), plan(fields, plans))
        for tensor in plans:
            writer.write(tensor.name, np.zeros(tensor.nbytes, np.uint8))
        writer.close()
        return tmp_path / "m.gguf"

    return make


def plan(metadata, tensors):
    return Plan(arch="qwen35", recipe="q8_0", via="f32", metadata=tuple(metadata), tensors=tuple(tensors))


def test_text(file, capsys):
    path = file(
        MetadataField.f32("qwen35.rope.freq_base", 1e6),
        MetadataField.array("qwen35.kinds", ValueType.BOOL, [True, False]),
        MetadataField.string("tokenizer.ggml.model", "gpt2"),
        MetadataField.string("tokenizer.ggml.pre", "qwen35"),
        MetadataField.array("tokenizer.ggml.tokens", ValueType.STRING, ["a"] * 1000),
        MetadataField.string("tokenizer.chat_template", "x" * 300),
    )
    assert main(["info", str(path)]) == 0
    out = capsys.readouterr().out
    for told in (
        "arch             qwen35",
        "parameters       256",
        "tensors          2, 648 B",
        "bits per weight  20.25",
        "tokenizer        gpt2, pre-tokenizer qwen35, 1,000 tokens",
        "chat template    300 characters",
        "qwen35.rope.freq_base    float32       1000000",
        "True, False",
        "string[1000]",
        "(300 characters)",
    ):
        assert told in out, told
    assert "blk.0.x.weight" not in out


def test_tensors_are_listed_when_asked_for(file, capsys):
    assert main(["info", str(file()), "--tensors"]) == 0
    assert "blk.0.x.weight     2 x 64  Q8_0  136 B" in capsys.readouterr().out


def test_json(file, capsys):
    assert main(["info", str(file()), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["arch"] == "qwen35"
    assert [tensor["shape"] for tensor in told["tensors"]] == [[4, 32], [2, 64]]


def test_control_characters_of_a_file_are_escaped(file, capsys):
    assert main(["info", str(file(MetadataField.string("general.name", "\x1b[2Jgone\r\n\u202edlrow")))]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert r"\x1b[2Jgone\r\n\u202edlrow" in out


def test_a_folder_without_a_checkpoint_is_refused_with_a_hint(tmp_path, capsys):
    assert main(["info", str(tmp_path)]) == 3
    err = capsys.readouterr().err
    assert "config.json does not exist" in err
    assert "a checkpoint is a directory with config.json in it" in err


def test_a_revision_of_something_local_is_refused(file, capsys):
    assert main(["info", str(file()), "--revision", "main"]) == 3
    assert "--revision main cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "told"), [(b"", "0 bytes"), (b"not a gguf file at all, really", "not a GGUF file")]
)
def test_what_is_no_gguf_file_is_refused(content, told, tmp_path, capsys):
    (tmp_path / "x.gguf").write_bytes(content)
    assert main(["info", str(tmp_path / "x.gguf")]) == 3
    err = capsys.readouterr().err
    assert "x.gguf" in err
    assert "Traceback" not in err


@pytest.fixture
def shards(tmp_path):
    """Three files of one model, with two, one and one tensors."""
    tensors = [
        TensorPlan(
            name=f"blk.{i}.x.weight",
            shape=(4, 8),
            qtype="F32",
            via="F32",
            reason="",
            nbytes=128,
            offset=128 * i,
            inputs=(),
        )
        for i in range(4)
    ]
    paths = [str(path) for path in shard_paths(tmp_path / "m.gguf", 3, ".gguf")]
    fields = (MetadataField.string("general.architecture", "qwen35"),)
    writer = ShardedWriter(paths, cut_plan(plan(fields, tensors), (2, 1, 1)))
    for tensor in tensors:
        writer.write(tensor.name, np.zeros(128, np.uint8))
    writer.close()
    return paths


def test_shards_are_shown_as_one_model(shards, capsys):
    assert main(["info", shards[0], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [tensor["name"] for tensor in found["tensors"]] == [f"blk.{i}.x.weight" for i in range(4)]
    assert found["parameters"] == 4 * 32
    assert found["qtypes"] == {"F32": {"tensors": 4, "parameters": 128, "nbytes": 512}}
    assert [(file["path"], file["tensors"]) for file in found["files"]] == list(zip(shards, (2, 1, 1), strict=True))
    assert found["size"] == sum(file["size"] for file in found["files"])
    assert found["shard"] == {"index": 0, "count": 3}
    assert main(["info", shards[0]]) == 0
    text = capsys.readouterr().out
    assert all(path in text for path in shards)


def test_one_shard_alone_says_that_it_is_one(shards, capsys):
    assert main(["info", shards[1]]) == 0
    text = capsys.readouterr().out
    assert "shard 2 of 3; the first holds the metadata of the model" in text
    Path(shards[2]).unlink()
    assert main(["info", shards[0]]) == 3
    assert "00003-of-00003.gguf does not exist; it is shard 3 of 3" in capsys.readouterr().err


def test_a_missing_file_is_refused(tmp_path, capsys):
    assert main(["info", str(tmp_path / "gone.gguf")]) == 3
    assert "gone.gguf" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("plain ü 東", None, "plain ü 東"),
        ("a\tb\x00", None, r"a\tb\x00"),
        ("abcdef", 3, "abc… (6 characters)"),
        ("abc", 3, "abc"),
        ("\udcff", None, r"\udcff"),
    ],
)
def test_printable(text, limit, shown):
    assert printable(text, limit) == shown


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_999, "1.0 MB"),
        (13_700_000, "13.7 MB"),
        (2 * 10**12, "2.0 TB"),
    ],
)
def test_sizes(nbytes, shown):
    assert size(nbytes) == shown
