"""Token texts, types and merges of usual and unusual checkpoints.

The expected values of unusual ones were taken from llama.cpp's converter (the vendored one of the goldens, with
transformers 5.17) on the same files.
"""

import json
import logging

import pytest

from hf2q.errors import ConfigError

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5


def test_ids_without_a_token_are_unused(checkpoint):
    tokens = checkpoint.tokens(vocab_size=2100)
    assert tokens[2039] == ("<|audio_pad|>", CONTROL)
    assert tokens[2040:] == [(f"[PAD{number}]", UNUSED) for number in range(2040, 2100)]


def test_a_token_beyond_vocab_size_is_refused(checkpoint):
    with pytest.raises(ConfigError, match=r"id 2039.*vocab_size = 2039"):
        checkpoint.read(vocab_size=2039)


@pytest.mark.parametrize("size", [0, -5, 1 << 40])
def test_an_absurd_vocab_size_is_refused(checkpoint, size):
    with pytest.raises(ConfigError, match=f"vocab_size is {size}, expected"):
        checkpoint.read(vocab_size=size)


@pytest.mark.parametrize(
    ("content", "flags", "expected"),
    [
        ("<caf\u00e9>", {}, ("<caf\ufffd>", USER_DEFINED)),
        ("\u0120x", {}, (" x", USER_DEFINED)),
        ("\u2581y", {}, (" y", USER_DEFINED)),
        ("\u2581z", {"normalized": True}, (" z", USER_DEFINED)),
        ("\u0120zq", {"normalized": True}, ("\u0120zq", USER_DEFINED)),
        ("   ", {}, ("   ", USER_DEFINED)),
        ("<unused5>", {}, ("<unused5>", CONTROL)),
        ("<pad>", {}, ("<pad>", CONTROL)),
        ("<|x|>", {}, ("<|x|>", CONTROL)),
        ("<\uff5cx\uff5c>", {}, ("<\uff5cx\uff5c>", CONTROL)),
        ("<x>", {}, ("<x>", USER_DEFINED)),
        ("<x>", {"special": True}, ("<x>", CONTROL)),
    ],
)
def test_text_and_type_of_an_added_token(checkpoint, content, flags, expected):
    number = checkpoint.add(content, **flags)
    assert checkpoint.tokens()[number] == expected


def test_a_lost_character_of_an_added_token_is_warned_about(checkpoint, caplog):
    checkpoint.add("<caf\u00e9>")
    with caplog.at_level(logging.WARNING):
        checkpoint.read()
    assert "<caf\u00e9>" in caplog.text


def test_settings_override_flags_of_tokenizer_json(checkpoint):
    checkpoint.settings["added_tokens_decoder"]["2021"]["special"] = True
    checkpoint.settings["added_tokens_decoder"]["2035"]["special"] = False
    tokens = checkpoint.tokens()
    assert tokens[2021] == ("<tool_call>", CONTROL)
    assert tokens[2035] == ("<tts_pad>", USER_DEFINED)


@pytest.mark.parametrize(
    ("class_name", "listed"),
    [
        ("Qwen2Tokenizer", CONTROL),
        ("Qwen2TokenizerFast", CONTROL),
        ("Qwen3_5Tokenizer", USER_DEFINED),
        ("PreTrainedTokenizerFast", USER_DEFINED),
        (None, USER_DEFINED),
    ],
)
def test_tokens_that_the_settings_name_as_special(checkpoint, class_name, listed):
    checkpoint.settings["tokenizer_class"] = class_name
    checkpoint.settings["pad_token"] = "<tool_call>"
    checkpoint.settings["vision_token"] = "</think>"
    checkpoint.settings["additional_special_tokens"] += ["<think>", "<fresh>"]
    tokens = checkpoint.tokens()
    assert tokens[2021] == ("<tool_call>", CONTROL)
    assert tokens[2032] == ("</think>", CONTROL)
    assert tokens[2031] == ("<think>", listed)
    assert tokens[2040] == ("<fresh>", CONTROL)
    assert tokens[2041][1] == UNUSED


def test_named_special_tokens_of_the_vocabulary_become_control_tokens(checkpoint):
    number = checkpoint.tokenizer["model"]["vocab"]["he"]
    checkpoint.settings["eos_token"] = "he"
    assert checkpoint.tokens()[number] == ("he", CONTROL)


def test_extra_special_tokens_as_a_table(checkpoint):
    checkpoint.settings["extra_special_tokens"] = {"image_token": "<think>", "video_token": "<vv>"}
    tokens = checkpoint.tokens()
    assert tokens[2031] == ("<think>", CONTROL)
    assert tokens[2040] == ("<vv>", CONTROL)


def test_legacy_files_count_without_added_tokens_decoder(checkpoint):
    for key in ("added_tokens_decoder", "eos_token", "additional_special_tokens"):
        del checkpoint.settings[key]
    checkpoint.more["special_tokens_map.json"] = json.dumps(
        {"eos_token": {"content": "<|endoftext|>"}, "additional_special_tokens": ["<think>", "<new1>"]}
    )
    checkpoint.more["added_tokens.json"] = json.dumps({"<zz>": 2040})
    tokens = checkpoint.tokens()
    assert tokens[2031] == ("<think>", CONTROL)
    assert tokens[2040:2042] == [("<zz>", USER_DEFINED), ("<new1>", CONTROL)]


def test_legacy_files_do_not_count_beside_added_tokens_decoder(checkpoint):
    checkpoint.more["special_tokens_map.json"] = json.dumps({"eos_token": "<other>"})
    checkpoint.more["added_tokens.json"] = json.dumps({"<zz>": 2040})
    assert checkpoint.tokens()[2040] == ("[PAD2040]", UNUSED)


def test_legacy_ids_must_be_numbers(checkpoint):
    del checkpoint.settings["added_tokens_decoder"]
    checkpoint.more["added_tokens.json"] = json.dumps({"<zz>": "2040"})
    with pytest.raises(ConfigError, match=r"added_tokens\.json: '<zz>' is a string, expected a number"):
        checkpoint.read()


def test_tokens_missing_from_added_tokens_decoder_are_kept(checkpoint):
    for number in range(2030, 2040):
        del checkpoint.settings["added_tokens_decoder"][str(number)]
    assert checkpoint.tokens()[2031] == ("<think>", USER_DEFINED)


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_what_gguf_cannot_say_of_an_added_token_is_refused(checkpoint, flag):
    checkpoint.add("<mask2>", **{flag: True})
    with pytest.raises(ConfigError, match=f"<mask2>.*{flag}"):
        checkpoint.read()


def test_an_id_that_the_library_would_not_give_is_refused(checkpoint):
    checkpoint.tokenizer["added_tokens"][-1]["id"] = 2045
    with pytest.raises(ConfigError, match=r"2045.*2039"):
        checkpoint.read()


def test_two_tokens_of_one_text_are_refused(checkpoint):
    checkpoint.add("\u0120zq")
    checkpoint.add(" zq")
    with pytest.raises(ConfigError, match="two tokens are written ' zq'"):
        checkpoint.read()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda vocab: vocab.update(he=vocab["in"]), "share the id"),
        (lambda vocab: vocab.update(he=-1), "'he' has the id -1"),
        (lambda vocab: vocab.update(he="4"), "'he' has the id '4'"),
        (lambda vocab: vocab.update(he=True), "'he' has the id True"),
    ],
)
def test_bad_vocabulary_ids(checkpoint, change, message):
    change(checkpoint.tokenizer["model"]["vocab"])
    with pytest.raises(ConfigError, match=message):
        checkpoint.read()


# ---------------------------------------------------------------------------------------------------------- merges


def test_merges_as_texts_and_as_pairs_are_equal(checkpoint):
    pairs = checkpoint.values()["tokenizer.ggml.merges"]
    model = checkpoint.tokenizer["model"]
    model["merges"] = [" ".join(pair) for pair in model["merges"]]
    assert checkpoint.values()["tokenizer.ggml.merges"] == pairs


def test_a_space_inside_a_merge_is_re_encoded(checkpoint):
    model = checkpoint.tokenizer["model"]
    model["vocab"]["a b"] = model["vocab"].pop("alth")
    model["vocab"]["a "] = model["vocab"].pop("ides")
    model["merges"] = [["a ", "b"]]
    assert checkpoint.values()["tokenizer.ggml.merges"] == ("a\u0120 b",)


@pytest.mark.parametrize(
    ("merges", "message"),
    [
        ([["h", "e", "y"]], r"merges\[0\]"),
        (["h"], r"merges\[0\]"),
        ([["h", 3]], r"merges\[0\]"),
        ([["h", "e"], ["zz", "q"]], r"merges\[1\] needs 'zz'"),
        ([], "empty"),
        ({"h": "e"}, "is an object, expected an array"),
    ],
)
def test_bad_merges(checkpoint, merges, message):
    checkpoint.tokenizer["model"]["merges"] = merges
    with pytest.raises(ConfigError, match=message):
        checkpoint.read()
