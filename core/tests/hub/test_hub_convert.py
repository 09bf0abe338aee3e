"""`convert` of a repository: the bytes of a clone, only what is needed, all of one commit, whose name is told."""

import json
import re
from pathlib import Path

import pytest

from hf2q.convert import convert
from hf2q.convert.hub_source import find_reference, open_from_hub
from hf2q.errors import MissingFileError, UnknownNameError, UsageError

REPO = "Org/Tiny-1.5B"
JUNK = {
    "pytorch_model.bin": b"pickle",
    "optimizer.pt": b"x",
    "consolidated.safetensors": b"x",
    "model-00003-of-00003.safetensors": b"left over",
    "onnx/model.onnx": b"x",
    "onnx/config.json": b"{}",
    "image.png": b"x",
}


@pytest.fixture
def run(plugins, tmp_path):
    def make(source, output="out.gguf", recipe="f16", **options):
        return convert(source, recipe, tmp_path / output, plugins=plugins, provenance=False, **options)

    return make


def put(hub, folder, **more):
    files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    return hub.commit(REPO, {**files, **more})


def taken(hub):
    return {
        unquoted for one in hub.requests("GET .*/resolve/") for unquoted in re.findall(r"/resolve/\w+/(.+)", one.path)
    }


def test_bytes_are_those_of_a_local_conversion(hub, checkpoint, run):
    commit = put(hub, checkpoint)
    local = run(checkpoint, "local.gguf")
    for source in (REPO, f"{hub.endpoint}/{REPO}", f"https://huggingface.co/{REPO}/tree/main"):
        remote = run(source, force=True)
        assert Path(remote.output).read_bytes() == Path(local.output).read_bytes()
    assert {re.search(r"/resolve/(\w+)/", one.path)[1] for one in hub.requests("/resolve/")} == {commit}


def test_only_what_is_needed_is_asked_for(hub, checkpoint, run):
    put(hub, checkpoint, **JUNK)
    run(REPO)
    assert taken(hub) == {p.name for p in checkpoint.iterdir()}
    hub.seen.clear()
    run(REPO, force=True)
    assert not hub.requests("/resolve/"), "the second time everything is here"


def test_an_embedder_brings_the_configurations_of_its_modules(hub, checkpoint, run):
    put(
        hub,
        checkpoint,
        **{"modules.json": b"[]", "1_Pooling/config.json": b"{ }", "config_sentence_transformers.json": b"{}"},
    )
    run(REPO)
    assert {"modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"} <= taken(hub)


def test_a_checkpoint_in_one_file(hub, family, tmp_path, run):
    folder = family.write_checkpoint(tmp_path / "local" / "Tiny-1.5B")
    put(hub, folder)
    assert Path(run(REPO).output).read_bytes() == Path(run(folder, "local.gguf").output).read_bytes()


def test_a_stray_single_file_beside_an_index_is_left_there(hub, checkpoint, run):
    put(hub, checkpoint, **{"model.safetensors": b"old"})
    run(REPO)
    assert "model.safetensors" not in taken(hub)


@pytest.mark.parametrize("form", ["branch", "tag", "full", "short", "none"])
def test_revisions(hub, checkpoint, family, run, form):
    first = put(hub, checkpoint)
    (checkpoint / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    second = put(hub, checkpoint)
    hub.refs[REPO] |= {"v1": first, "pr/branch": first}
    revision = {"branch": "pr/branch", "tag": "v1", "full": first, "short": first[:8], "none": None}[form]
    summary = run(REPO, revision=revision)
    values = {field.key: field.value for field in summary.plan.metadata}
    assert values["general.license"] == ("apache-2.0" if form == "none" else "mit")
    asked = {re.search(r"/resolve/(\w+)/", one.path)[1] for one in hub.requests("/resolve/")}
    assert asked == {second if form == "none" else first}


def test_a_branch_that_moves_meanwhile_makes_no_difference(hub, checkpoint, run):
    expected = Path(run(checkpoint, "local.gguf").output).read_bytes()
    first = put(hub, checkpoint)

    def move(handler):
        hub.commit(REPO, {"config.json": b"{}"})
        return False

    hub.order("GET .*config.json", move, times=1)
    assert Path(run(REPO).output).read_bytes() == expected
    assert {re.search(r"/resolve/(\w+)/", one.path)[1] for one in hub.requests("/resolve/")} == {first}


def test_a_dry_run_takes_headers_only(hub, checkpoint, run, tmp_path):
    put(hub, checkpoint)
    dry = run(REPO, dry_run=True)
    ranges = [one.headers.get("range") for one in hub.requests("GET .*safetensors") if one.away]
    assert ranges == ["bytes=0-262143"] * 2
    assert dry.plan == run(checkpoint, "local.gguf").plan
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.name.startswith("model-")]


def test_the_origin_is_told(hub, checkpoint, tmp_path):
    hub.commit("Org/Old", checkpoint)
    hub.rename("Org/Old", REPO)
    commit = hub.refs[REPO]["main"]
    with open_from_hub(find_reference(None, "Org/Old")) as source:
        origin = source.origin
        assert source.directory.name == "Tiny-1.5B"
    assert (origin.repo, origin.canonical, origin.revision) == ("Org/Old", REPO, "main")
    assert (origin.commit, origin.endpoint) == (commit, hub.endpoint)
    assert [file.path for file in origin.files] == sorted(p.name for p in checkpoint.iterdir())
    for file in origin.files:
        assert file.size == (checkpoint / file.path).stat().st_size
        assert bool(file.git) != file.path.endswith((".safetensors", "tokenizer.json"))
    assert all(one.headers.get("authorization") is None for one in hub.seen)


def test_an_unknown_family_is_refused_before_the_weights_come(hub, checkpoint, run):
    config = json.loads((checkpoint / "config.json").read_text())
    put(hub, checkpoint, **{"config.json": json.dumps(config | {"architectures": ["Nobody"]}).encode()})
    with pytest.raises(UnknownNameError, match="Nobody"):
        run(REPO)
    assert not hub.requests("safetensors$")


def test_missing_shards_are_named_before_any_weight_comes(hub, checkpoint, run, tmp_path):
    (checkpoint / "model-00002-of-00002.safetensors").unlink()
    put(hub, checkpoint)
    with pytest.raises(MissingFileError, match=r"lacks 1 of the 2 files .*: model-00002-of-00002\.safetensors"):
        run(REPO)
    assert not hub.requests("safetensors$")
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("file", ["../../evil.safetensors", "/etc/evil.safetensors", "a\\b.safetensors"])
def test_an_index_that_leaves_the_repository_is_refused(hub, checkpoint, run, file):
    index = {"weight_map": {"model.embed.weight": file}}
    put(hub, checkpoint, **{"model.safetensors.index.json": json.dumps(index).encode()})
    with pytest.raises(Exception, match="expected a file of the checkpoint"):
        run(REPO)


def test_repo_and_source_exclude_each_other(run, tmp_path):
    with pytest.raises(UsageError, match="both a source"):
        run(REPO, repo=REPO)
    with pytest.raises(UsageError, match="no source"):
        run(None)
    with pytest.raises(UsageError, match=r"--revision v1 cannot be used"):
        run(tmp_path, revision="v1")


def test_repo_names_a_repository_whatever_is_here(hub, checkpoint, run, tmp_path, monkeypatch):
    put(hub, checkpoint)
    (tmp_path / "Org" / "Tiny-1.5B").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingFileError, match=r"config\.json does not exist"):
        run(REPO)
    assert run(None, repo=REPO).files


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"README.md": b"x"}, "has no config.json"),
        ({"x-Q4.gguf": b"x"}, "but x-Q4.gguf"),
        ({"config.json": b'{"architectures": ["FakeForCausalLM"]}', "pytorch_model.bin": b"x"}, "only PyTorch pickles"),
    ],
)
def test_repositories_without_a_checkpoint(hub, run, files, words):
    hub.commit(REPO, files)
    with pytest.raises(MissingFileError, match=words):
        run(REPO)
