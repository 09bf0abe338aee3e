"""A hub on this machine, an environment that knows no other, and a checkpoint to put there."""

import importlib
import importlib.util
import json
import os
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from hf2q.hub import client
from hf2q.plugins import Plugins
from hf2q.testing.hub import FakeHub

REPO = "Org/Tiny-1.5B"


@pytest.fixture
def settings_are_reread():
    """huggingface_hub reads its settings when it is imported: once here, and once more when all is as it was."""
    yield
    close_session()
    importlib.reload(constants)


@pytest.fixture
def setting(settings_are_reread, monkeypatch):
    """Set variables of the environment, as if they had been set before the start."""

    def change(**values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        importlib.reload(constants)

    return change


@pytest.fixture(autouse=True)
def place(setting, tmp_path, monkeypatch):
    """No setting of the machine counts; nothing outside of tmp_path is touched; nobody waits."""
    for name in os.environ:
        if name.upper().startswith(("HF_", "HUGGING", "TRANSFORMERS_")) or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    setting(HOME=str(tmp_path / "home"), HF2Q_CACHE_DIR=str(tmp_path / "cache"), HF_HUB_DISABLE_TELEMETRY="1")
    monkeypatch.setattr(client, "FIRST_WAIT", 0.001)


@pytest.fixture
def hub(setting):
    with FakeHub() as made:
        setting(HF_ENDPOINT=made.endpoint)
        yield made


@pytest.fixture
def family(monkeypatch):
    where = Path(__file__).parents[1] / "data" / "fake_family.py"
    spec = importlib.util.spec_from_file_location("fake_family", where)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fake_family", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def plugins(family):
    points = [("builtin", "hf2q.builtin"), ("fake", "fake_family")]
    return Plugins.load(strict=True, entry_points=[EntryPoint(n, v, "hf2q") for n, v in points])


@pytest.fixture
def checkpoint(family, tmp_path):
    """Two shards and an index, and files that nobody needs. The folder is named as the repository is."""
    folder = family.write_checkpoint(tmp_path / "local" / REPO.split("/")[1])
    tensors = family.tensors_of()
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:2], "model-00002-of-00002.safetensors": names[2:]}
    for file, held in parts.items():
        family.write_safetensors(folder / file, {name: tensors[name] for name in held})
    (folder / "model.safetensors").unlink()
    weight_map = {name: file for file, held in parts.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "README.md").write_text("---\nlicense: mit\ntags: [small]\n---\n# Tiny\n")
    (folder / "generation_config.json").write_text('{"temperature": 0.5}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder
