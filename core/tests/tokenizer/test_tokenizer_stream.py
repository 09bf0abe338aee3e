"""Streaming: pieces together are the whole, and no piece holds a part of a character."""

from hypothesis import given
from hypothesis import strategies as st

from hf2q.formats.tokenizer import StreamDecoder
from hf2q.formats.tokenizer.alphabet import CHAR_OF_BYTE, token_bytes

PIECES = st.lists(
    st.one_of(
        st.binary(max_size=5),
        st.text(max_size=3).map(str.encode),
        st.tuples(st.text(min_size=1, max_size=2).map(str.encode), st.integers(0, 7)).map(lambda cut: cut[0][: cut[1]]),
    ),
    max_size=12,
)


def stream(pieces, skipped=frozenset()):
    return StreamDecoder(pieces.__getitem__, skipped)


@given(PIECES)
def test_together_they_are_the_whole(pieces):
    decoder = stream(pieces)
    parts = [decoder.push(number) for number in range(len(pieces))]
    assert "".join([*parts, decoder.flush()]) == b"".join(pieces).decode("utf-8", "replace")


@given(st.text(max_size=20), st.data())
def test_valid_text_is_never_damaged(text, data):
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=10)))
    pieces = [raw[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    decoder = stream(pieces)
    seen = ""
    for number in range(len(pieces)):
        seen += decoder.push(number)
        assert text.startswith(seen)
        assert len(b"".join(pieces[: number + 1])) - len(seen.encode()) < 4
    assert decoder.flush() == ""
    assert seen == text


def test_a_character_in_four_tokens():
    decoder = stream([bytes([byte]) for byte in "\U0001f600".encode()])
    assert [decoder.push(number) for number in range(4)] == ["", "", "", "\U0001f600"]


def test_an_unfinished_character_is_replaced_at_the_end_and_the_decoder_starts_anew():
    decoder = stream([b"a\xf0\x9f", b"b"])
    assert decoder.push(0) == "a"
    assert decoder.flush() == "\ufffd"
    assert decoder.push(1) == "b"
    assert decoder.flush() == ""


def test_an_unfinished_character_is_replaced_once_it_cannot_be_finished():
    decoder = stream([b"\xe2\x82", b"<|end|>"])
    assert [decoder.push(0), decoder.push(1)] == ["", "\ufffd<|end|>"]


def test_skipped_tokens_give_nothing():
    decoder = stream([b"a", b"<|end|>", b"b"], frozenset({1}))
    assert [decoder.push(number) for number in range(3)] == ["a", "", "b"]


@given(st.binary(max_size=20))
def test_the_alphabet_round_trips_bytes(raw):
    assert token_bytes("".join(CHAR_OF_BYTE[byte] for byte in raw)) == raw


def test_text_outside_the_alphabet_stands_for_itself():
    assert token_bytes("a\u0120\u4e00") == "a\u0120\u4e00".encode()
