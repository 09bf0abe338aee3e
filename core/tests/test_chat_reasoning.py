"""Reasoning is split from content, however the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf2q.serve.chat import Delta, ReasoningSplitter

MARKERS = ("<think>", "</think>")


def split(pieces, *, inside=False, markers=MARKERS):
    splitter = ReasoningSplitter(markers, inside=inside)
    deltas = [*map(splitter.feed, pieces), splitter.finish()]
    return Delta("".join(d.reasoning for d in deltas), "".join(d.content for d in deltas))


@pytest.mark.parametrize(
    ("text", "inside", "reasoning", "content"),
    [
        ("plain answer", False, "", "plain answer"),
        (" leading space stays", False, "", " leading space stays"),
        ("", False, "", ""),
        (" \n", False, "", " \n"),
        ("<think>why</think>answer", False, "why", "answer"),
        ("\n<think>\nwhy\n\nso\n</think>\n\nanswer\n", False, "why\n\nso", "answer\n"),
        ("<think>\n\n</think>\n\nanswer", False, "", "answer"),
        ("why\n</think>\n\nanswer", True, "why", "answer"),
        ("</think>answer", True, "", "answer"),
        ("cut off in the mid", True, "cut off in the mid", ""),
        ("cut off </thi", True, "cut off </thi", ""),
        ("why</think>", True, "why", ""),
        ("why</think> \n", True, "why", ""),
        ("a < b </ c </thin d</think>e", True, "a < b </ c </thin d", "e"),
        ("a</think>b</think>c<think>d", True, "a", "b</think>c<think>d"),
        ("write <think> and </think> around it", False, "", "write <think> and </think> around it"),
        ("<thin ice", False, "", "<thin ice"),
        ("<thi", False, "", "<thi"),
        ("<think>", False, "", ""),
        ("x</think", True, "x</think", ""),
    ],
)
def test_split(text, inside, reasoning, content):
    assert split([text], inside=inside) == (reasoning, content)
    assert split(list(text), inside=inside) == (reasoning, content)


def test_model_without_reasoning():
    assert split(["<think>", "x", "</think>"], markers=None) == ("", "<think>x</think>")


ALPHABET = st.sampled_from(["<think>", "</think>", "<", "/", "think", ">", " ", "\n", "a", "é", "<th", "</thi"])


@given(st.lists(ALPHABET, max_size=12).map("".join), st.booleans(), st.data())
def test_cuts_do_not_matter(text, inside, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = split([text], inside=inside)
    assert split(pieces, inside=inside) == whole
    # nothing but one pair of markers and white space beside them is lost
    assert squeezed(whole.reasoning + whole.content) in {
        squeezed(text.replace(first, "", 1).replace(last, "", 1))
        for first in (MARKERS[0], "")
        for last in (MARKERS[1], "")
    }


def squeezed(text):
    return "".join(text.split())


@given(st.lists(ALPHABET, max_size=12))
def test_text_is_not_held_longer_than_a_marker(pieces):
    splitter = ReasoningSplitter(MARKERS, inside=True)
    for piece in pieces:
        splitter.feed(piece)
        assert len(splitter._held.strip()) < len(MARKERS[1])


def test_says_where_it_is():
    splitter = ReasoningSplitter(MARKERS, inside=False)
    assert not splitter.reasoning
    splitter.feed("<think>a")
    assert splitter.reasoning
    splitter.feed("</think>")
    assert not splitter.reasoning
