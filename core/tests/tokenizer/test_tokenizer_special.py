"""Special token ids and flags of usual and unusual checkpoints.

The expected values of unusual ones were taken from llama.cpp's converter (the vendored one of the goldens, with
transformers 5.17) on the same files.
"""

import pytest

from hf2q.errors import ConfigError

IDS = "tokenizer.ggml.{}_token_id".format


def test_ids_of_config_json_fill_what_the_settings_leave(checkpoint):
    checkpoint.settings.update(eos_token=None, pad_token=None)
    checkpoint.config.update(eos_token_id=[1, 2], bos_token_id=5)
    checkpoint.config["text_config"].update(pad_token_id=7, eos_token_id=9, mask_token_id=11)
    values = checkpoint.values()
    assert {key: value for key, value in values.items() if key.endswith("_id")} == {
        IDS("bos"): 5,
        IDS("padding"): 7,
        IDS("mask"): 11,
    }


def test_ids_come_in_the_order_of_their_roles(checkpoint):
    checkpoint.settings.update(unk_token="<|endoftext|>", sep_token="<|quad_end|>", mask_token="<|box_end|>")
    keys = [field.key for field in checkpoint.read() if field.key.endswith("_id")]
    assert keys == [IDS(role) for role in ("eos", "unknown", "seperator", "padding", "mask")]


def test_a_negative_id_is_refused(checkpoint):
    checkpoint.config["bos_token_id"] = -1
    with pytest.raises(ConfigError, match=r"config\.json: bos_token_id is -1"):
        checkpoint.read()


def template(*single, pair=()):
    def pieces(names):
        return [
            {"Sequence": {"id": name, "type_id": 0}} if name in "AB" else {"SpecialToken": {"id": name, "type_id": 0}}
            for name in names
        ]

    return {"type": "TemplateProcessing", "single": pieces(single), "pair": pieces(pair), "special_tokens": {}}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
START, END = "<|im_start|>", "<|endoftext|>"


@pytest.mark.parametrize(
    ("step", "settings", "expected"),
    [
        (BYTE_LEVEL, {}, {"add_bos": False, "add_eos": False, "eos": 2009}),
        (None, {}, {"add_bos": False, "eos": 2009}),
        (
            None,
            {"add_bos_token": True, "add_eos_token": False, "bos_token": START},
            {"add_bos": True, "add_eos": False, "bos": 2008, "eos": 2009},
        ),
        (template(START, "A"), {"bos_token": START}, {"bos": 2008, "add_bos": True, "eos": 2009}),
        (template(START, "A"), {}, {"bos": 2008, "add_bos": True, "eos": 2009}),
        (
            {"type": "Sequence", "processors": [BYTE_LEVEL, template(START, "A")]},
            {"bos_token": START},
            {"bos": 2008, "add_bos": True, "add_eos": False, "eos": 2009},
        ),
        (
            template("A", END, pair=("A", END, "B", END)),
            {},
            {"add_bos": False, "add_eos": True, "add_sep": False, "eos": 2007, "eot": 2009},
        ),
        (
            template("A", pair=("A", END, "B")),
            {"eos_token": END},
            {"add_bos": False, "add_sep": True, "sep": 2007, "eos": 2007},
        ),
    ],
)
def test_post_processors(checkpoint, step, settings, expected):
    checkpoint.tokenizer["post_processor"] = step
    checkpoint.settings.update(settings)
    values = checkpoint.values()
    found = {role: values.get(IDS(role)) for role in ("bos", "eos", "eot")}
    found["sep"] = values.get(IDS("seperator"))
    found |= {name: values.get(f"tokenizer.ggml.{name}_token") for name in ("add_bos", "add_eos", "add_sep")}
    assert {name: value for name, value in found.items() if value is not None} == expected


@pytest.mark.parametrize(
    "step",
    [
        {"type": "BertProcessing", "sep": ["a", 1], "cls": ["b", 2]},
        template(START, START, "A"),
        template("A", "A"),
        template("<think>", "A"),
        {"type": "Sequence", "processors": [{"type": "Unheard"}]},
        {"type": "TemplateProcessing", "single": [{"Sequence": {"id": 3}}]},
        {"type": "TemplateProcessing", "single": [{}]},
        [],
    ],
)
def test_post_processors_that_flags_cannot_express(checkpoint, step):
    checkpoint.tokenizer["post_processor"] = step
    checkpoint.settings["bos_token"] = START
    with pytest.raises(ConfigError, match="post_processor"):
        checkpoint.read()


def test_a_flag_without_its_token_has_no_effect(checkpoint, caplog):
    checkpoint.tokenizer["post_processor"] = None
    checkpoint.settings["add_bos_token"] = True
    assert checkpoint.values()["tokenizer.ggml.add_bos_token"] is False
    assert "add_bos_token is set" in caplog.text


def test_a_token_that_is_added_must_be_known(checkpoint):
    checkpoint.tokenizer["post_processor"] = template("he", "A")
    with pytest.raises(ConfigError, match="adds the bos token, but no file says"):
        checkpoint.read()
    checkpoint.config["bos_token_id"] = 7
    assert checkpoint.values()[IDS("bos")] == 7
