"""Files beside config.json: read for the families that name them, left alone for all others."""

import json
from pathlib import Path

import pytest

from hf2q.convert.sidefiles import read_modules, with_side_files
from hf2q.errors import ConfigError, ContractError, FormatError


@pytest.fixture
def folder(tmp_path):
    """A checkpoint's folder with two modules, of which the second has a configuration."""
    modules = [{"idx": 0, "path": "", "type": "a.Transformer"}, {"idx": 1, "path": "1_P", "type": "a.Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_P").mkdir()
    (tmp_path / "1_P" / "config.json").write_text('{"pooling_mode": "mean"}')
    return tmp_path


def test_modules_come_with_their_configurations(folder):
    assert read_modules(folder) == [
        {"type": "a.Transformer", "path": "", "config": None},
        {"type": "a.Pooling", "path": "1_P", "config": {"pooling_mode": "mean"}},
    ]
    (folder / "1_P" / "config.json").unlink()
    assert read_modules(folder)[1]["config"] is None


def test_they_are_merged_under_the_name_of_the_file(folder, tmp_path):
    config = {"hidden_size": 8}
    assert with_side_files(folder, config, ()) == config
    assert with_side_files(tmp_path / "elsewhere", config, ("modules.json",)) == config
    assert with_side_files(folder, config, ("modules.json",)) == {**config, "modules.json": read_modules(folder)}
    assert config == {"hidden_size": 8}


def test_names_that_cannot_be(folder):
    with pytest.raises(ContractError, match=r"side file 'other\.json' is not known"):
        with_side_files(folder, {}, ("other.json",))
    with pytest.raises(ConfigError, match=r"a key 'modules\.json'"):
        with_side_files(folder, {"modules.json": []}, ("modules.json",))


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        ("{", FormatError, "not valid JSON"),
        ("{}", ConfigError, "an object, expected an array"),
        ("[1]", ConfigError, "[0] is a number, expected an object"),
        ('[{"path": ""}]', ConfigError, "[0].type is null"),
        ('[{"path": 1, "type": "a"}]', ConfigError, "[0].path is a number"),
        ('[{"path": "../x", "type": "a"}]', ConfigError, "'../x', expected a folder of the checkpoint"),
        ('[{"path": "/x", "type": "a"}]', ConfigError, "'/x', expected a folder"),
        ('[{"path": "a\\u0000", "type": "a"}]', ConfigError, "expected a folder"),
    ],
)
def test_modules_that_are_refused(folder, text, error, told):
    (folder / "modules.json").write_text(text)
    with pytest.raises(error) as raised:
        read_modules(folder)
    assert told in raised.value.message
    assert str(Path(folder) / "modules.json") in raised.value.message


def test_a_configuration_that_is_no_object_is_refused(folder):
    (folder / "1_P" / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"1_P/config\.json is an array, expected an object"):
        read_modules(folder)
