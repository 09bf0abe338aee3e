"""The pre-tokenizers of the Qwen3.5 plugin against real files."""

import json
from pathlib import Path

import pytest

from hf2q.errors import ConfigError
from hf2q.formats.tokenizer.structure import pick_pre_tokenizer
from hf2q_arch_qwen35.tokenizer import PRE_TOKENIZERS, QWEN2_PRE, QWEN35_PRE

FIXTURE = Path(__file__).parents[2] / "tests" / "data" / "qwen3_5" / "tokenizer.json"


def pick(tokenizer):
    return pick_pre_tokenizer(tokenizer, PRE_TOKENIZERS, None, "tokenizer.json")


def test_the_fixture_is_recognised():
    assert pick(json.loads(FIXTURE.read_text("utf-8"))) is QWEN35_PRE


def test_a_tokenizer_saved_by_qwen2_s_class_is_recognised():
    tokenizer = json.loads(FIXTURE.read_text("utf-8"))
    tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = QWEN2_PRE.split[0]
    assert pick(tokenizer) is QWEN2_PRE


def test_one_changed_character_is_not():
    tokenizer = json.loads(FIXTURE.read_text("utf-8"))
    tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] += "|x"
    with pytest.raises(ConfigError, match="differs in split"):
        pick(tokenizer)


@pytest.mark.parametrize("record", PRE_TOKENIZERS)
def test_marks_stay_with_letters_in_qwen35_only(record):
    tokenizers = pytest.importorskip("tokenizers")
    step = tokenizers.pre_tokenizers.Split(tokenizers.Regex(record.split[0]), "isolated")
    pieces = [piece for piece, _ in step.pre_tokenize_str("\u0928\u0938\u094d x12'S")]
    letters = ["\u0928\u0938\u094d"] if record is QWEN35_PRE else ["\u0928\u0938", "\u094d"]
    assert pieces == [*letters, " x", "1", "2", "'S"]
