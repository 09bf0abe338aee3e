"""Chat templates from each of their homes.

The expected values of unusual ones were taken from llama.cpp's converter (the vendored one of the goldens, with
transformers 5.17) on the same files.
"""

import json

import pytest

from hf2q.errors import ConfigError


def templates(checkpoint):
    return [(field.key, field.value) for field in checkpoint.read() if "chat_template" in field.key]


MAIN = "tokenizer.chat_template"


@pytest.mark.parametrize("inline", ["INLINE", [{"name": "default", "template": "INLINE"}]])
def test_the_settings_template_comes_first(checkpoint, inline):
    checkpoint.settings["chat_template"] = inline
    assert templates(checkpoint) == [(MAIN, "INLINE")]


def test_template_files_in_order_of_preference(checkpoint):
    checkpoint.more = {"chat_template.json": json.dumps({"chat_template": "JSON"})}
    assert templates(checkpoint) == [(MAIN, "JSON")]
    checkpoint.more = {"chat_template.jinja": "A\r\nB\n"}
    assert templates(checkpoint) == [(MAIN, "A\nB\n")]


def test_template_file_counts_without_settings(checkpoint):
    checkpoint.settings = None
    assert templates(checkpoint) == [(MAIN, "JINJA")]


def test_named_templates(checkpoint):
    named = {"default": "D", "tool use": "T", "rag": "R", "": "x"}
    checkpoint.settings["chat_template"] = [{"name": name, "template": text} for name, text in named.items()]
    assert templates(checkpoint) == [
        (f"{MAIN}.tool_use", "T"),
        (f"{MAIN}.rag", "R"),
        ("tokenizer.chat_templates", ("rag", "tool_use")),
        (MAIN, "D"),
    ]


def test_additional_template_files(checkpoint):
    checkpoint.more["additional_chat_templates/tool_use.jinja"] = "T"
    expected = [(f"{MAIN}.tool_use", "T"), ("tokenizer.chat_templates", ("tool_use",)), (MAIN, "JINJA")]
    assert templates(checkpoint) == expected


@pytest.mark.parametrize("inline", [None, "", []])
def test_an_empty_template_is_none(checkpoint, inline):
    checkpoint.settings["chat_template"] = inline
    assert templates(checkpoint) == []


@pytest.mark.parametrize(
    "inline",
    [
        3,
        {"default": "x"},
        ["x"],
        [{"name": 3, "template": "x"}],
        [{"name": "a", "template": 3}],
        [{"name": "a b", "template": "x"}, {"name": "a_b", "template": "y"}],
    ],
)
def test_bad_templates(checkpoint, inline):
    checkpoint.settings["chat_template"] = inline
    with pytest.raises(ConfigError, match=r"chat.template"):
        checkpoint.read()
