"""What is taken for a checkpoint, and what is refused with which words."""

import json
from pathlib import Path

import numpy as np
import pytest

from hf2q.config import Config, overlaid
from hf2q.convert.source import open_source, read_config
from hf2q.errors import ConfigError, FormatError, MissingFileError, SourceError

TENSOR = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()


def write(folder, config=None, header=TENSOR, files=()):
    folder.mkdir(exist_ok=True)
    text = config if isinstance(config, str) else json.dumps({"architectures": ["A"]} if config is None else config)
    (folder / "config.json").write_text(text)
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + np.zeros(1, "f4").tobytes())
    for name in files:
        (folder / name).write_text("{}")
    return str(folder)


def test_a_checkpoint(tmp_path):
    source = open_source(write(tmp_path / "m"))
    assert source.hf_architecture == "A"
    assert list(source.checkpoint.tensors) == ["x"]


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("nowhere", MissingFileError, "there is no directory nowhere"),
        ("Some/Model-1B", MissingFileError, "hf download Some/Model-1B --local-dir Model-1B"),
        ("https://hub.example/Some/Model-1B", MissingFileError, "hf download Some/Model-1B"),
        ("a/b/c", MissingFileError, "there is no directory a/b/c"),
        ("nul\0byte", MissingFileError, "nul"),
        ("", MissingFileError, "empty text"),
        ("~nobody-of-that-name/m", MissingFileError, "home directory"),
        ("file.gguf", SourceError, "is a file, expected a checkpoint directory"),
        (".", MissingFileError, "config.json does not exist"),
    ],
)
def test_places_that_are_no_checkpoint(tmp_path, monkeypatch, source, error, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.gguf").write_bytes(b"GGUF")
    with pytest.raises(error) as caught:
        open_source(source)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "error"),
    [("[]", ConfigError), ("{", FormatError), ('{"a": 1, "a": 2}', FormatError), ("\x00", FormatError)],
)
def test_config_files_that_are_none(tmp_path, text, error):
    with pytest.raises(error, match=r"config\.json"):
        open_source(write(tmp_path / "m", text))


def test_a_directory_that_may_not_be_entered_is_a_fault_of_the_source(tmp_path, monkeypatch):
    def refuse(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    source = write(tmp_path / "m")
    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(SourceError, match=r"config\.json cannot be opened: Permission denied"):
        open_source(source)


def test_a_config_of_absurd_size_is_not_read(tmp_path):
    write(tmp_path / "m")
    with (tmp_path / "m" / "config.json").open("r+b") as file:
        file.truncate(1 << 30)
    with pytest.raises(SourceError, match="at most"):
        read_config(tmp_path / "m")


@pytest.mark.parametrize("names", [None, [], "A", [1], {}])
def test_a_config_that_names_no_class(tmp_path, names):
    source = open_source(write(tmp_path / "m", {"architectures": names}))
    with pytest.raises(ConfigError, match="architectures"):
        _ = source.hf_architecture


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": {"quant_method": "gptq"}},
        {"text_config": {"quantization_config": {"quant_method": "awq"}}},
        {"quantization": {"group_size": 64, "bits": 4}},
    ],
)
def test_quantized_checkpoints_are_refused(tmp_path, config):
    with pytest.raises(ConfigError, match="quantized already"):
        open_source(write(tmp_path / "m", config))
    assert open_source(write(tmp_path / "n", {"architectures": ["A"], "quantization_config": None}))


def test_a_checkpoint_quantized_by_modelopt_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"hf_quant_config\.json"):
        open_source(write(tmp_path / "m", files=["hf_quant_config.json"]))


def test_files_written_by_mlx_are_refused(tmp_path):
    header = json.dumps({"__metadata__": {"format": "mlx"}, **json.loads(TENSOR)}).encode()
    with pytest.raises(SourceError, match="written by MLX"):
        open_source(write(tmp_path / "m", header=header))


class TestConfig:
    """`hf2q.config.Config`: what is not read must be known to be harmless."""

    def test_unread_keys_are_refused_unless_harmless_or_null(self):
        c = Config({"a": 1, "b": None, "use_cache": True, "odd": [1, 2]})
        assert c.size("a") == 1
        with pytest.raises(ConfigError) as caught:
            c.done()
        assert "odd = [1, 2]" in caught.value.message
        assert "use_cache" not in caught.value.message
        c.raw("odd")
        c.done()

    @pytest.mark.parametrize("value", [0, -1, 1.0, True, "1", 1 << 32, None, [1]])
    def test_sizes_are_positive_integers(self, value):
        with pytest.raises(ConfigError, match="n is "):
            Config({"n": value}).size("n", 7)
        with pytest.raises(ConfigError, match="n is missing"):
            Config({}).size("n")
        assert Config({}).size("n", 7) == 7
        assert Config({"n": 0}).size("n", least=0) == 0
        with pytest.raises(ConfigError, match="n is 9, expected an integer from 1 to 8"):
            Config({"n": 9}).size("n", most=8)

    @pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), True, "1", 1e39, 1e-39, 10**400])
    def test_numbers_are_positive_and_fit_float32(self, value):
        with pytest.raises(ConfigError, match="x is "):
            Config({"x": value}).number("x")
        assert Config({"x": 10000000}).number("x") == 1e7

    def test_flags_and_choices(self):
        c = Config({"yes": True, "one": 1, "word": "a"})
        assert c.flag("yes") is True
        assert c.flag("absent", False) is False
        with pytest.raises(ConfigError, match="one is 1, expected true or false"):
            c.flag("one")
        with pytest.raises(ConfigError, match="word is 'a', expected 'b' or 'c': why not"):
            c.expect("word", ("b", "c"), "why not")
        with pytest.raises(ConfigError, match="one is 1, expected True"):  # 1 == True, but says something else
            c.expect("one", (True,), "a truth value")
        assert c.expect("absent", ("b",), "", default="b") == "b"

    def test_sections(self):
        c = Config({"rope": {"type": "x"}, "none": None, "list": []})
        assert c.section("none") is None
        with pytest.raises(ConfigError, match=r"config\.json: rope has keys .* type = 'x'"):
            c.section("rope").done()
        with pytest.raises(ConfigError, match="list is \\[\\], expected an object"):
            c.section("list")

    def test_text_config_wins_over_the_root(self):
        assert overlaid({"a": 1, "b": 2, "text_config": {"b": 3}}) == {"a": 1, "b": 3}
        assert overlaid({"a": 1, "text_config": None}) == {"a": 1, "text_config": None}
        with pytest.raises(ConfigError, match="text_config is a list"):
            overlaid({"text_config": []})
