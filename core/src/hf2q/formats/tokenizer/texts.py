"""The texts of a vocabulary, kept small: a str for each would take several times as much memory, and time to make."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, compress
from typing import Any

_MARKS = (b"\1", b"\xff")
"""What may stand between texts: the first is rare in them, the second in no UTF-8, but not to be decoded with them."""

_BLOCK = 1024  # texts that become str together


class Texts(Sequence[str]):
    """Texts by id, in UTF-8, one after the other. Lone surrogates are kept.

    raw   the texts with `mark` between them
    mark  one of `_MARKS`, in no text
    """

    def __init__(self, raw: bytes, mark: bytes) -> None:
        """Use `joined_texts`."""
        import numpy as np

        self._raw, self._mark = raw, mark
        ends = np.flatnonzero(np.frombuffer(raw, np.uint8) == ord(mark))
        self._starts = array("I", [0])
        self._starts.frombytes((ends + 1).astype(np.uintc).tobytes())
        self._starts.append(len(raw) + 1)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return self.text(range(len(self))[index])

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(map(self._block, range(0, len(self), _BLOCK)))

    def text(self, number: int) -> str:
        """One text; `number` is not checked."""
        return self._text(self._raw[self._starts[number] : self._starts[number + 1] - 1])

    def ids(self, chosen: bytes) -> dict[str, int]:
        """Ids by text of those for which `chosen`, a byte for each, is not 0; of doubled texts the last."""
        found: dict[str, int] = {}
        for first in range(0, len(self), _BLOCK):
            taken = chosen[first : first + _BLOCK]
            if any(taken):
                numbers = range(first, first + len(taken))
                found.update(zip(compress(self._block(first), taken), compress(numbers, taken), strict=True))
        return found

    def _block(self, first: int) -> list[str]:
        last = min(first + _BLOCK, len(self))
        raw = self._raw[self._starts[first] : self._starts[last] - 1]
        if self._mark == _MARKS[0]:
            return self._text(raw).split(_MARKS[0].decode())
        return [self._text(part) for part in raw.split(self._mark)]

    @staticmethod
    def _text(raw: bytes) -> str:
        return raw.decode("utf-8", "surrogatepass")


def joined_texts(join: Callable[[bytes], bytes], count: int) -> Texts | None:
    """`count` texts, at least one; `join` gives them with a byte between them. None when they are not UTF-8."""
    for mark in _MARKS:
        raw = join(mark)
        texts = Texts(raw, mark)
        if len(texts) == count:
            try:
                raw.replace(mark, b"\n").decode()
            except UnicodeDecodeError:
                return None
            return texts
    return None


def texts_of(values: Sequence[str]) -> Texts:
    """As `Texts`, of at least one."""
    parts = [value.encode("utf-8", "surrogatepass") for value in values]
    mark = next(mark for mark in _MARKS if not any(mark in part for part in parts))
    return Texts(mark.join(parts), mark)
