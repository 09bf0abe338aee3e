"""What is taken for a repository, and which settings count."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf2q.errors import UsageError
from hf2q.hub import settings
from hf2q.hub.reference import Reference, parse_reference, repository


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", ("org/name", None)),
        ("Qwen/Qwen3.5-0.8B", ("Qwen/Qwen3.5-0.8B", None)),
        ("https://huggingface.co/org/name", ("org/name", None)),
        ("https://huggingface.co/org/name/", ("org/name", None)),
        ("https://hf.co/org/name/tree/v1.0", ("org/name", "v1.0")),
        ("https://huggingface.co/org/name/tree/refs%2Fpr%2F1", ("org/name", "refs/pr/1")),
        ("https://huggingface.co/org/name/commit/abcdef0", ("org/name", "abcdef0")),
    ],
)
def test_repositories(text, expected):
    assert parse_reference(text) == Reference(asked=text, repo=expected[0], revision=expected[1])


@pytest.mark.parametrize(
    "text",
    [
        "./org/name",
        "../org/name",
        "/org/name",
        "~/name",
        "~",
        ".",
        "..",
        "",
        "name",
        "a/b/c",
        "models/x.gguf",
        "here/there",
    ],
)
def test_local(text, tmp_path, monkeypatch):
    (tmp_path / "here" / "there").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_reference(text) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("https://huggingface.co/datasets/org/name", "not the address of a model"),
        ("https://huggingface.co/org", "not the address of a model"),
        ("https://huggingface.co/org/name/discussions/1", "not the address of a model"),
        ("https://huggingface.co/org/name/blob/main/config.json", "address of config.json in org/name"),
        ("https://elsewhere.example/org/name", "is no address of https://huggingface.co"),
        ("a--b/c", "is not the id"),
        ("org/name.git", "is not the id"),
    ],
)
def test_what_is_neither(text, words):
    with pytest.raises(UsageError, match=words):
        parse_reference(text)


@pytest.mark.parametrize("revision", ["", " ", "a b", "../x", "a//b", "x~1", "x:y", "/x", "a" * 300])
def test_revisions_that_are_none(revision):
    with pytest.raises(UsageError, match="cannot be a revision"):
        parse_reference("org/name", revision)


def test_a_revision_twice():
    url = "https://huggingface.co/org/name/tree/v1"
    assert parse_reference(url, "v1").revision == "v1"
    with pytest.raises(UsageError, match="names the revision v1, --revision v2 another"):
        parse_reference(url, "v2")


def test_files():
    assert parse_reference("org/name:a/b.gguf", files=True).file == "a/b.gguf"
    assert parse_reference("https://hf.co/org/name/blob/main/b.gguf", files=True).file == "b.gguf"
    assert parse_reference("org/name:a.gguf") is None


def test_repo_takes_old_ids_of_one_word():
    assert repository("gpt2").repo == "gpt2"
    with pytest.raises(UsageError, match="is not the id"):
        repository("./gpt2")


def test_tokens_are_looked_for_in_order(tmp_path, setting):
    home = tmp_path / "home"
    assert settings.token() is None
    places = [home / ".huggingface" / "token", home / ".cache" / "huggingface" / "token"]
    for number, path in enumerate(places):
        path.parent.mkdir(parents=True)
        path.write_text(f"file{number}\n")
        assert settings.token() == f"file{number}"
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text("hf home")
    setting(HF_HOME=str(tmp_path / "hf"))
    assert settings.token() == "hf home"
    setting(HUGGING_FACE_HUB_TOKEN="old")
    assert settings.token() == "old"
    setting(HF_TOKEN=" new\r\n")
    assert settings.token() == "new"
    setting(HF_HUB_DISABLE_IMPLICIT_TOKEN="1")
    assert settings.token() is None


def test_the_cache_is_where_it_should_be(tmp_path, monkeypatch):
    assert settings.cache_folder() == tmp_path / "cache" / "hub"
    monkeypatch.delenv("HF2Q_CACHE_DIR")
    assert settings.cache_folder() == tmp_path / "home" / ".cache" / "hf2q" / "hub"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert settings.cache_folder() == tmp_path / "xdg" / "hf2q" / "hub"


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("HF_ENDPOINT", "ftp://x", settings.endpoint),
        ("HF_ENDPOINT", "hub.example", settings.endpoint),
        ("HF_ENDPOINT", "http://user:pass@hub.example", settings.endpoint),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "-1", settings.timeout),
    ],
)
def test_settings_that_cannot_be_used(setting, name, value, read):
    setting(**{name: value})
    with pytest.raises(UsageError, match=name):
        read()


def test_a_number_that_is_none_is_told_without_a_traceback(setting):
    """huggingface_hub does not get imported then."""
    code = "from hf2q.hub.settings import timeout; timeout()"
    env = os.environ | {"HF_HUB_DOWNLOAD_TIMEOUT": "soon"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stderr.strip().endswith("HF_HUB_DOWNLOAD_TIMEOUT and HF_HUB_ETAG_TIMEOUT take whole seconds")
    assert "hf2q.errors.UsageError: a setting of the Hub cannot be read: " in done.stderr


def test_nothing_of_huggingface_hub_is_imported_for_what_is_local():
    code = "import sys, hf2q.hub.repository, hf2q.hub.skeleton as s; s.__name__\n"
    code += "from hf2q.hub import parse_reference; assert parse_reference('./org/name') is None\n"
    code += "assert not {'huggingface_hub', 'httpx'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr


def test_the_hub_on_this_machine_is_one_to_huggingfaces_own_client(hub, tmp_path):
    """Otherwise the other tests would prove little."""
    files = {"config.json": b"{}", "model.safetensors": b"weights" * 100, "a/b.txt": b"text"}
    hub.commit("org/name", files)
    code = (
        "import sys; from huggingface_hub import snapshot_download, HfApi\n"
        "info = HfApi().model_info('org/name', files_metadata=True)\n"
        "assert {s.rfilename: s.size for s in info.siblings}['model.safetensors'] == 700\n"
        "print(snapshot_download('org/name', cache_dir=sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "theirs")], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip().splitlines()[-1])
    assert {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()} == files
