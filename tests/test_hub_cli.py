"""The program and a hub, with an installed family: `hf2q convert org/name` and `hf2q info org/name`, from outside."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf2q.plugins import Plugins
from hf2q.testing.checkpoints import TinyCheckpoint
from hf2q.testing.hub import FakeHub

CONFIG = Path(__file__).parents[1] / "plugins/hf2q_example_arch/src/hf2q_example_arch/reference/config.json"
REPO = "Org/Tiny"


@pytest.fixture
def checkpoint(tmp_path):
    config = json.loads(CONFIG.read_text(encoding="utf-8"))
    return TinyCheckpoint(Plugins.load(), "example", config).write(tmp_path / "local" / "Tiny")


@pytest.fixture
def hub():
    with FakeHub() as made:
        yield made


@pytest.fixture
def run(hub, tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.lower().startswith(("hf_", "hugging"))}
    env = {name: value for name, value in env.items() if not name.lower().endswith("_proxy")}
    env |= {"HF_ENDPOINT": hub.endpoint, "HF2Q_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path)}

    def call(*words, **more):
        return subprocess.run(
            [sys.executable, "-m", "hf2q", *words], capture_output=True, text=True, env=env | more, cwd=tmp_path
        )

    return call


def test_convert_and_info(hub, run, checkpoint, tmp_path):
    commit = hub.commit(REPO, checkpoint)
    local = run("convert", str(checkpoint), "--quant", "f16", "-o", "local.gguf", "--no-provenance", "--no-receipt")
    assert local.returncode == 0, local.stderr
    done = run("convert", REPO, "--quant", "f16", "-o", "remote.gguf", "--no-provenance", "--no-sidecars", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["output"] == "remote.gguf"
    assert (tmp_path / "remote.gguf").read_bytes() == (tmp_path / "local.gguf").read_bytes()
    offline = run("convert", "--repo", REPO, "--revision", commit[:10], "--quant", "f16", "-o", "again.gguf",
                  "--no-provenance", HF_HUB_OFFLINE="1", HF_ENDPOINT="http://127.0.0.1:9")  # fmt: skip
    assert offline.returncode == 0, offline.stderr
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "local.gguf").read_bytes()
    receipt = json.loads((tmp_path / "again.gguf.receipt.json").read_text())
    assert commit in json.dumps(receipt)
    shown = run("info", REPO)
    assert shown.returncode == 0, shown.stderr
    assert "arch             example" in shown.stdout
    assert "bf16" in shown.stdout.split("size as GGUF")[1]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["Org/Nothing"], 3, "there is no repository Org/Nothing"),
        (["./Org/Tiny"], 3, "there is no directory ./Org/Tiny"),
        (["Org/Tiny", "--revision", "nope"], 3, "Org/Tiny has no revision nope"),
        (["Org/Tiny", "--repo", "Org/Tiny"], 3, "both a source, Org/Tiny, and --repo Org/Tiny"),
        ([], 3, "no source"),
    ],
)
def test_refusals(hub, run, words, code, told, tmp_path):
    hub.commit(REPO, {"config.json": b"{}"})
    done = run("convert", *words, "--quant", "f16", "-o", "x.gguf")
    assert done.returncode == code
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "x.gguf").exists()


def test_a_hub_that_fails_is_no_fault_of_the_user(hub, run, checkpoint):
    hub.commit(REPO, checkpoint)
    hub.order("GET .*signature", lambda handler: handler.answer(200, b"wrong", {}))
    done = run("convert", REPO, "--quant", "f16", "-o", "x.gguf", "--json")
    assert done.returncode == 1
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert error["type"] == "HubError"
    assert "is not what the hub announced: expected" in error["message"]
