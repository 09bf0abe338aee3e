"""Arrays of strings: what is found by guessing is what a plain loop finds, to the last byte of every message."""

import struct
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hf2q.errors import FormatError
from hf2q.formats.gguf import strings
from hf2q.formats.gguf.cursor import Cursor, IncompleteHeaderError
from hf2q.formats.gguf.metadata import read_metadata
from hf2q.types import ValueType

KEY = "toy.texts"
MANY = strings._MANY
assert np.__name__ in sys.modules  # without it, nothing is guessed


def encoded(texts):
    return b"".join(struct.pack("<Q", len(text)) + text for text in texts)


def header(texts, count=None):
    """One key, with an array; what follows looks like more strings."""
    key = KEY.encode()
    head = (
        struct.pack("<Q", len(key)) + key + struct.pack("<iiQ", ValueType.ARRAY, ValueType.STRING, count or len(texts))
    )
    return head + encoded(texts), len(head)


def plain_skip(cursor, label, count):
    """The oracle: one string after the other."""
    for index in range(count):
        length = cursor.u64(f"the length of element {index} of {label}")
        cursor.need(length, f"element {index} of {label}")
        cursor.position += length


def plain_read(raw, position, count):
    """The texts, or the message of the error."""
    found = []
    for index in range(count):
        (length,) = struct.unpack_from("<Q", raw, position)
        position += 8
        try:
            found.append(raw[position : position + length].decode())
        except UnicodeDecodeError as error:
            return f"f, byte {position + error.start}: element {index} of {KEY!r} is not UTF-8: {error.reason}"
        position += length
    return tuple(found)


def outcome(call, *arguments):
    try:
        return call(*arguments)
    except FormatError as error:
        return type(error), str(error)


texts_alike = st.one_of(
    st.text(max_size=12),
    st.text("ab\0\1\n\xff\u2581\U0001f600", max_size=6),
    st.integers(0, 12).map(lambda zeros: "\0" * zeros),
    st.sampled_from([0, 1, 8, 127, 128, 254, 255, 256, 257, 258, 511, 512, 65535, 65536, 65537]).map("x".__mul__),
    st.sampled_from(["", "é" * 127, "é" * 128, "\U0001f600" * 64]),
)


@st.composite
def arrays(draw):
    """More than `_MANY` texts: a few that are odd between runs, long and short, of ordinary ones."""
    ordinary = draw(st.lists(st.text("abcĠ日", min_size=1, max_size=9), min_size=1, max_size=5))
    texts = []
    for odd in draw(st.lists(st.lists(texts_alike, max_size=4), min_size=1, max_size=6)):
        run = draw(st.sampled_from([0, 1, 15, 16, 17, 511, 512, 513, 700]))
        texts += (ordinary * run)[:run] + odd
    return [text.encode() for text in texts + (ordinary * MANY)[: max(0, MANY - len(texts))]]


slow = settings(deadline=None, suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow])


@pytest.fixture(params=["guessing", "one by one"])
def way(request, monkeypatch):
    if request.param == "one by one":
        monkeypatch.setattr(strings, "_MANY", 1 << 62)
    return request.param


@slow
@given(arrays(), st.sampled_from([b"\1", b"\n", b"\xff"]))
@example([b""] * 2000, b"\n")
@example([b"\1"] * 2000, b"\1")
@example([b"\0" * 5] * 2000, b"\1")
@example([b"x" * 255] * 2000, b"\1")
@example([b"x" * 256] * 2000, b"\1")
def test_reading_gives_every_text(texts, separator):
    raw, start = header(texts)
    metadata = read_metadata(Cursor(raw + encoded([b"after"] * 99), len(raw) + 99 * 13, "f"), 1)
    assert metadata[KEY] == plain_read(raw, start, len(texts))
    assert metadata.joined(KEY, separator) == separator.join(texts)
    assert metadata.length_of(KEY) == len(texts)
    for count in (0, 1, MANY, len(texts) - 1):
        assert metadata.head(KEY, count) == metadata[KEY][:count]


@slow
@given(arrays(), st.data())
def test_data_that_ends_too_early_is_refused_as_by_a_plain_loop(texts, data):
    raw, start = header(texts)
    cut = data.draw(st.integers(start, len(raw)) | st.integers(max(start, len(raw) - 300), len(raw)))
    size = data.draw(st.sampled_from([cut, len(raw)]))  # the rest is missing, or only not here
    ours, theirs = (Cursor(raw[:cut], size, "f", cut) for _ in range(2))
    ours.position = theirs.position = start
    found = outcome(strings.skip_strings, ours, "'toy'", len(texts))
    assert found == outcome(plain_skip, theirs, "'toy'", len(texts))
    if found is None:
        assert ours.position == theirs.position == len(raw)
    else:
        assert found[0] is (FormatError if size == cut else IncompleteHeaderError)


@slow
@given(arrays(), st.data())
def test_a_length_that_lies_is_refused_as_by_a_plain_loop(texts, data):
    at = data.draw(st.integers(0, len(texts) - 1))
    lie = data.draw(st.integers(0, 600) | st.sampled_from([1 << 16, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1]))
    raw = encoded(texts[:at]) + struct.pack("<Q", lie) + encoded(texts[at:])[8:]
    ours, theirs = (Cursor(raw, len(raw), "f") for _ in range(2))
    assert outcome(strings.skip_strings, ours, "'toy'", len(texts)) == outcome(plain_skip, theirs, "'toy'", len(texts))
    assert ours.position == theirs.position


@slow
@given(arrays(), st.data())
def test_text_that_is_not_utf8_is_refused_as_by_a_plain_loop(texts, data):
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(texts) - 1))
        texts[at] = texts[at][:20] + data.draw(
            st.sampled_from([b"\xff", b"\xc3", b"\xed\xa0\x80", b"a\xe2\x96\0", b"\x80b"])
        )
    raw, start = header(texts)
    metadata = read_metadata(Cursor(raw, len(raw), "f"), 1)
    found = outcome(metadata.field, KEY)
    assert found == (FormatError, plain_read(raw, start, len(texts)))
    assert metadata.joined(KEY, b"\n") == b"\n".join(texts)


def test_both_ways_read_alike(way):
    texts = [b"a", b"", b"\0", "é".encode() * 200] * MANY
    raw, _ = header(texts)
    metadata = read_metadata(Cursor(raw, len(raw), "f"), 1)
    assert metadata[KEY] == tuple(text.decode() for text in texts)
    assert metadata.joined(KEY, b"\n") == b"\n".join(texts)
    with pytest.raises(FormatError, match="the length of element 1000 of 'toy' needs 8 bytes"):
        strings.skip_strings(Cursor(encoded([b"a"] * 1000), 9000, "f"), "'toy'", 5000)


def test_without_numpy_nothing_is_guessed(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    raw, start = header([b"abc"] * 2000)
    assert read_metadata(Cursor(raw, len(raw), "f"), 1)[KEY] == plain_read(raw, start, 2000)


def test_an_array_that_changes_after_it_was_opened_is_refused():
    raw, start = header([b"abc"] * 2000)
    file = bytearray(raw)
    metadata = read_metadata(Cursor(memoryview(file), len(file), "f"), 1)
    file[start + 11 * 1500] = 200
    for read in (metadata.field, lambda key: metadata.joined(key, b"\n")):
        with pytest.raises(FormatError, match=r"'toy\.texts' has changed since the file was opened"):
            read(KEY)


@pytest.mark.parametrize(
    ("texts", "most"),
    [
        ([b"word"] * 100_000, 100_000 * 12 // strings._WINDOW + 2),  # every window is used whole
        ([b"x" * 300] * 100_000, 100_000 // strings._MOST + 10),  # given up soon, and tried again seldom
        ([b"x" * 300, *[b"word"] * 20] * 5_000, 100_000 // strings._MOST + 20),
        ([b""] * 100_000, 100_000 // strings._MOST + 10),
    ],
)
def test_few_guesses_are_made_where_they_are_wrong(texts, most, monkeypatch):
    made = []
    guessed = strings._guessed
    monkeypatch.setattr(strings, "_guessed", lambda *arguments: made.append(1) or guessed(*arguments))
    raw = encoded(texts)
    cursor = Cursor(raw, len(raw), "f")
    strings.skip_strings(cursor, "'toy'", len(texts))
    assert cursor.position == len(raw)
    assert 0 < len(made) <= most


def test_only_strings_are_joined():
    key = b"toy.numbers"
    raw = struct.pack("<Q", len(key)) + key + struct.pack("<iiQ2i", ValueType.ARRAY, ValueType.INT32, 2, 1, 2)
    metadata = read_metadata(Cursor(raw, len(raw), "f"), 1)
    with pytest.raises(FormatError, match=r"'toy\.numbers' is an array of INT32, expected one of strings"):
        metadata.joined("toy.numbers", b"\n")
