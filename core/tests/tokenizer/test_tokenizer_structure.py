"""Recognising a pre-tokenizer by the steps of tokenizer.json."""

import copy
import json
from pathlib import Path

import pytest

from hf2q.errors import ConfigError
from hf2q.formats.tokenizer.alphabet import BYTE_OF_CHAR, CHAR_OF_BYTE, SPLIT_REGEX
from hf2q.formats.tokenizer.models import check_model, gguf_model
from hf2q.formats.tokenizer.structure import find_structure, pick_pre_tokenizer
from hf2q.types import PreTokenizer

SOURCE = json.loads((Path(__file__).parents[3] / "tests/data/qwen3_5/tokenizer.json").read_text("utf-8"))
SOURCE["model"] |= {"vocab": {}, "merges": []}
REGEX = SOURCE["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
FAMILY = PreTokenizer(name="family", split=(REGEX,), normalizer="NFC")
PLAIN = PreTokenizer(name="plain", split=(SPLIT_REGEX,))
KNOWN = [PLAIN, FAMILY]


def split(regex="x", behavior="Isolated", **more):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": False} | more


def byte_level(**more):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False} | more


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


@pytest.fixture
def tokenizer():
    return copy.deepcopy(SOURCE)


def pick(tokenizer, known=KNOWN, pre=None):
    return pick_pre_tokenizer(tokenizer, known, pre, "DIR/tokenizer.json").name


def test_the_alphabet_is_a_bijection():
    assert sorted(CHAR_OF_BYTE) == list(range(256))
    assert {char: byte for byte, char in CHAR_OF_BYTE.items()} == BYTE_OF_CHAR
    assert (CHAR_OF_BYTE[0x20], CHAR_OF_BYTE[0x0A], CHAR_OF_BYTE[0x41]) == ("\u0120", "\u010a", "A")


def test_the_alphabet_is_the_library_s():
    tokenizers = pytest.importorskip("tokenizers")
    assert set(BYTE_OF_CHAR) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())


def test_fixture_is_recognised(tokenizer):
    assert pick(tokenizer) == "family"


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (byte_level(use_regex=True), {"split": (SPLIT_REGEX,), "digits": False}),
        (sequence(split("a"), sequence(split("b"), byte_level())), {"split": ("a", "b"), "digits": False}),
        (
            sequence({"type": "Digits", "individual_digits": True}, byte_level(use_regex=True)),
            {"split": (SPLIT_REGEX,), "digits": True},
        ),
        (
            sequence(split("a"), {"type": "Digits", "individual_digits": True}, byte_level()),
            {"split": ("a", r"\p{N}"), "digits": False},
        ),
        (
            sequence({"type": "Digits", "individual_digits": False}, byte_level()),
            {"split": (r"\p{N}+",), "digits": False},
        ),
        (sequence(split("a"), byte_level(add_prefix_space=True)), {"split": ("a",), "add_prefix_space": True}),
    ],
)
def test_steps_in_the_words_of_the_record(tokenizer, steps, expected):
    tokenizer["pre_tokenizer"] = steps
    found = find_structure(tokenizer, "x")
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    "steps",
    [
        None,
        [],
        {"type": "Whitespace"},
        sequence(),
        sequence(split()),
        sequence(byte_level(), split()),
        sequence(split(behavior="Removed"), byte_level()),
        sequence(split(invert=True), byte_level()),
        sequence(split(pattern={"String": " "}), byte_level()),
        sequence({"type": "Punctuation"}, byte_level()),
        sequence(3, byte_level()),
        sequence(None, byte_level()),
    ],
)
def test_other_steps_are_refused_and_shown(tokenizer, steps):
    tokenizer["pre_tokenizer"] = steps
    with pytest.raises(ConfigError, match="no known pre-tokenizer has this structure") as caught:
        pick(tokenizer)
    assert json.dumps(steps, separators=(",", ":")) in caught.value.message
    assert caught.value.hint == "--pre NAME states the pre-tokenizer; known names: family, plain"


@pytest.mark.parametrize("normalizer", [{"type": "NFKC"}, {"type": "Lowercase"}, "NFC"])
def test_other_normalizers_are_refused(tokenizer, normalizer):
    tokenizer["normalizer"] = normalizer
    with pytest.raises(ConfigError, match="no known pre-tokenizer"):
        pick(tokenizer)


def test_a_near_miss_names_the_difference(tokenizer):
    tokenizer["normalizer"] = None
    tokenizer["model"]["ignore_merges"] = True
    with pytest.raises(ConfigError, match=r"nearest known: family \(differs in normalizer, ignore_merges\)"):
        pick(tokenizer)


def test_each_part_counts(tokenizer):
    for change in ({"normalizer": ""}, {"ignore_merges": True}, {"add_prefix_space": True}, {"digits": True}):
        record = PreTokenizer(**{"name": "other", "split": (REGEX,), "normalizer": "NFC", **change})
        with pytest.raises(ConfigError, match=f"differs in {next(iter(change))}"):
            pick(tokenizer, [record])


def test_a_nested_normalizer_is_the_same(tokenizer):
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}]}
    assert pick(tokenizer) == "family"


def test_pre_names_a_known_one_whatever_the_structure(tokenizer):
    tokenizer["pre_tokenizer"] = {"type": "Whitespace"}
    assert pick(tokenizer, pre="plain") == "plain"
    with pytest.raises(ConfigError, match="unknown pre-tokenizer 'plane'\nhint: --pre takes one of: family, plain"):
        pick(tokenizer, pre="plane")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "Unigram"}, r"model\.type is 'Unigram', expected 'BPE' or 'WordPiece'"),
        ({"dropout": 0.1}, r"model\.dropout is 0\.1"),
        ({"continuing_subword_prefix": "##"}, r"model\.continuing_subword_prefix is '##'"),
        ({"end_of_word_suffix": "</w>"}, r"model\.end_of_word_suffix is '</w>'"),
        ({"byte_fallback": True}, "expected Replace of U.2581 by a space, ByteFallback, Fuse"),
        ({"type": "WordPiece", "continuing_subword_prefix": "##"}, "expected WordPiece with the prefix '##'"),
        ({"type": "WordPiece", "continuing_subword_prefix": "@@"}, "prefix is '@@', which .* expected '##'"),
        ({"type": "WordPiece", "continuing_subword_prefix": "##", "max_input_chars_per_word": 200}, "word is 200"),
    ],
)
def test_models_that_gguf_cannot_express(tokenizer, changes, message):
    check_model(tokenizer, "x")
    tokenizer["model"] |= changes
    with pytest.raises(ConfigError, match=message):
        check_model(tokenizer, "x")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "gpt2"),
        ({"byte_fallback": True}, "gemma4"),
        ({"type": "WordPiece"}, "bert"),
        ({"type": None, "max_input_chars_per_word": 100}, "bert"),
        ({"type": None}, "gpt2"),
    ],
)
def test_the_model_that_gguf_names(tokenizer, changes, expected):
    tokenizer["model"] |= changes
    if tokenizer["model"]["type"] is None:
        del tokenizer["model"]["type"]
    assert gguf_model(tokenizer, "x") == expected


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece"}, {"type": "Sequence", "decoders": []}])
def test_decoders_other_than_byte_level_are_refused(tokenizer, decoder):
    tokenizer["decoder"] = decoder
    with pytest.raises(ConfigError, match="decoder is"):
        check_model(tokenizer, "x")


def test_the_size_of_the_vocabulary_tells_alike_structures_apart(tokenizer):
    large = PreTokenizer(name="large", split=(REGEX,), normalizer="NFC", n_tokens=2)
    assert pick(tokenizer, [large, FAMILY]) == "family"
    tokenizer["model"]["vocab"] = {"a": 0, "b": 1}
    assert pick(tokenizer, [large, FAMILY]) == "large"
    tokenizer["model"]["vocab"] = {"a": 0}
    with pytest.raises(ConfigError, match=r"large \(differs in n_tokens\)"):
        pick(tokenizer, [large])
