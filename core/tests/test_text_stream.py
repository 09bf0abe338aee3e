"""Stop strings: found across tokens, never leaked, and the same however the text is cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf2q.serve.text import StopMatcher, TextStream
from hf2q.testing.scripted import scripted_tokenizer


def collect(pieces, stop):
    matcher = StopMatcher(stop)
    out = [matcher.push(piece) for piece in pieces]
    return out, matcher.flush(), matcher.stopped


def test_text_passes_at_once_when_nothing_could_be_a_stop():
    assert collect(["abc", "def"], ["xyz"]) == (["abc", "def"], "", False)
    assert collect(["abc", ""], []) == (["abc", ""], "", False)


def test_what_may_become_a_stop_is_held_back():
    assert collect(["one ST", "OP two"], ["STOP"]) == (["one ", ""], "", True)
    assert collect(["one ST", "ART"], ["STOP"]) == (["one ", "START"], "", False)
    assert collect(["one ST"], ["STOP"]) == (["one "], "ST", False)


def test_nothing_comes_after_a_stop():
    assert collect(["aXb", "c"], ["X"]) == (["a", ""], "", True)


@pytest.mark.parametrize(
    ("stop", "text", "wanted"),
    [
        (["b", "ab"], "xab", "x"),  # both end together: the longer
        (["bcd", "c"], "abcd", "ab"),  # the one complete first, not the one that begins first
        (["aab"], "aaab", "a"),  # a false start inside the held text
        (["\n\n"], "a\n\nb", "a"),
        (["é", "日本"], "日本é", ""),
        (["abab"], "ababab", ""),
    ],
)
def test_which_stop_wins(stop, text, wanted):
    for pieces in ([text], list(text)):
        out, rest, stopped = collect(pieces, stop)
        assert ("".join(out) + rest, stopped) == (wanted, True)


TEXT = st.text(alphabet="ab\n", max_size=30)
STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), max_size=4)


@given(TEXT, STOPS, st.lists(st.integers(0, 30), max_size=8))
def test_the_result_does_not_depend_on_the_cuts(text, stop, cuts):
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    streamed, whole = collect(pieces, stop), collect([text], stop)
    assert ("".join(streamed[0]) + streamed[1], streamed[2]) == ("".join(whole[0]) + whole[1], whole[2])
    # and it is the definition: cut where the first stop string is complete
    ends = [(text.find(s) + len(s), text.find(s)) for s in stop if s in text]
    assert "".join(whole[0]) + whole[1] == (text[: min(ends)[1]] if ends else text)


@given(TEXT, STOPS)
def test_no_stop_string_ever_appears_in_what_was_given_out(text, stop):
    matcher, out, seen = StopMatcher(stop), "", ""
    beginnings = {s[:length] for s in stop for length in range(1, len(s))}
    for character in text:
        seen += character
        out += matcher.push(character)
        assert not any(s in out for s in stop)
        if not matcher.stopped:  # nor any of a beginning that coming text could complete
            assert all(len(out) <= len(seen) - len(b) for b in beginnings if seen.endswith(b))


@given(st.text(max_size=12), STOPS)
def test_tokens_and_characters_that_cross(text, stop):
    """Over byte tokens: characters arrive whole, and streaming equals deciding at the end."""
    tokenizer = scripted_tokenizer()
    ids = tokenizer.encode(text, special=False)
    stream = TextStream(tokenizer.stream(skip_special=True), stop)
    pieces = [stream.push(token) for token in ids]
    joined = "".join(pieces) + stream.flush()
    assert joined == "".join(collect([text], stop)[0]) + collect([text], stop)[1]
    assert "\ufffd" not in joined or "\ufffd" in text


def test_an_unfinished_character_comes_out_as_one_replacement():
    tokenizer = scripted_tokenizer()
    stream = TextStream(tokenizer.stream(), ["zz"])
    first, *_ = tokenizer.encode("é")
    assert stream.push(first) == ""
    assert stream.flush() == "\ufffd"
