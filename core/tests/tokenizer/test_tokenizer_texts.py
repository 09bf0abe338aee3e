"""Texts and merges kept in one piece are the sequences they stand for, whether they come from a file or from lists."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hf2q.errors import FormatError, LoadError
from hf2q.formats.gguf.cursor import Cursor
from hf2q.formats.gguf.metadata import read_metadata
from hf2q.formats.tokenizer import load_tokenizer
from hf2q.formats.tokenizer.merges import Merges, read_merges
from hf2q.formats.tokenizer.metadata import check_metadata
from hf2q.formats.tokenizer.texts import joined_texts, texts_of
from hf2q.types import PreTokenizer, ValueType

STRING, INT32, FLOAT32 = ValueType.STRING, ValueType.INT32, ValueType.FLOAT32
any_text = (
    st.text(max_size=5) | st.text(st.characters(exclude_categories=()), max_size=3) | st.text("a\0\1\n é", max_size=4)
)
any_texts = st.lists(any_text, min_size=1, max_size=30)


def string(raw):
    return struct.pack("<Q", len(raw)) + raw


def file_of(values, elements=()):
    """A dict as the metadata of a file; `elements` holds the types of arrays that are not of texts or whole numbers."""
    raw = b""
    for key, value in values.items():
        raw += string(key.encode())
        if isinstance(value, str):
            raw += struct.pack("<i", STRING) + string(value.encode())
            continue
        texts = [text.encode() if isinstance(text, str) else text for text in value]
        kind = dict(elements).get(key, INT32 if texts and type(texts[0]) is int else STRING)
        form = {INT32: "i", FLOAT32: "f"}.get(kind)
        raw += struct.pack("<iiQ", ValueType.ARRAY, kind, len(texts))
        raw += b"".join(map(string, texts)) if form is None else struct.pack(f"<{len(texts)}{form}", *texts)
    return read_metadata(Cursor(raw, len(raw), "f"), len(values))


@given(any_texts, st.sampled_from([1, 100]), st.data())
@example(["\1", "\ud800", ""], 1000, None)
def test_texts_are_the_sequence_they_came_from(values, times, data):
    values = values * times
    texts = texts_of(values)
    assert (len(texts), list(texts)) == (len(values), values)
    assert [texts[number] for number in range(-len(values), len(values))] == values * 2
    assert texts[1::2] == values[1::2]
    for beyond in (len(values), -len(values) - 1):
        with pytest.raises(IndexError):
            texts[beyond]
    chosen = bytes(len(values)) if data is None else data.draw(st.binary(min_size=len(values), max_size=len(values)))
    assert texts.ids(chosen) == {text: number for number, text in enumerate(values) if chosen[number]}


@given(st.lists(st.binary(max_size=4) | st.text(max_size=3).map(str.encode), min_size=1, max_size=20))
@example([b"\1", b"a"])
@example([b"\xed\xa0\x80"])  # a surrogate, which no UTF-8 holds
@example([b"\xc3", b"\xa9"])  # a character in two parts
@example([b"\1", b"\xff"])
def test_texts_of_a_file_are_those_that_are_utf8(parts):
    found = joined_texts(lambda mark: mark.join(parts), len(parts))
    try:
        expected = [part.decode() for part in parts]
    except UnicodeDecodeError:
        assert found is None
    else:
        assert list(found) == expected


part = st.text(st.characters(exclude_categories=("Cs",), exclude_characters=" \n"), max_size=4)


@given(st.lists(st.tuples(part, part), min_size=1), st.sampled_from([1, 5000]))
def test_merges_are_the_pairs_of_the_lines(pairs, times):
    pairs = pairs * times
    merges = read_merges("\n".join(map(" ".join, pairs)).encode(), len(pairs))
    assert (len(merges), list(merges), merges[-1]) == (len(pairs), pairs, pairs[-1])


@pytest.mark.parametrize(
    ("lines", "count"),
    [
        (b"", 0),
        (b"", 1),
        (b"a", 1),
        (b"a b c", 1),
        (b"a b\nc", 2),
        (b"a b c\nd", 2),
        (b"a\nb c", 1),
        (b"a b\nc d", 1),
        (b"a b\nc d", 3),
        (b"a \xff", 1),
        (b"\xc3 \xa9", 1),
    ],
)
def test_lines_that_are_no_merges(lines, count):
    assert read_merges(lines, count) is None


LETTERS = [chr(code) for code in range(ord("!"), ord("~") + 1)]


def given_metadata(**changes):
    values = {
        "model": "gpt2",
        "pre": "any",
        "tokens": [*LETTERS, "Ġ", "th", "the", "<|end|>", "[PAD]"],
        "token_type": [1] * len(LETTERS) + [1, 1, 1, 3, 5],
        "merges": ["t h", "th e"],
    }
    return {f"tokenizer.ggml.{key}": value for key, value in {**values, **changes}.items()}


def test_a_tokenizer_of_a_file_is_that_of_its_values():
    pytest.importorskip("tokenizers")
    pre = PreTokenizer(name="any", split=(r"\p{L}+| ",))
    values = given_metadata()
    tokenizers = [load_tokenizer(metadata, [pre]) for metadata in (values, file_of(values))]
    for text in ("the other thing", "<|end|>the", "~!"):
        ours, theirs = (tokenizer.encode(text) for tokenizer in tokenizers)
        assert ours == theirs
        assert [tokenizer.decode(ours) for tokenizer in tokenizers] == [text] * 2
    data = check_metadata(file_of(values))
    assert isinstance(data.merges, Merges)
    assert list(data.merges) == [("t", "h"), ("th", "e")]
    assert (list(data.tokens), list(data.types)) == tuple(
        list(values[f"tokenizer.ggml.{key}"]) for key in ("tokens", "token_type")
    )


@pytest.mark.parametrize(
    ("changes", "elements", "message"),
    [
        ({"tokens": []}, (), "tokens is empty"),
        ({"tokens": "text"}, (), "tokens is str, expected an array"),
        ({"tokens": [1, 2]}, (), "tokens holds int, expected str only"),
        ({"token_type": [1, 2]}, (), "token_type has 2 entries"),
        ({"token_type": ["1", "2"]}, (), "token_type holds str, expected int only"),
        (
            {"token_type": [1.0, 2.0]},
            {"tokenizer.ggml.token_type": FLOAT32},
            "token_type holds float, expected int only",
        ),
        ({"token_type": [1] * 98 + [7]}, (), "token_type has the value 7"),
        ({"token_type": [1] * 98 + [-1]}, (), "token_type has the value -1"),
        ({"merges": []}, (), "merges is empty"),
        ({"merges": [1]}, (), "merges holds int, expected str only"),
        ({"merges": ["t h", "the"]}, (), r"merges\[1\] is 'the', expected two texts and a space"),
        ({"merges": ["t h", "t h e", ""]}, (), r"merges\[1\] is 't h e', expected two texts and a space"),
    ],
)
def test_a_file_is_refused_as_its_values_are(changes, elements, message):
    values = given_metadata(**changes)
    for metadata in (values, file_of(values, elements)):
        with pytest.raises(LoadError, match=message):
            check_metadata(metadata)


@pytest.mark.parametrize("key", ["tokens", "merges"])
def test_a_file_whose_text_is_not_utf8_is_refused_with_the_place(key):
    values = given_metadata()
    values[f"tokenizer.ggml.{key}"][1] = b"\xff"
    with pytest.raises(FormatError, match=rf"f, byte \d+: element 1 of 'tokenizer\.ggml\.{key}' is not UTF-8"):
        check_metadata(file_of(values))


def test_merges_may_hold_a_line_break():
    values = given_metadata(merges=["t h", "\n e"])
    assert list(check_metadata(file_of(values)).merges) == [("t", "h"), ("\n", "e")]
