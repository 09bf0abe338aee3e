"""`hf2q plugins new`: what it writes is complete, clean, installable and passes its own suite as generated."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hf2q.cli import main
from hf2q.errors import UsageError, WriteError
from hf2q.scaffold import KINDS, create
from hf2q.testing.distributions import write_distribution

NAME = "tiny_model_mine1"  # as long as may be


@pytest.fixture(params=sorted(KINDS))
def kind(request):
    return request.param


def installed(folder, kind, tmp_path, name=NAME):
    """An environment in which the generated plugin is installed, without pip."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    site = tmp_path / "site"
    write_distribution(site, project["project"]["name"], project["project"]["entry-points"]["hf2q"], {})
    path = os.pathsep.join([str(site), str(folder / "src")])
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def test_it_passes_its_own_suite(kind, tmp_path):
    folder = tmp_path / "plugin"
    create(NAME, kind, folder)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"],
        cwd=folder,
        env=installed(folder, kind, tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
    assert "failed" not in done.stdout


def test_ruff_finds_nothing(kind, tmp_path):
    folder = tmp_path / "plugin"
    create(NAME, kind, folder)
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.exists():
        pytest.skip("ruff is not installed")
    strict = "E,F,W,I,UP,B,SIM,RET,PT,PTH,G,LOG,T20,TID,PERF,RUF"
    for options in ([], ["--select", strict, "--ignore", "RUF001,RUF002,RUF003,RUF022"]):
        done = subprocess.run([ruff, "check", "--no-cache", *options, "."], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_nothing_is_left_unfilled(kind, tmp_path):
    files = create(NAME, kind, tmp_path / "plugin")
    names = {str(path.relative_to(tmp_path / "plugin")) for path in files}
    assert {"README.md", "pyproject.toml", f"tests/test_{NAME}_contract.py"} <= names
    for path in files:
        assert "__name__" not in str(path)
        assert not path.name.endswith(".tmpl")
        if path.suffix != ".npz":
            text = path.read_text(encoding="utf-8")
            assert "$" not in text, path
            assert "example" not in text.replace("for example", "").replace("is the example", ""), path


@pytest.mark.parametrize("kind", ["codec", "graph"])
def test_check_gives_a_verdict(kind, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "plugin"
    create(NAME, kind, folder)
    for variable, value in installed(folder, kind, tmp_path).items():
        monkeypatch.setenv(variable, value)
    distribution = f"hf2q-{KINDS[kind][0]}-{NAME.replace('_', '-')}"
    assert main(["plugins", "check", distribution, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["distribution"] == distribution
    verdicts = {(check["subject"].partition(" ")[0], check["verdict"]) for check in told["checks"]}
    assert (kind, "passed") in verdicts
    unchecked = [check for check in told["checks"] if check["verdict"] != "passed"]
    assert all(check["verdict"] == "not checked" and check["reason"] for check in unchecked)
    assert len(unchecked) <= 2, unchecked  # a published tokenizer; a recipe


def test_a_generated_codec_and_arch_convert_and_run_together(tmp_path, monkeypatch, capsys):
    """The whole way: checkpoint, `--quant` of the new recipe, and a text from the file."""
    environments = [
        (create(NAME, kind, tmp_path / kind), installed(tmp_path / kind, kind, tmp_path)) for kind in ("arch", "codec")
    ]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(environment["PYTHONPATH"] for _, environment in environments))
    code = f"""if True:
        from pathlib import Path
        from hf2q_arch_{NAME}.hf2q_contract import TestArch
        TestArch.checkpoint().write(Path({str(tmp_path / "checkpoint")!r}))
    """
    subprocess.run([sys.executable, "-c", code], check=True)

    def program(*words):
        done = subprocess.run([sys.executable, "-m", "hf2q", *map(str, words)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    program("convert", tmp_path / "checkpoint", "--quant", NAME, "-o", tmp_path / "model.gguf")
    told = json.loads(program("info", tmp_path / "model.gguf", "--json"))
    assert told["arch"] == NAME
    assert told["qtypes"]["Q1_0"]["tensors"] == 2, "attn_output of both layers has rows of 128"
    text = program("generate", "--model", tmp_path / "model.gguf", "--prompt", "the", "--max-tokens", "4", "--json")
    assert json.loads(text)


@pytest.mark.parametrize("name", ["", "Big", "1st", "a-b", "a__b", "_a", "a_", "class", "ä", "a" * 17, "../up", "a b"])
def test_a_bad_name_is_refused(name, tmp_path):
    with pytest.raises(UsageError, match="cannot name a plugin"):
        create(name, "arch", tmp_path / "plugin")
    assert not (tmp_path / "plugin").exists()


def test_a_bad_kind_is_refused(tmp_path):
    with pytest.raises(UsageError, match="--kind is 'recipe', expected one of arch, codec, writer, graph"):
        create("mine", "recipe", tmp_path / "plugin")


def test_a_folder_in_use_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    for target in (tmp_path, tmp_path / "file"):
        with pytest.raises(UsageError, match="exists and is not an empty folder"):
            create("mine", "arch", target)
    assert (tmp_path / "file").read_text() == "mine"


def test_an_empty_folder_is_used(tmp_path):
    assert create("mine", "codec", tmp_path)
    assert (tmp_path / "pyproject.toml").is_file()


def test_an_installed_package_is_not_shadowed(tmp_path, monkeypatch):
    (tmp_path / "hf2q_arch_taken").mkdir()
    (tmp_path / "hf2q_arch_taken" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="hf2q_arch_taken is installed already"):
        create("taken", "arch", tmp_path / "plugin")


def test_a_folder_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(WriteError, match="cannot be written"):
        create("mine", "arch", tmp_path / "file" / "plugin")


def test_the_command_prints_what_it_wrote(tmp_path, capsys):
    assert main(["plugins", "new", "mine", "--kind", "writer", str(tmp_path / "plugin")]) == 0
    out = capsys.readouterr().out
    assert str(tmp_path / "plugin" / "src" / "hf2q_writer_mine" / "writer.py") in out
    assert "pip install" in out
