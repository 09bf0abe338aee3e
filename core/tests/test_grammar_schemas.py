"""JSON by a schema: whatever a model tries, an answer that ends is valid; what cannot be enforced is refused."""

import json
import time
from pathlib import Path

import pytest
from jsonschema import Draft7Validator, Draft202012Validator, ValidationError
from jsonschema.validators import validator_for

from hf2q.errors import Hf2qError, RequestError
from hf2q.serve.chat.constraints import Constraints
from hf2q.serve.chat.query import ChatQuery, ResponseFormat
from hf2q.testing.random_answers import random_answer
from hf2q.testing.scripted import scripted_tokenizer

DATA = json.loads((Path(__file__).parent / "data" / "grammar_schemas.json").read_text(encoding="utf-8"))
PARAM = "response_format.json_schema.schema"
TOKENIZER = scripted_tokenizer()
N_VOCAB = TOKENIZER.n_vocab + 5
"""Logits: the model's matrix is padded."""


@pytest.fixture(scope="module")
def constraints():
    return Constraints(TOKENIZER, end_ids=TOKENIZER.eos_ids, n_vocab=N_VOCAB)


def form(constraints, schema, kind="json_schema"):
    query = ChatQuery(messages=(), format=ResponseFormat(kind=kind, schema=schema))
    return constraints.form(query, markers=None, inside=False, syntax=None, tools=())


def answers(form, seeds=range(6), limit=300):
    return [random_answer(form.constraint(), TOKENIZER, n_vocab=N_VOCAB, seed=seed, limit=limit) for seed in seeds]


def test_there_are_enough_schemas():
    assert len(DATA["enforced"]) >= 100
    assert len(DATA["refused"]) >= 60


@pytest.mark.filterwarnings("ignore:Possible set intersection:FutureWarning")  # Python's re on [a&&b]
@pytest.mark.parametrize("schema", DATA["enforced"], ids=lambda schema: json.dumps(schema)[:60])
def test_what_ends_is_valid(constraints, schema):
    kind = Draft202012Validator if isinstance(schema, bool) else validator_for(schema, default=Draft202012Validator)
    validator = kind(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    found = answers(form(constraints, schema))
    for answer in found:
        if answer.finished:
            validator.validate(json.loads(answer.text))
    if schema != {"type": "string", "pattern": "ab?c"}:  # it may begin with any text, and does
        assert any(answer.finished for answer in found), found[0]


@pytest.mark.parametrize("row", DATA["refused"], ids=lambda row: json.dumps(row["schema"])[:60])
def test_what_cannot_be_enforced_is_refused(constraints, row):
    with pytest.raises(RequestError) as caught:
        form(constraints, row["schema"])
    assert row["says"] in caught.value.message
    assert f"(at {row['path'] or 'the top'} of {PARAM})" in caught.value.message
    assert caught.value.param == PARAM
    assert caught.value.code == "unsupported_schema"


def test_any_object(constraints):
    for answer in answers(form(constraints, None, "json_object")):
        assert answer.text.startswith("{")
        if answer.finished:
            assert isinstance(json.loads(answer.text), dict)


def test_no_schema_is_any_value(constraints):
    assert any(answer.finished for answer in answers(form(constraints, None)))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"properties": {"a": {"type": "integer"}}}, '{"\\u0061": "x"}'),
        ({"patternProperties": {"^a": {"type": "integer"}}}, '{"\\u0061": "x"}'),
        ({"properties": {"\n": {"type": "integer"}}, "additionalProperties": {"type": "string"}}, '{"\\u000a": "x"}'),
        ({"items": [{"properties": {"a": {"type": "integer"}}}]}, '[{"b": 1, "\\u0061": "x"}]'),
        ({"properties": {"a": {"type": "integer"}}}, '{"a": 1, "a": "x"}'),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_a_name_is_written_in_one_way(constraints, schema, text):
    """Else a property could be given under another spelling, as one that the schema does not name."""
    with pytest.raises(ValidationError):
        Draft7Validator(schema).validate(json.loads(text))
    with pytest.raises(Hf2qError, match="cannot be held to its form"):
        said(form(constraints, schema).constraint(), text)


def said(constraint, text):
    for token in TOKENIZER.encode(text, add_bos=False):
        constraint.accept(token)


def test_texts_of_closed_objects_may_hold_any_control_character(constraints):
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
    said(form(constraints, schema).constraint(), '{"a": "\\u001b[0m"}')


def test_blanks_are_few(constraints):
    """Nothing but one blank behind a comma or a colon: a model cannot lose itself in white space."""
    schema = {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "integer"}}}
    for answer in answers(form(constraints, schema), range(12)):
        assert "  " not in answer.text
        assert not set(answer.text) & set("\n\r\t")


@pytest.mark.parametrize(
    ("bounds", "within", "outside"),
    [
        ({"exclusiveMaximum": 1}, ["0.999999999", "0.9", "-7"], ["1", "0.99999999999999999"]),
        ({"exclusiveMinimum": 0}, ["0.000000000000001", "0.5", "3"], ["0", "0.0", f"0.{'0' * 400}1"]),
        ({"exclusiveMaximum": 0}, ["-0.000000000000001", "-0.5"], ["0", "-0.0", f"-0.{'0' * 400}1"]),
        ({"exclusiveMinimum": -0.3, "maximum": 5}, ["-0.299999999", "5"], ["-0.3", "-0.2999999999999999999"]),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 90000000000}, ["0.5"], ["89999999999.99999999999"]),
        ({"exclusiveMaximum": 9007199254740991}, ["9007199254740990"], ["9007199254740991", "9007199254740990.9"]),
        ({"multipleOf": 0.5, "exclusiveMaximum": 4}, ["3.5"], ["4", "4.0"]),
    ],
)
def test_a_bound_that_excludes_itself_is_not_reached_by_rounding(constraints, bounds, within, outside):
    schema = {"type": "number", **bounds}
    made = form(constraints, {"type": "array", "items": schema})
    for text in within:
        assert Draft202012Validator(schema).is_valid(json.loads(text))
        assert takes(made.constraint(), f"[{text}]"), text
    for text in outside:
        assert not Draft202012Validator(schema).is_valid(json.loads(text))
        assert not takes(made.constraint(), f"[{text}]"), text


def test_a_pattern_means_what_it_means_in_python(constraints):
    """The narrower reading where ECMA-262 and Python differ: `\\d` is ASCII, `\\D` no digit of any script."""
    guided = form(constraints, {"type": "string", "pattern": "^\\d\\D$"}).constraint()
    assert takes(guided, '"1x"')
    for text in ('"1٣', '"٣', '"x', '"12'):
        assert not takes(form(constraints, {"type": "string", "pattern": "^\\d\\D$"}).constraint(), text), text


def takes(constraint, text):
    for token in TOKENIZER.encode(text, add_bos=False):
        mask = constraint.allowed()
        if not mask[token // 32] >> token % 32 & 1:
            return False
        constraint.accept(token)
    return True


@pytest.mark.parametrize(
    ("format", "good", "bad"),
    [
        ("date", ["2024-02-29", "2000-02-29", "1999-12-31"], ["2023-02-29", "1900-02-29", "0000-01-01", "2024-04-31"]),
        ("date-time", ["2024-02-29T23:59:59Z", "2024-01-01T00:00:00.123+02:00"], ["2024-01-01 ", "2024-01-01T24"]),
        ("ipv6", ["::", "::1", "2001:db8::ff00:42:8329", "1:2:3:4:5:6:7:8"], ["1:2:3:4:5:6:7:8:", ":1", "::1::"]),
        ("ipv4", ["0.0.0.0", "255.255.255.255"], ["256", "1.2.3.4."]),
        ("uri", ["https://example.com/a?b=c#d", "mailto:a@b.de", "http://[::1]:80/"], ["example.com/", "http://a b"]),
        ("email", ["a.b+c@example.com"], ["a@b@", "@", "a..b"]),
        ("uuid", ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567e"]),
    ],
)
def test_formats(constraints, format, good, bad):
    made = form(constraints, {"type": "string", "format": format})
    for text in good:
        assert takes(made.constraint(), json.dumps(text)), text
    for text in bad:
        assert not takes(made.constraint(), json.dumps(text)), text


def nested(depth, leaf):
    for _ in range(depth):
        leaf = {"type": "object", "properties": {"a": leaf}, "required": ["a"]}
    return leaf


HOSTILE = {
    "deep": nested(2_000, {"type": "integer"}),
    "deep value": {"const": json.loads("[" * 300 + "]" * 300)},
    "long enum": {"enum": [f"value {number}" for number in range(100_000)]},
    "long names": {"properties": {"x" * 600_000: True}},
    "many properties": {"type": "object", "properties": {f"p{number}": True for number in range(9_000)}},
    "many patterns at once": {
        "type": "string",
        "allOf": [{"pattern": f"^.*{char}.*$"} for char in "abcdefghijklmnopq"],
    },
    "product of alternatives": {
        "allOf": [
            {"anyOf": [{"required": [f"{one}{two}"], "properties": {f"{one}{two}": {"const": 1}}} for two in "abcdef"]}
            for one in "abcdefgh"
        ]
    },
    "reference in a circle": {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}},
    "circle with siblings": {
        "properties": {"a": {"$ref": "#"}},
        "allOf": [{"$ref": "#/$defs/x"}],
        "$defs": {"x": {"properties": {"a": {"$ref": "#"}}}},
    },
    "entangled": {
        "$ref": "#/$defs/d0",
        "$defs": {
            **{f"d{at}": {"$ref": f"#/$defs/d{at + 1 if at % 2 else (at + 2) % 3000}"} for at in range(3_000)},
            "d3000": {"$ref": "#/$defs/d1"},
        },
    },
    "large multiple": {"type": "integer", "multipleOf": 999_999_937},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_refused_in_time(constraints, name):
    begun = time.perf_counter()
    with pytest.raises(RequestError) as caught:
        form(constraints, HOSTILE[name])
    assert time.perf_counter() - begun < 5  # 0.5 s on a quiet machine
    assert caught.value.param == PARAM
    assert len(caught.value.message) < 2_000


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^(a+)+$"},
        {"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"},
        {"type": "string", "pattern": "^(a|b)*a(a|b){30}$"},
        {"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"},
        {"type": "array", "minItems": 100_000, "items": {"type": "array", "minItems": 100_000}},
        {"enum": [f"value {number}" for number in range(9_000)]},
        # a chain that llguidance follows by recursion: without a deep stack the process ends here
        {
            "$ref": "#/$defs/d0",
            "$defs": {
                **{
                    f"d{level}": {"type": "array", "items": {"$ref": f"#/$defs/d{level + 1}"}} for level in range(4_000)
                },
                "d4000": {"type": "null"},
            },
        },
        {
            "$ref": "#/$defs/d0",
            "$defs": {
                **{f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(30)},
                "d30": {"type": "null"},
            },
        },
    ],
    ids=lambda schema: str(schema)[:50],
)
def test_heavy_schemas_work_in_time(constraints, schema):
    begun = time.perf_counter()
    random_answer(form(constraints, schema).constraint(), TOKENIZER, n_vocab=N_VOCAB, seed=0, limit=60)
    assert time.perf_counter() - begun < 5


def test_a_grammar_is_compiled_once(constraints, monkeypatch):
    form(constraints, {"const": "only once"})
    monkeypatch.setattr(constraints._grammars, "_compiled", lambda lark: pytest.fail("compiled again"))
    form(constraints, {"const": "only once"}).constraint()


def test_choices_do_not_see_each_other(constraints):
    made = form(constraints, {"enum": ["ab", "cd"]})
    first, second = made.constraint(), made.constraint()
    assert takes(first, '"a')
    assert takes(second, '"cd"')
    assert takes(first, 'b"')
    assert first.complete
    assert second.complete
