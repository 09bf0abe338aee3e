"""Files beside config.json that families may ask for."""

import json

import pytest

from hf2q.convert.sidefiles import with_side_files
from hf2q.errors import ConfigError, ContractError, FormatError

TOKENIZER = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"content": "b"}, {"content": "c"}]}
BOTH = ("tokenizer.json", "generation_config.json")


def test_a_file_that_is_not_there_is_left_out(tmp_path):
    assert with_side_files(tmp_path, {"x": 1}, BOTH) == {"x": 1}


def test_a_tokenizer_counts_added_tokens_once(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (tmp_path / "generation_config.json").write_text('{"top_k": 3}')
    assert with_side_files(tmp_path, {}, BOTH) == {
        "tokenizer.json": {"n_tokens": 3},
        "generation_config.json": {"top_k": 3},
    }


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("tokenizer.json", "{}", ConfigError),
        ("tokenizer.json", '{"model": {"vocab": []}}', ConfigError),
        ("generation_config.json", "[]", ConfigError),
        ("generation_config.json", "{", FormatError),
    ],
)
def test_files_that_are_not_understood_are_refused(tmp_path, name, text, error):
    (tmp_path / name).write_text(text)
    with pytest.raises(error, match=name):
        with_side_files(tmp_path, {}, [name])


def test_only_known_files_can_be_asked_for(tmp_path):
    with pytest.raises(ContractError, match=r"x\.json"):
        with_side_files(tmp_path, {}, ["x.json"])
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        with_side_files(tmp_path, {"tokenizer.json": 1}, ["tokenizer.json"])
