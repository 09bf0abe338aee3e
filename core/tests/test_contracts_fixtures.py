"""Finding fixtures: by the environment, beside the repository, or a skip that says so."""

import pytest

from hf2q.testing import fixtures
from hf2q.testing.fixtures import fixtures_dir, require_fixture


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HF2Q_FIXTURES", str(tmp_path))
    (tmp_path / "qwen").mkdir()
    return tmp_path


def test_the_environment_names_the_folder(folder):
    assert fixtures_dir() == folder
    assert require_fixture("qwen") == folder / "qwen"


def test_a_fixture_that_is_not_there_is_a_skip_that_names_it(folder):
    with pytest.raises(pytest.skip.Exception, match="fixture 'gemma' is not in"):
        require_fixture("gemma")


def test_a_wrong_setting_is_no_skip(monkeypatch, tmp_path):
    monkeypatch.setenv("HF2Q_FIXTURES", str(tmp_path / "gone"))
    with pytest.raises(pytest.fail.Exception, match="which is not a folder"):
        require_fixture("qwen")


@pytest.mark.parametrize("there", [True, False])
def test_without_a_setting_they_are_beside_the_repository(there, monkeypatch, tmp_path):
    monkeypatch.delenv("HF2Q_FIXTURES", raising=False)
    home = tmp_path / "repository" / "core" / "src" / "hf2q" / "testing"
    home.mkdir(parents=True)
    (tmp_path / "repository" / "constraints.txt").touch()
    if there:
        (tmp_path / "shared" / "fixtures").mkdir(parents=True)
    monkeypatch.setattr(fixtures, "__file__", str(home / "fixtures.py"))
    assert fixtures_dir() == (tmp_path / "shared" / "fixtures" if there else None)
    if not there:
        with pytest.raises(pytest.skip.Exception, match="no fixtures folder here"):
            require_fixture("qwen")
