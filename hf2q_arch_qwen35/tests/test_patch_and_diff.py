"""`hf2q gguf-patch` and `hf2q diff` on real files: what changes, what does not, and what is refused."""

import json

import gguf
import numpy as np
import pytest

import hf2q
from hf2q.cli import main
from hf2q.convert import convert
from hf2q.formats.gguf import open_gguf


@pytest.fixture(scope="module")
def files(tmp_path_factory, write, dense):
    folder = tmp_path_factory.mktemp("patch")
    write(folder / "src", dense())
    made = {}
    for recipe in ("f32", "f16", "q8_0"):
        convert(folder / "src", recipe, folder / f"{recipe}.gguf")
        made[recipe] = folder / f"{recipe}.gguf"
    return made


@pytest.fixture
def copy(files, tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(files["q8_0"].read_bytes())
    return path


def run(*words):
    return main([str(word) for word in words])


def data_of(path):
    with open_gguf(path) as file:
        return path.read_bytes()[file.data_offset :]


def test_keys_are_set_and_removed_in_place_and_the_data_stays(copy, tmp_path, capsys):
    before = data_of(copy)
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages[0].content }} ü")
    words = ["--set", "general.name=Ein Name", "--set", "general.description=new", "--remove", "general.type"]
    assert run("gguf-patch", copy, *words, "--set-file", f"tokenizer.chat_template={template}", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [step["key"] for step in told["changes"]][:2] == ["general.name", "general.description"]
    reader = gguf.GGUFReader(copy)  # the independent second reader
    assert reader.fields["general.name"].contents() == "Ein Name"
    assert reader.fields["general.description"].contents() == "new"
    assert reader.fields["tokenizer.chat_template"].contents() == "{{ messages[0].content }} ü"
    assert "general.type" not in reader.fields
    assert data_of(copy) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chat.jinja", "m.gguf"]


def test_patching_there_and_back_gives_the_same_file(files, tmp_path):
    there, back = tmp_path / "there.gguf", tmp_path / "back.gguf"
    with open_gguf(files["q8_0"]) as file:
        name = file.metadata["general.name"]
    assert run("gguf-patch", files["q8_0"], "--set", "general.name=" + "x" * 99, "-o", there) == 0
    assert run("gguf-patch", there, "--set", f"general.name={name}", "-o", back) == 0
    assert back.read_bytes() == files["q8_0"].read_bytes()
    assert there.stat().st_size > back.stat().st_size


@pytest.mark.parametrize(
    ("setting", "kind", "value"),
    [
        ("qwen35.context_length=4096", "UINT32", 4096),
        ("x.small=u8:255", "UINT8", 255),
        ("x.wide=i64:-9000000000", "INT64", -9000000000),
        ("x.ratio=f64:0.1", "FLOAT64", 0.1),
        ("x.flag=bool:true", "BOOL", True),
        ("x.text=str:17", "STRING", "17"),
        ("x.text=u32 of course", "STRING", "u32 of course"),
        ("x.list=arr[i32]:[1, -2]", "ARRAY", (1, -2)),
        ("general.sampling.temp=0.5", "FLOAT32", 0.5),
        ("tokenizer.ggml.padding_token_id=3", "UINT32", 3),
    ],
)
def test_values_get_their_types(copy, setting, kind, value):
    assert run("gguf-patch", copy, "--set", setting) == 0
    key = setting.partition("=")[0]
    with open_gguf(copy) as file:
        assert (file.metadata.type_of(key).name, file.metadata[key]) == (kind, value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "general.name"], "KEY=VALUE"),
        (["--set", "qwen35.context_length=many"], "no whole number"),
        (["--set", "qwen35.context_length=4294967296"], "not between"),
        (["--set", "x.new=17"], "could be of several types"),
        (["--set", "x.new=true"], "could be of several types"),
        (["--set", "x.new=f32:1e39"], "no finite number"),
        (["--set", "x.new=f32:nan"], "no finite number"),
        (["--set", "x.new=arr[u8]:[1, 256]"], "not between"),
        (["--set", "x.new=arr[bool]:[1]"], "holds bool"),
        (["--set", "general.name=a", "--set", "general.name=b"], "set twice"),
        (["--set", "general.name=a", "--remove", "general.name"], "set and removed"),
        (["--remove", "no.such.key"], "no key 'no.such.key'"),
        (["--remove", "general.architecture"], "not changed here"),
        (["--set", "general.alignment=u32:64"], "where tensors lie"),
        (["--set", "split.count=u16:2"], "not changed here"),
        (["--set-file", "qwen35.block_count=/dev/null"], "--set-file sets texts"),
        (["--set-file", "tokenizer.chat_template=/no/such"], "does not exist"),
        ([], "nothing to change"),
        (["--remove", "qwen35.block_count"], "break loading"),
        (["--set", "qwen35.block_count=77"], "break loading"),
        (["--set", "qwen35.embedding_length=64"], "break loading"),
        (["--remove", "tokenizer.ggml.tokens"], "break loading"),
        (["--set", "tokenizer.ggml.eos_token_id=999999"], "break loading"),
        (["--set", "tokenizer.chat_template={% if %}"], "break loading"),
    ],
)
def test_what_is_refused_changes_nothing(copy, capsys, words, message):
    before = copy.read_bytes()
    assert run("gguf-patch", copy, *words) in (1, 3)
    assert message in capsys.readouterr().err
    assert copy.read_bytes() == before
    assert [path.name for path in copy.parent.iterdir()] == ["m.gguf"]


def test_a_file_that_did_not_load_may_be_patched(copy, capsys):
    with open_gguf(copy) as file:
        at = copy.read_bytes().index(b"qwen35.block_count")
        assert file.metadata["qwen35.block_count"] < 99
    raw = bytearray(copy.read_bytes())
    raw[at + len(b"qwen35.block_count") + 4] = 99
    copy.write_bytes(raw)
    assert run("gguf-patch", copy, "--set", "general.name=still broken") == 0
    assert "did not load before" in capsys.readouterr().err
    assert run("gguf-patch", copy, "--set", "qwen35.block_count=4") == 0


def test_an_output_that_exists_needs_force(copy, tmp_path):
    other = tmp_path / "other.gguf"
    other.write_bytes(b"precious")
    assert run("gguf-patch", copy, "--set", "general.name=a", "-o", other) == 3
    assert other.read_bytes() == b"precious"
    assert run("gguf-patch", copy, "--set", "general.name=a", "-o", other, "--dry-run", "--force") == 0
    assert other.read_bytes() == b"precious"
    assert run("gguf-patch", copy, "--set", "general.name=a", "-o", other, "--force") == 0
    with open_gguf(other) as file:
        assert file.metadata["general.name"] == "a"


def test_a_patched_model_runs_the_same(files, copy):
    assert run("gguf-patch", copy, "--set", "general.name=other") == 0
    with hf2q.load(files["q8_0"], backend="reference") as one, hf2q.load(copy, backend="reference") as other:
        assert np.array_equal(one.logits([1, 2, 3]), other.logits([1, 2, 3]))


def test_diff_of_equal_files(files, copy, capsys):
    assert run("diff", files["q8_0"], copy, "--exit-code") == 0
    assert "0 different" in capsys.readouterr().out


def test_diff_says_what_quantizing_cost(files, capsys):
    assert run("diff", files["f32"], files["q8_0"], "--json", "--exit-code") == 2
    told = json.loads(capsys.readouterr().out)
    assert "general.file_type" in {key["key"] for key in told["keys"]}
    found = {tensor["name"]: tensor for tensor in told["tensors"]}["blk.0.ffn_up.weight"]
    assert found["qtypes"] == ["F32", "Q8_0"]
    exact = gguf.GGUFReader(files["f32"])
    stored = gguf.GGUFReader(files["q8_0"])
    a = next(t for t in exact.tensors if t.name == "blk.0.ffn_up.weight").data
    b = next(t for t in stored.tensors if t.name == "blk.0.ffn_up.weight")
    gap = np.abs(a.astype(np.float64) - gguf.dequantize(b.data, b.tensor_type))
    assert found["max_error"] == pytest.approx(gap.max())
    assert found["mean_error"] == pytest.approx(gap.mean())
    assert found["rms_error"] == pytest.approx(np.sqrt((gap**2).mean()))
    assert 0 < found["rms_error"] / found["rms"] < 0.01


def test_diff_finds_one_changed_byte(files, copy, capsys):
    with open_gguf(copy) as file:
        tensor = file.tensors["blk.1.ffn_down.weight"]
    raw = bytearray(copy.read_bytes())
    raw[tensor.offset + 40] ^= 1
    copy.write_bytes(raw)
    assert run("diff", files["q8_0"], copy, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [tensor["name"] for tensor in told["tensors"]] == ["blk.1.ffn_down.weight"]
    assert told["tensors"][0]["differing"] == 1
    assert told["keys"] == []


def test_a_model_in_several_files_loads_and_equals_the_one_in_one(files, tmp_path):
    convert(files["q8_0"], "q8_0", tmp_path / "m.gguf", split_max_tensors=20)
    first = sorted(tmp_path.glob("*.gguf"))[0]
    assert first.name.startswith("m-00001-of-")
    with hf2q.load(files["q8_0"], backend="reference") as one, hf2q.load(first, backend="reference") as other:
        assert np.array_equal(one.logits([5, 6]), other.logits([5, 6]))
    assert run("diff", files["q8_0"], first, "--exit-code") in (0, 2)
