"""What is checked before a byte is written."""

import os
import shutil
from collections import namedtuple

import pytest

from hf2q.convert.preflight import check_fallbacks, check_output, check_space
from hf2q.convert.target import output_path
from hf2q.errors import UsageError, WriteError
from hf2q.types import MetadataField, Plan, TensorPlan


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_text("{}")
    return folder


def spellings(source):
    """Ways to name a file of the source."""
    file, outside = source / "model.safetensors", source.parent
    yield file
    yield source / ".." / "model" / "model.safetensors"
    for name in ("link", "hard", "folder"):
        (outside / name).unlink(missing_ok=True)
    (outside / "link").symlink_to(file)
    yield outside / "link"
    os.link(file, outside / "hard")
    yield outside / "hard"
    (outside / "folder").symlink_to(source)
    yield outside / "folder" / "config.json"


@pytest.mark.parametrize("force", [False, True])
def test_a_file_of_the_source_is_never_the_output(source, force):
    for output in spellings(source):
        with pytest.raises(UsageError, match="a file of the source"):
            check_output(output, source, suffix=".gguf", force=force)
    assert (source / "model.safetensors").read_bytes() == b"weights"


def test_a_new_file_beside_or_inside_the_source_is_fine(source):
    check_output(source / "new.gguf", source, suffix=".gguf", force=False)
    check_output(source.parent / "new.gguf", source, suffix=".gguf", force=False)


def test_files_of_the_source_in_folders_of_their_own_are_never_the_output(source):
    for folder in ("additional_chat_templates", "shards/deep"):
        (source / folder).mkdir(parents=True)
        (source / folder / "file").write_text("input")
    shard = source / "shards" / "deep" / "file"
    for output in (source / "additional_chat_templates" / "file", shard):
        with pytest.raises(UsageError, match="a file of the source"):
            check_output(output, source, [shard], suffix=".gguf", force=True)


@pytest.mark.parametrize("name", ["model.safetensors.index.json", "model-2.safetensors", "chat_template.jinja", "x"])
def test_a_new_file_in_the_source_must_not_look_like_a_part_of_it(source, name):
    (source.parent / "folder").symlink_to(source)
    for folder in (source, source.parent / "folder"):
        with pytest.raises(UsageError, match="among the files of the source"):
            check_output(folder / name, source, suffix=".gguf", force=True)


def test_an_existing_file_needs_force(source):
    output = source.parent / "old.gguf"
    output.write_bytes(b"old")
    with pytest.raises(UsageError) as caught:
        check_output(output, source, suffix=".gguf", force=False)
    assert "--force" in caught.value.hint
    check_output(output, source, suffix=".gguf", force=True)


def test_places_that_cannot_be_written(source):
    with pytest.raises(WriteError, match="no directory"):
        check_output(source / "no" / "x.gguf", source, suffix=".gguf", force=True)
    with pytest.raises(WriteError, match="no directory"):
        check_output(source / "config.json" / "x.gguf", source, suffix=".gguf", force=True)
    (source.parent / "sub").mkdir()
    with pytest.raises(WriteError, match="is a directory"):
        check_output(source.parent / "sub", source, suffix=".gguf", force=True)
    loop = source.parent / "loop"
    loop.symlink_to(loop)
    with pytest.raises(WriteError):
        check_output(loop, source, suffix=".gguf", force=True)


def plan(*fallbacks):
    tensors = tuple(
        TensorPlan(
            name=f"t{k}",
            shape=(10, 48),
            qtype="Q5_0",
            via="BF16",
            reason="",
            nbytes=1000,
            offset=0,
            inputs=(),
            fallback_from=fallback,
        )
        for k, fallback in enumerate(fallbacks)
    )
    metadata = (MetadataField.string("general.name", "Some Model"),)
    return Plan(arch="a", recipe="q4_k_m", via="bf16", metadata=metadata, tensors=tensors)


def test_fallbacks(caplog):
    caplog.set_level("INFO")
    check_fallbacks(plan(None, None), allowed=False)
    check_fallbacks(plan("Q4_K", None), allowed=True)
    assert "t0 (Q4_K → Q5_0)" in caplog.text
    with pytest.raises(UsageError, match=r"1 tensors do not fit q4_k_m and get another type: t0 \(Q4_K → Q5_0\)"):
        check_fallbacks(plan("Q4_K", None), allowed=False)


def test_a_full_disk(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 1999))
    with pytest.raises(WriteError) as caught:
        check_space(tmp_path / "x.gguf", plan(None, None))
    assert "needs 2,000 bytes" in caught.value.message
    assert "1,999 free" in caught.value.message
    check_space(tmp_path / "x.gguf", plan(None))


def test_space_that_nobody_knows_is_not_asked_for(tmp_path, monkeypatch):
    def fail(path):
        raise OSError(38, "not implemented")

    monkeypatch.setattr(shutil, "disk_usage", fail)
    check_space(tmp_path / "x.gguf", plan(None))


def test_where_the_file_goes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(output_path(None, plan(), ".gguf")) == "Some-Model-Q4_K_M.gguf"
    assert output_path(tmp_path, plan(), ".gguf") == tmp_path / "Some-Model-Q4_K_M.gguf"
    assert str(output_path("here.bin", plan(), ".gguf")) == "here.bin"


def test_outputs_that_name_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="empty text"):
        output_path("", plan(), ".gguf")
    with pytest.raises(WriteError, match="no such directory"):
        output_path("missing/", plan(), ".gguf")
    with pytest.raises(WriteError, match="home directory"):
        output_path("~nobody-of-that-name/x.gguf", plan(), ".gguf")
