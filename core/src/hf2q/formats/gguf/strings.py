"""Arrays of strings, nearly all of a header: how one is passed over, and how it is read. Below `metadata`.

A string is its length (u64) and its text, so that where it begins only the string before it tells. But in a vocabulary
nearly every text has fewer than 256 bytes and no zeros in it, and then the seven zeros of a length give its place away.
So the places in a window are guessed, all at once, with numpy, and those are taken of which each string ends where the
next one begins. What does not look like that is passed string by string, and where guesses are often wrong, few are
made. Without numpy none are: importing it takes longer than it saves.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from hf2q.errors import FormatError
from hf2q.formats.gguf.cursor import Buffer, Cursor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Places: TypeAlias = NDArray[np.int64]

_U64 = struct.Struct("<Q")
_MANY = 1024  # strings for which guessing pays
_WINDOW = 1 << 16  # bytes guessed at: some thousand strings, and all that is made of them stays in the cache
_GOOD = 512  # strings for which a guess was worth its time
_FEW, _MOST = 16, 4096  # strings passed one by one after a good guess, and at most after bad ones
_MARK = b"\1"  # rare in texts


def skip_strings(cursor: Cursor, label: str, count: int) -> None:
    """Move past `count` strings. Errors: FormatError when they are not all there; `label` names the array."""
    done = 0
    for places in _runs(cursor.buffer, cursor.position, cursor.end, count):
        done += len(places) - 1
        cursor.position = int(places[-1])
    if done < count:
        length = cursor.u64(f"the length of element {done} of {label}")
        cursor.need(length, f"element {done} of {label}")


def read_strings(buffer: Buffer, start: int, stop: int, count: int, where: tuple[str, str]) -> tuple[str, ...]:
    """The first `count` strings of an array in bytes `start` to `stop`, which have been skipped before.

    where  the file and the key, for messages
    Errors: FormatError for text that is not UTF-8, naming the byte and the element.
    """
    found: list[str] = []
    for places in _runs(buffer, start, stop, count):
        found += _texts(buffer, places, len(found), where)
    _check_count(len(found), count, where)
    return tuple(found)


def join_strings(buffer: Buffer, start: int, stop: int, count: int, separator: bytes, where: tuple[str, str]) -> bytes:
    """As `read_strings`, in one piece with `separator`, one byte, between them. Whether it is UTF-8 is not checked."""
    pieces, done = [], 0
    for places in _runs(buffer, start, stop, count):
        pieces.append(_joined(buffer, places, separator))
        done += len(places) - 1
    _check_count(done, count, where)
    return separator.join(pieces)


def _check_count(found: int, count: int, where: tuple[str, str]) -> None:
    if found != count:
        raise FormatError(f"{where[0]}: the array {where[1]!r} has changed since the file was opened")


def _runs(buffer: Buffer, position: int, end: int, count: int) -> Iterator[list[int] | Places]:
    """`count` strings from `position` on, in runs: where each of the run begins, and where the last ends.

    A list when they were passed one by one; an array, int64, when all texts have fewer than 256 bytes. No run is empty.
    It ends early before a string that is not whole before `end`.
    """
    guess = count >= _MANY and sys.modules.get("numpy") is not None
    few = _FEW if guess else _MOST
    while count:
        if guess:
            places = _guessed(buffer, position, end, count)
            found = len(places) - 1
            if found > 0:
                yield places
                count, position = count - found, int(places[-1])
            few = _FEW if found >= _GOOD else min(2 * few, _MOST)
        passed = _passed(buffer, position, end, min(few, count))
        if len(passed) > 1:
            yield passed
            count, position = count - len(passed) + 1, passed[-1]
        elif count:
            return


def _passed(buffer: Buffer, position: int, end: int, count: int) -> list[int]:
    """Kept bare: it runs half a million times for a large vocabulary, when there is no numpy."""
    places, unpack = [position], _U64.unpack_from
    for _ in range(count):
        if position + 8 > end:
            break
        position += 8 + unpack(buffer, position)[0]
        if position > end:
            break
        places.append(position)
    return places


def _guessed(buffer: Buffer, position: int, end: int, count: int) -> Places:
    """Places of strings from `position` on, fewer than 256 bytes each; just `position` when the guess was wrong."""
    import numpy as np

    none = np.array([position])
    window = bytes(buffer[position : min(position + _WINDOW, end)])
    size = len(window)
    if size < 16:
        return none
    # Of seven zeros, four fill an aligned word, and no second one. The length begins with the byte before the first.
    at = np.flatnonzero(np.frombuffer(window, "<u4", size // 4) == 0) * 4 - 1
    raw = np.frombuffer(window, np.uint8)
    for _ in range(3):
        at -= raw[at] == 0
    at = at[at <= size - 8]
    if not at.size or at[0]:
        return none
    lengths = np.ndarray((size - 7,), "<u8", window, strides=(1,))[at]  # of any byte: the u64 that begins there
    right = (lengths[:-1] < 256) & (at[:-1] + 8 + lengths[:-1].astype(np.int64) == at[1:])
    wrong = np.flatnonzero(~right[:count])
    found = int(wrong[0]) if wrong.size else min(right.size, count)
    return at[: found + 1] + position


def _joined(buffer: Buffer, places: list[int] | Places, separator: bytes) -> bytes:
    if not isinstance(places, list):
        start, stop = int(places[0]), int(places[-1])
        joined = _without_lengths(bytearray(buffer[start:stop]), places - start, separator)
        if len(joined) == stop - start - 7 * (len(places) - 1) - 1:  # no text has lost a zero
            return joined
    return separator.join([bytes(buffer[start + 8 : stop]) for start, stop in _pairs(places)])


def _without_lengths(raw: bytearray, places: Places, separator: bytes) -> bytes:
    """The strings in `raw`, of fewer than 256 bytes each, joined, without any zeros."""
    import numpy as np

    view = np.frombuffer(raw, np.uint8)
    view[places[:-1]] = ord(separator)
    view[0] = 0
    return bytes(raw.translate(None, b"\0"))


def _pairs(places: list[int] | Places) -> Iterator[tuple[int, int]]:
    return pairwise(places if isinstance(places, list) else places.tolist())


def _texts(buffer: Buffer, places: list[int] | Places, done: int, where: tuple[str, str]) -> list[str]:
    try:
        if not isinstance(places, list):
            joined = _joined(buffer, places, _MARK)
            if joined.count(_MARK) == len(places) - 2:
                return joined.decode().split(_MARK.decode())
        return [str(buffer[start + 8 : stop], "utf-8") for start, stop in _pairs(places)]
    except UnicodeDecodeError:  # now which, and where
        index, at, reason = _not_utf8(buffer, places)
    path, key = where
    raise FormatError(f"{path}, byte {at}: element {done + index} of {key!r} is not UTF-8: {reason}")


def _not_utf8(buffer: Buffer, places: list[int] | Places) -> tuple[int, int, str]:
    """Index of the first string that is not UTF-8, the byte, and what is wrong with it."""
    for index, (start, stop) in enumerate(_pairs(places)):
        try:
            str(buffer[start + 8 : stop], "utf-8")
        except UnicodeDecodeError as error:
            return index, start + 8 + error.start, error.reason
    raise AssertionError("all of it is UTF-8")
