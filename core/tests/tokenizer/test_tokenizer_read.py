"""A checkpoint's tokenizer as metadata: the goldens, and files that are missing, damaged or of the wrong shape."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hf2q.errors import ConfigError, FormatError, MissingFileError, SourceError
from hf2q.formats.tokenizer import files, read_tokenizer
from hf2q.testing.fixtures import require_fixture
from hf2q.types import PreTokenizer

DATA = Path(__file__).parents[3] / "tests" / "data"
CONFIG = json.loads((DATA / "qwen3_5" / "config.json").read_text("utf-8"))
QWEN35 = PreTokenizer(
    name="qwen35",
    split=(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    normalizer="NFC",
)


def as_golden(field):
    types = [field.type.name] if field.element is None else [field.type.name, field.element.name]
    value = list(field.value) if isinstance(field.value, tuple) else field.value
    if isinstance(value, list) and len(value) > 64:
        text = json.dumps(value, ensure_ascii=False)
        value = {"len": len(value), "sha256": hashlib.sha256(text.encode()).hexdigest()[:32]}
    return field.key, [types, value]


def test_golden_fields_types_values_and_order():
    golden = json.loads((DATA / "qwen3_5.golden.json").read_text("utf-8"))["kv"]["bf16"]
    expected = [(key, value) for key, value in golden.items() if key.startswith("tokenizer.")]
    fields = read_tokenizer(DATA / "qwen3_5", 2048, CONFIG, [QWEN35])
    assert [as_golden(field) for field in fields] == expected


@pytest.mark.fixtures
def test_moe_fixture_has_the_same_tokenizer():
    folder = require_fixture("qwen3_5_moe")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    moe = {field.key: field.value for field in read_tokenizer(folder, 2048, config, [QWEN35])}
    dense = {field.key: field.value for field in read_tokenizer(DATA / "qwen3_5", 2048, config, [QWEN35])}
    for key in ("pre", "tokens", "token_type", "merges", "eos_token_id", "padding_token_id"):
        assert moe[f"tokenizer.ggml.{key}"] == dense[f"tokenizer.ggml.{key}"]


def test_importing_loads_neither_tokenizers_nor_numpy():
    code = (
        "import sys, hf2q.formats.tokenizer; print(sorted({'tokenizers', 'numpy', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_missing_tokenizer_json(tmp_path):
    with pytest.raises(MissingFileError, match=r"tokenizer\.json.*\nhint: .*save_pretrained"):
        read_tokenizer(tmp_path, 10, {}, [QWEN35])


@pytest.mark.parametrize("text", ["{", '{"a": NaN}', "[" * 100_000, '"\\ud800"', "\ufeff{}"])
def test_broken_json(checkpoint, text):
    checkpoint.read()
    (checkpoint.folder / "tokenizer.json").write_text(text, "utf-8")
    with pytest.raises(FormatError, match=r"tokenizer\.json"):
        read_tokenizer(checkpoint.folder, 2048, {}, [QWEN35])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model", None, "model is null, expected an object"),
        ("model", [], "model is an array, expected an object"),
        ("added_tokens", {}, "added_tokens is an object, expected an array"),
        ("added_tokens", [3], r"added_tokens\[0\] is a number, expected an object"),
        ("added_tokens", [{"id": 1}], r"added_tokens\[0\]: content is null, expected a string"),
        ("added_tokens", [{"id": "1", "content": "x"}], r"added_tokens\[0\]: id is a string"),
        ("added_tokens", [{"id": 1, "content": "x", "special": 1}], r"special is a number, expected a boolean"),
        ("added_tokens", [{"id": 2007, "content": ""}], "empty text"),
    ],
)
def test_wrong_types_name_file_and_key(checkpoint, key, value, message):
    checkpoint.tokenizer[key] = value
    with pytest.raises(ConfigError, match=message):
        checkpoint.read()


def test_wrong_types_in_the_settings(checkpoint):
    checkpoint.settings["additional_special_tokens"] = "x"
    with pytest.raises(ConfigError, match="additional_special_tokens is a string"):
        checkpoint.read()


def test_an_oversized_file_is_not_read(checkpoint, monkeypatch):
    checkpoint.read()
    monkeypatch.setattr(files, "MAX_JSON_BYTES", 1000)
    with pytest.raises(SourceError, match="expected at most 1000"):
        checkpoint.read()


def test_a_git_lfs_pointer_is_named(checkpoint):
    checkpoint.read()
    (checkpoint.folder / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(MissingFileError, match="git-lfs"):
        read_tokenizer(checkpoint.folder, 2048, {}, [QWEN35])
