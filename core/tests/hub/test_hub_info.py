"""`hf2q info` of what is on the Hub: headers alone are read, and what they say is what a local file says."""

import json
from pathlib import Path

import numpy as np
import pytest

from hf2q.cli import main
from hf2q.convert import convert
from hf2q.convert.describe import describe_checkpoint
from hf2q.convert.hub_source import find_reference, open_from_hub
from hf2q.convert.source import open_source
from hf2q.formats.gguf import GgufWriter
from hf2q.hub import skeleton
from hf2q.types import MetadataField, Plan, TensorPlan, ValueType

REPO = "Org/Tiny-GGUF"


def write_gguf(path, *, words=1000, tensor="token_embd.weight"):
    fields = [MetadataField.string("general.architecture", "fake")]
    fields.append(MetadataField.array("tokenizer.ggml.tokens", ValueType.STRING, [f"word{n}" for n in range(words)]))
    fields.append(MetadataField.array("fake.floats", ValueType.FLOAT32, [0.5] * words))
    tensors = (
        TensorPlan(
            name=tensor, shape=(1024, 64), qtype="F32", via="F32", reason="", nbytes=262144, offset=0, inputs=()
        ),
    )
    writer = GgufWriter(str(path), Plan(arch="fake", recipe="f32", via="f32", metadata=tuple(fields), tensors=tensors))
    writer.write(tensor, np.zeros(262144, np.uint8))
    writer.close()
    return path.read_bytes()


def told(capsys, *words):
    assert main(["info", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def without_places(facts):
    files = [{key: value for key, value in file.items() if key != "path"} for file in facts["files"]]
    return {key: value for key, value in facts.items() if key not in ("path", "commit")} | {"files": files}


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("first", [64, 1 << 10, 1 << 20])
def test_a_remote_gguf_file(hub, tmp_path, capsys, monkeypatch, first, ranges):
    """Whatever part of the header comes at first."""
    monkeypatch.setattr(skeleton, "_FIRST_GGUF", first)
    hub.ranges = ranges
    data = write_gguf(tmp_path / "m.gguf")
    commit = hub.commit(REPO, {"sub/m.gguf": data})
    local = told(capsys, str(tmp_path / "m.gguf"))
    remote = told(capsys, f"{REPO}:sub/m.gguf")
    assert (remote["path"], remote["commit"]) == (f"{REPO}:sub/m.gguf", commit)
    assert [file["path"] for file in remote["files"]] == [remote["path"]]
    assert without_places(remote) == without_places(local)
    asked = [one.headers["range"] for one in hub.requests("GET .*m.gguf.signature")]
    assert asked[0] == f"bytes=0-{first - 1}"
    assert int(asked[-1].split("-")[1]) < len(data) // 2 or first == 1 << 20


def test_a_remote_model_in_several_files(hub, checkpoint, plugins, tmp_path, capsys):
    made = convert(checkpoint, "f16", tmp_path / "m.gguf", plugins=plugins, split_max_tensors=2, sidecars=False)
    hub.commit(REPO, {f"f16/{Path(file).name}": Path(file).read_bytes() for file in made.files})
    local, remote = told(capsys, made.files[0]), told(capsys, f"{REPO}:f16/m-00001-of-00003.gguf")
    assert [file["path"] for file in remote["files"]] == [f"{REPO}:f16/m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    assert without_places(remote) == without_places(local)


def test_a_remote_file_by_its_address(hub, tmp_path, capsys):
    hub.commit(REPO, {"m.gguf": write_gguf(tmp_path / "m.gguf")})
    assert told(capsys, f"{hub.endpoint}/{REPO}/blob/main/m.gguf")["arch"] == "fake"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"not a gguf file, but long enough for a header", f"{REPO}:m.gguf is not a GGUF file"),
        (b"", "m.gguf"),
        (b"GGUF\x03\x00\x00\x00" + b"\x05" + bytes(7) + b"\xff" * 8 + bytes(100), f"{REPO}:m.gguf, byte"),
    ],
)
def test_remote_files_that_are_none(hub, capsys, data, words):
    hub.commit(REPO, {"m.gguf": data})
    assert main(["info", f"{REPO}:m.gguf"]) == 3
    err = capsys.readouterr().err
    assert words in err
    assert "/tmp" not in err


def test_a_remote_file_that_is_cut_short(hub, tmp_path, capsys):
    hub.commit(REPO, {"m.gguf": write_gguf(tmp_path / "m.gguf")[:-1000]})
    assert main(["info", f"{REPO}:m.gguf"]) == 3
    assert f"{REPO}:m.gguf" in capsys.readouterr().err


def test_a_remote_file_that_is_not_there(hub, tmp_path, capsys):
    hub.commit(REPO, {"m.gguf": write_gguf(tmp_path / "m.gguf")})
    assert main(["info", f"{REPO}:x.gguf"]) == 3
    err = capsys.readouterr().err
    assert "has no file x.gguf" in err
    assert "there is m.gguf" in err


def test_a_remote_checkpoint(hub, checkpoint, capsys):
    commit = hub.commit("Org/Tiny", checkpoint)
    local = told(capsys, str(checkpoint))
    remote = told(capsys, "Org/Tiny")
    assert remote["origin"] == {"repo": "Org/Tiny", "revision": "main", "commit": commit, "endpoint": hub.endpoint}
    assert {k: v for k, v in remote.items() if k not in ("path", "origin")} == (
        {k: v for k, v in local.items() if k not in ("path", "origin")}
    )
    assert (remote["architecture"], remote["parameters"]) == ("FakeForCausalLM", 272 * 64 + 2 * (64 * 64 + 64))
    assert not [one for one in hub.requests("GET .*safetensors.signature") if "range" not in one.headers]
    assert main(["info", "Org/Tiny", "--tensors"]) == 0
    out = capsys.readouterr().out
    assert f"commit        {commit} (main)" in out
    assert "model.layers.0.up.weight" in out
    assert "size as GGUF\n  not known: " in out


def test_sizes_are_those_of_the_files_it_becomes(hub, checkpoint, plugins, tmp_path):
    hub.commit("Org/Tiny", checkpoint)
    with open_from_hub(find_reference("Org/Tiny"), weights=False) as source:
        facts = describe_checkpoint(source, plugins)
    assert [one["quant"] for one in facts["sizes"]] == ["bf16"]
    summary = convert(checkpoint, "bf16", tmp_path / "x.gguf", plugins=plugins)
    assert facts["sizes"][0]["nbytes"] == summary.plan.nbytes
    assert facts["arch"] == "fake"


def test_a_configuration_is_summed_up(family, tmp_path, plugins):
    folder = family.write_checkpoint(
        tmp_path / "m",
        model_type="fake",
        text_config={"num_hidden_layers": 8, "full_attention_interval": 4, "num_experts": 16, "hidden_size": 64},
        hidden_size=1,
    )
    facts = describe_checkpoint(open_source(str(folder)), plugins)
    assert facts["config"] == {
        "hidden_size": 64,
        "layers": 8,
        "experts": 16,
        "layer_types": ["full_attention", "linear_attention"],
    }
