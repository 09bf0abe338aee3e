"""Folders that appear whole: publishing, giving up, and what dead writers left."""

import os

import pytest

from hf2q.errors import WriteError
from hf2q.formats.folder import LOCK, UnfinishedFolder, strangers
from hf2q.formats.temporary import lock


def test_a_folder_has_its_name_only_when_published(tmp_path):
    target = tmp_path / "out"
    folder = UnfinishedFolder(target)
    (folder.path / "file").write_text("new")
    assert not target.exists()
    folder.publish()
    assert {path.name for path in target.iterdir()} == {"file"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_older_folder_is_replaced_as_a_whole(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "old").write_text("old")
    folder = UnfinishedFolder(target)
    (folder.path / "file").write_text("new")
    assert (target / "old").exists()
    folder.publish()
    assert {path.name for path in target.iterdir()} == {"file"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_older_folder_comes_back_when_the_new_one_cannot_have_its_name(tmp_path, monkeypatch):
    target = tmp_path / "out"
    target.mkdir()
    (target / "old").write_text("old")
    folder = UnfinishedFolder(target)
    rename = type(folder.path).rename

    def failing(self, other):
        if self == folder.path:
            raise OSError(5, "Input/output error")
        return rename(self, other)

    monkeypatch.setattr(type(folder.path), "rename", failing)
    with pytest.raises(WriteError, match="Input/output error"):
        folder.publish()
    assert (target / "old").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_nothing_is_left_after_remove(tmp_path):
    folder = UnfinishedFolder(tmp_path / "out")
    (folder.path / "file").write_text("half")
    folder.remove()
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_dead_writers_left_is_swept_up_and_what_lives_is_not(tmp_path):
    dead, alive = tmp_path / ".out.0123abcd.tmp", tmp_path / ".out.4567abcd.tmp"
    other = tmp_path / ".out.89ababcd.tmp"  # without a lock it is not known to be one of ours
    for path in (dead, alive, other):
        path.mkdir()
    (dead / LOCK).touch()
    (alive / LOCK).touch()
    descriptor = os.open(alive / LOCK, os.O_RDWR)
    try:
        assert lock(descriptor)
        folder = UnfinishedFolder(tmp_path / "out")
        assert not dead.exists()
        assert alive.exists()
        assert other.exists()
        folder.remove()
    finally:
        os.close(descriptor)


def test_a_place_that_is_not_there_is_named(tmp_path):
    with pytest.raises(WriteError, match="gone"):
        UnfinishedFolder(tmp_path / "gone" / "out")


def test_strangers_are_what_is_not_known_and_what_is_no_file(tmp_path):
    (tmp_path / "config.json").touch()
    (tmp_path / "notes").touch()
    (tmp_path / "model").mkdir()
    assert strangers(tmp_path, {"config.json", "model"}) == ["model", "notes"]
