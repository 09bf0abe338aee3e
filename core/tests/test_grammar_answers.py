"""Whole answers: reasoning first, then text, calls, JSON or a grammar; budgets of reasoning; tokens."""

import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hf2q.errors import Hf2qError, LoadError, RequestError
from hf2q.serve.chat.budget import ThinkingBudget
from hf2q.serve.chat.constraints import Constraints
from hf2q.serve.chat.query import ChatQuery, ResponseFormat, Tool, ToolChoice
from hf2q.serve.chat.reasoning import ReasoningSplitter
from hf2q.serve.chat.syntax import ToolSchema
from hf2q.serve.grammar.calls import closed, json_value, quoted, repeated
from hf2q.serve.grammar.compiled import STACK
from hf2q.serve.grammar.vocabulary import token_table
from hf2q.testing.random_answers import random_answer
from hf2q.testing.scripted import scripted_tokenizer

MARKERS = ("<think>", "</think>")
TOKENIZER = scripted_tokenizer()
N_VOCAB = TOKENIZER.n_vocab + 40
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
JSON = ResponseFormat(kind="json_schema", schema=SCHEMA)
TOOLS = (
    Tool(name="add", parameters={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
    Tool(name="stop", parameters={"type": "object", "properties": {}, "additionalProperties": False}),
)


class BracketCalls:
    """``<call>NAME{...}</call>``"""

    markers = ("<call>", "</call>")

    def grammar(self, tools, *, parallel):
        rules = [repeated("call_one", before="", close="</call>", again=("<call>",), parallel=parallel)]
        rules.append("call_one: " + " | ".join(f"call_{place}" for place in range(len(tools))))
        for place, tool in enumerate(tools):
            rules.append(f"call_{place}: {quoted(tool.name)} call_{place}_v")
            rules.append(f"call_{place}_v: {json_value(closed(tool.parameters), tool.parameters)}")
        return "\n".join(rules)


@pytest.fixture(scope="module")
def constraints():
    return Constraints(TOKENIZER, end_ids=TOKENIZER.eos_ids, n_vocab=N_VOCAB)


def form(constraints, *, markers=MARKERS, inside=False, **query):
    made = ChatQuery(messages=(), **query)
    name = made.choice.name
    tools = tuple(ToolSchema(tool.name, tool.parameters) for tool in made.tools if name in (None, tool.name))
    return constraints.form(made, markers=markers, inside=inside, syntax=BracketCalls(), tools=tools)


def takes(constraint, text, *, end=False):
    """How much of `text` is allowed; True for all of it and, where `end`, the end behind it."""
    said = 0
    for token in TOKENIZER.encode(text, add_bos=False):
        mask = constraint.allowed()
        if mask is not None and not mask[token // 32] >> token % 32 & 1:
            return text.encode()[:said].decode("utf-8", "replace")
        constraint.accept(token)
        said += len(TOKENIZER.token_bytes(token))
    if end and not constraint.complete:
        mask = constraint.allowed()
        return any(mask[token // 32] >> token % 32 & 1 for token in TOKENIZER.eos_ids)
    return True


def answers(form, seeds=range(10), **settings):
    return [random_answer(form.constraint(), TOKENIZER, n_vocab=N_VOCAB, seed=seed, **settings) for seed in seeds]


# ------------------------------------------------------------------------------------------------------------ reasoning


def test_free_answers_have_no_form(constraints):
    assert form(constraints) is None
    assert form(constraints, effort="high") is None
    assert form(constraints, tools=TOOLS, choice=ToolChoice(mode="none")) is None
    assert form(constraints, markers=None, thinking_budget=3) is None, "nothing to close"


def test_the_form_begins_behind_the_reasoning(constraints):
    made = form(constraints, inside=True, format=JSON)
    assert takes(made.constraint(), 'so {"b": 2} <call>\n</think>\n\n{"a": 1}', end=True) is True
    assert takes(made.constraint(), 'so</think>{"a": 1}', end=True) is True
    assert takes(made.constraint(), 'so</think>\n{"b') == 'so</think>\n{"'
    assert takes(made.constraint(), "so", end=True) is False, "reasoning is no answer"
    assert takes(made.constraint(), '{"a": 1}', end=True) is False


def test_reasoning_may_come_first(constraints):
    made = form(constraints, format=JSON)
    assert takes(made.constraint(), '{"a": 1}', end=True) is True
    assert takes(made.constraint(), '<think>\nso\n</think>\n\n{"a": 1}', end=True) is True
    assert takes(made.constraint(), "well") == ""
    assert takes(made.constraint(), "<think>a</think><think>") == "<think>a</think>"


def test_a_model_without_reasoning_begins_at_once(constraints):
    made = form(constraints, markers=None, format=JSON)
    assert takes(made.constraint(), "<think>") == ""
    assert takes(made.constraint(), '{"a": 1}', end=True) is True


@pytest.mark.parametrize("inside", [True, False])
def test_random_answers_hold_the_form(constraints, inside):
    for answer in answers(form(constraints, inside=inside, format=JSON)):
        parts = ReasoningSplitter(MARKERS, inside=inside)
        content = parts.feed(answer.text).content + parts.finish().content
        if answer.finished:
            assert set(json.loads(content)) == {"a"}


def test_budget_closes_reasoning(constraints):
    """After so many tokens the marker comes, whatever the model wants; then the form begins."""
    made = form(constraints, inside=True, format=JSON, thinking_budget=7)
    for answer in answers(made, goals=()):
        # up to 3 more finish a character, and a line break stands before the marker
        assert answer.tokens.index(TOKENIZER.id_of("</think>")) <= 7 + 4 or "</think>" in answer.text[:20]
        assert '{"a":' in answer.text
    free = form(constraints, inside=True, thinking_budget=7)
    for answer in answers(free, goals=(), limit=30, ending=-1e9):
        assert "</think>" in answer.text


def test_the_marker_has_a_line_of_its_own():
    def closing(text, newline=True):
        budget = ThinkingBudget(
            None, budget=len(text), markers=MARKERS, inside=True, tokenizer=TOKENIZER, n_vocab=N_VOCAB, newline=newline
        )
        said = []
        for token in TOKENIZER.encode(text, add_bos=False):
            assert budget.allowed() is None
            budget.accept(token)
        while (mask := budget.allowed()) is not None:
            (token,) = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            said.append(int(token))
            budget.accept(int(token))
        assert not budget.complete
        return TOKENIZER.decode(said)

    assert closing("abc") == "\n</think>"
    assert closing("abc\n") == "</think>"
    assert closing("abc", newline=False) == "</think>"
    assert closing("ab</thi") == "\n</think>"


def test_markers_do_not_count():
    budget = ThinkingBudget(None, budget=2, markers=MARKERS, inside=False, tokenizer=TOKENIZER, n_vocab=N_VOCAB)
    for token in TOKENIZER.encode("\n<think>ab", add_bos=False):
        assert budget.allowed() is None
        budget.accept(token)
    assert budget.allowed() is not None


def test_a_character_is_finished_first(constraints):
    """Closing in the middle of one would leave a text that is no UTF-8, which no form allows."""
    constraint = form(constraints, inside=True, format=JSON, thinking_budget=3).constraint()
    for byte in "é東".encode()[:3]:
        constraint.accept(byte_token(byte))
    assert mask_size(constraint) > 1
    for byte in "東".encode()[1:]:
        constraint.accept(byte_token(byte))
    assert mask_size(constraint) == 1


def byte_token(byte):
    return next(token for token in range(TOKENIZER.n_vocab) if TOKENIZER.token_bytes(token) == bytes([byte]))


def mask_size(constraint):
    return int(np.unpackbits(constraint.allowed().view(np.uint8)).sum())


@pytest.mark.parametrize("query", [{"thinking_budget": 0}, {"effort": "none"}])
def test_no_budget_is_no_reasoning(constraints, query):
    opened = form(constraints, inside=True, format=JSON, **query)
    assert takes(opened.constraint(), '\n</think>{"a": 1}', end=True) is True
    assert takes(opened.constraint(), "so") == ""
    closed_ = form(constraints, inside=False, format=JSON, **query)
    assert takes(closed_.constraint(), "<think>") == ""
    assert takes(closed_.constraint(), '{"a": 1}', end=True) is True
    for answer in answers(form(constraints, **query), ending=-1e9, limit=40, goals=("<think>abc",)):
        parts = ReasoningSplitter(MARKERS, inside=False)
        assert parts.feed(answer.text).reasoning + parts.finish().reasoning == ""


# ---------------------------------------------------------------------------------------------------------------- calls


def test_auto_is_text_until_a_call_opens(constraints):
    made = form(constraints, tools=TOOLS)
    for text in ("", "Just text.", 'text and <call>add{"a": 1}</call>', '<call>stop{}</call><call>add{"a":2}</call>'):
        assert takes(made.constraint(), text, end=True) is True, text
    for text in ("<think>hm <call>no\n</think>\n\nText <call>stop{}</call>", "< call> <ca"):
        assert takes(made.constraint(), text, end=True) is True, text
    assert takes(made.constraint(), "text <call>sub{") == "text <call>s"
    assert takes(made.constraint(), 'x<call>add{"a": "') == 'x<call>add{"a": '
    assert takes(made.constraint(), "<call>stop{}</call> more") == "<call>stop{}</call>"
    assert takes(made.constraint(), "<call>stop{}", end=True) is False


def test_one_call_where_they_are_not_parallel(constraints):
    made = form(constraints, tools=TOOLS, parallel=False)
    constraint = made.constraint()
    assert takes(constraint, "ok <call>stop{}</call>") is True
    assert constraint.complete


def test_required_and_named(constraints):
    required = form(constraints, tools=TOOLS, choice=ToolChoice(mode="required"))
    assert takes(required.constraint(), "Text") == ""
    assert takes(required.constraint(), "<think>x</think>\n<call>stop{}</call>", end=True) is True
    named = form(constraints, tools=TOOLS, choice=ToolChoice(mode="required", name="add"))
    assert takes(named.constraint(), "<call>stop") == "<call>"
    for answer in answers(named, markers := range(20), goals=("1}</call>", "</think>")):
        if answer.finished:
            text = answer.text.rpartition("</think>")[2].strip()
            for body in re.findall("<call>add(.*?)</call>", text):
                assert list(json.loads(body)) == ["a"]
            assert text.startswith("<call>")
    assert markers


def test_calls_or_json(constraints):
    """Both are given: an answer is either."""
    made = form(constraints, tools=TOOLS, format=JSON)
    assert takes(made.constraint(), '{"a": 1}', end=True) is True
    assert takes(made.constraint(), "<call>stop{}</call>", end=True) is True
    assert takes(made.constraint(), "Text") == ""
    required = form(constraints, tools=TOOLS, format=JSON, choice=ToolChoice(mode="required"))
    assert takes(required.constraint(), "{") == ""


@pytest.mark.parametrize(
    ("parameters", "path", "says"),
    [
        ({"type": "object", "properties": {"x": {"not": {}}}}, "/properties/x/not", "not supported"),
        ({"type": "string"}, "/type", "expected object"),
        (
            {"type": "object", "properties": {"x": {"const": 2, "maximum": 1}}, "required": ["x"]},
            "/properties/x",
            "Unsat",
        ),
        ({"type": "object", "properties": {"x": {"$ref": "#/$defs/no"}}}, "/properties/x/$ref", "same document"),
    ],
)
@pytest.mark.parametrize("mode", ["auto", "required"])
def test_the_tool_at_fault_is_named(constraints, parameters, path, says, mode):
    tools = (*TOOLS, Tool(name="odd", parameters=parameters))
    with pytest.raises(RequestError) as caught:
        form(constraints, tools=tools, choice=ToolChoice(mode=mode))
    assert caught.value.param == "tools[2].function.parameters"
    assert path in caught.value.message
    assert says in caught.value.message
    assert "'odd'" in caught.value.message
    form(constraints, tools=tools, choice=ToolChoice(mode="required", name="add"))  # the odd one is not in play


def test_tools_need_a_syntax(constraints):
    with pytest.raises(RequestError, match="tools cannot be used"):
        constraints.form(
            ChatQuery(messages=(), tools=TOOLS),
            markers=None,
            inside=False,
            syntax=None,
            tools=(ToolSchema("add", TOOLS[0].parameters),),
        )


# ------------------------------------------------------------------------------------------------------------- grammars


def test_a_grammar(constraints):
    asked = ResponseFormat(kind="grammar", grammar='start: "yes" | "no" WORD\nWORD: /[a-z]{1,3}/')
    made = form(constraints, format=asked, inside=True)
    assert takes(made.constraint(), "hm</think>\nnoabc", end=True) is True
    assert takes(made.constraint(), "hm</think>\nmaybe") == "hm</think>\n"
    plain = form(constraints, format=asked, markers=None)
    assert takes(plain.constraint(), "yes", end=True) is True
    assert takes(form(constraints, format=asked).constraint(), "<think>x</think>yes", end=True) is True
    assert takes(form(constraints, format=asked).constraint(), "yes", end=True) is True


RULES = "start: r0\n" + "\n".join(f'r{number}: "a" r{number + 1} | "b"' for number in range(1_200)) + '\nr1200: "c"'


def test_a_chain_of_rules(constraints):
    """Followed by recursion: as long as a request may send one, it must not overflow the stack."""
    made = form(constraints, format=ResponseFormat(kind="grammar", grammar=RULES), markers=None)
    assert takes(made.constraint(), "aab", end=True) is True
    with pytest.raises(RequestError, match="characters"):
        form(constraints, format=ResponseFormat(kind="grammar", grammar=RULES * 2))


def test_each_of_several_at_once_has_a_deep_stack(constraints, monkeypatch):
    start, sizes = threading.Thread.start, []

    def slow(thread):
        if thread.name == "hf2q-grammar":
            time.sleep(0.002)
            sizes.append(threading.stack_size())
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", slow)
    formats = [ResponseFormat(kind="grammar", grammar=f'start: "{number}"') for number in range(12)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda format: form(constraints, format=format, markers=None), formats))
    assert sizes == [STACK] * 12
    assert threading.stack_size() == 0


@pytest.mark.parametrize("text", ["", "start: unknown", "start: start", "start: /(?=a)/", 'begin: "x"', "start: ("])
def test_a_grammar_that_is_none(constraints, text):
    """Or that nothing satisfies; reasoning that may come first does not hide it."""
    with pytest.raises(RequestError) as caught:
        form(constraints, format=ResponseFormat(kind="grammar", grammar=text))
    assert caught.value.param == "grammar"


def test_a_grammar_that_nothing_satisfies_is_said_to_be_so(constraints):
    with pytest.raises(RequestError, match="cannot be used: nothing can satisfy it"):
        form(constraints, format=ResponseFormat(kind="grammar", grammar="start: start"))


def test_a_grammar_excludes_tools(constraints):
    with pytest.raises(RequestError, match="exclude each other"):
        form(constraints, tools=TOOLS, format=ResponseFormat(kind="grammar", grammar='start: "x"'))


# --------------------------------------------------------------------------------------------------------------- tokens


def test_a_token_that_was_not_allowed_is_an_error(constraints):
    constraint = form(constraints, markers=None, format=JSON).constraint()
    with pytest.raises(Hf2qError):
        constraint.accept(TOKENIZER.encode("x")[0])


def test_padding_and_control_tokens_are_never_allowed():
    table = token_table(TOKENIZER, n_vocab=N_VOCAB, end_ids=TOKENIZER.eos_ids)
    assert table.vocab_size == N_VOCAB
    for token in TOKENIZER.special_ids:
        assert table.is_special_token(token)
    marks = Constraints(TOKENIZER, end_ids=TOKENIZER.eos_ids, n_vocab=N_VOCAB)
    constraint = form(
        marks, format=ResponseFormat(kind="grammar", grammar="start: /(?s:.*)/"), markers=None
    ).constraint()
    bits = np.unpackbits(constraint.allowed().view(np.uint8), bitorder="little")
    assert not bits[TOKENIZER.n_vocab :].any()
    hidden = [token for token in TOKENIZER.special_ids if token not in TOKENIZER.eos_ids]
    assert not bits[hidden].any()
    assert bits[sorted(TOKENIZER.eos_ids)].all()


def test_visible_control_tokens_are_text():
    """A file may mark the family's markers as control tokens; a grammar that names them means those."""
    start = TOKENIZER.id_of("<|im_start|>")
    for visible, wanted in (((), False), (("<|im_start|>",), True)):
        made = Constraints(TOKENIZER, end_ids=TOKENIZER.eos_ids, n_vocab=N_VOCAB, visible=visible)
        asked = ResponseFormat(kind="grammar", grammar='start: "<|im_start|>" "x"')
        mask = form(made, format=asked, markers=None).constraint().allowed()
        assert bool(mask[start // 32] >> start % 32 & 1) is wanted


def test_a_text_that_must_come_is_written_as_the_model_would(constraints):
    """`` t`` is one token: where nothing else can come, its two halves are not allowed."""
    asked = ResponseFormat(kind="grammar", grammar='start: "a t"')
    constraint = form(constraints, format=asked, markers=None).constraint()
    constraint.accept(TOKENIZER.encode("a")[0])
    bits = np.unpackbits(constraint.allowed().view(np.uint8), bitorder="little")
    assert list(np.flatnonzero(bits)) == TOKENIZER.encode(" t", add_bos=False)


def test_without_an_end_nothing_can_be_held_to_a_form():
    with pytest.raises(LoadError, match="ends a generation"):
        Constraints(TOKENIZER, end_ids=(), n_vocab=N_VOCAB).warm()
