"""Whether ``42`` is a number or a text: values written without quotes, by the schema of their place."""

import json

import pytest

from hf2q.serve.chat.schemas import Schema

ROOT = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "choice": {"enum": ["1", "2"]},
        "fixed": {"const": "7"},
        "either": {"anyOf": [{"type": "string"}, {"type": "string", "enum": ["3"]}]},
        "referred": {"$ref": "#/$defs/Text"},
        "maybe": {"type": ["string", "null"]},
        "maybe2": {"oneOf": [{"$ref": "#/$defs/Text"}, {"type": "null"}]},
        "whole": {"type": "integer"},
        "flag": {"type": "boolean"},
        "both": {"type": ["string", "integer"]},
        "map": {
            "type": "object",
            "properties": {"inner": {"type": "string"}},
            "additionalProperties": {"type": "string"},
        },
        "list": {"type": "array", "items": {"type": "string"}},
        "circle": {"$ref": "#/properties/circle"},
        "nowhere": {"$ref": "#/$defs/Missing"},
        "free": {},
        "any": True,
    },
    "required": ["text", 3],
    "allOf": [{"properties": {"more": {"type": "string"}}, "required": ["more"]}],
    "$defs": {"Text": {"type": "string"}},
}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        *((name, "42", "42") for name in ("text", "choice", "fixed", "either", "referred", "maybe", "maybe2", "more")),
        ("text", "null", "null"),
        ("text", " true\n", " true\n"),
        ("text", '"quoted"', '"quoted"'),
        ("maybe", "null", None),
        ("maybe2", "null", None),
        ("maybe", " null", " null"),
        ("whole", "42", 42),
        ("whole", "\n 42 ", 42),
        ("whole", "forty", "forty"),
        ("whole", str(2**80), 2**80),
        ("whole", "None", None),
        ("flag", "true", True),
        ("flag", "True", True),
        ("flag", "False", False),
        ("both", "42", 42),
        ("both", "x", "x"),
        ("both", '"42"', "42"),
        ("map", '{"a": [1, null]}', {"a": [1, None]}),
        ("map", "{'a': 1}", "{'a': 1}"),
        ("list", '["a"]', ["a"]),
        *((name, "42", 42) for name in ("circle", "nowhere", "free", "any", "not there")),
        ("free", "NaN", "NaN"),
        ("free", "True", "True"),
        ("free", "1 2", "1 2"),
        ("free", "", ""),
        ("free", "9" * 5000, "9" * 5000),
    ],
)
def test_values(name, text, expected):
    found = json.loads(Schema(ROOT).member(name).value(text))
    assert found == expected
    assert type(found) is type(expected)


def test_places():
    root = Schema(ROOT)
    assert root.required == {"text", "more"}
    assert root.member("map").member("inner").written == "text"
    assert root.member("map").member("other").written == "text"
    assert root.member("list").items().written == "text"
    assert root.member("free").items().written == "json"
    assert Schema({}).member("a").member("b").items().written == "json"
    assert Schema({"additionalProperties": False}).member("a").written == "json"


def test_schemas_that_never_end():
    doubling = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}, {"$ref": "#"}]}
    assert Schema(doubling).member("a").written == "json"
    assert Schema(doubling).required == frozenset()


def test_a_value_deeper_than_pythons_reader_goes_is_json():
    """It was taken for a text before."""
    deep = "[" * 5_000 + '"a\\n"' + "]" * 5_000
    schema = Schema({"type": "array", "items": {"$ref": "#"}})
    assert schema.value(f" {deep} ") == deep
    for text in (deep[:-1], f"{deep}]", deep.replace('"a', "a"), deep.replace("\\n", "\\m")):
        assert json.loads(schema.value(text)) == text
