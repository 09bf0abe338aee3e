"""The merges of a BPE tokenizer, kept as text: a quarter of a million pairs of str would take ten times as much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

_LINE, _SPACE = b"\n", b" "
_NEITHER = bytes(sorted({*range(256)} - {*_LINE, *_SPACE}))
_BLOCK = 1 << 15  # characters that become str together


class Merges(Sequence[tuple[str, str]]):
    """Pairs of texts, most frequent first. They are made while iterating; to index is to make them all.

    text   ``left right`` in each line
    count  number of lines
    """

    def __init__(self, text: str, count: int) -> None:
        """Use `read_merges`."""
        self._text = text
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return chain.from_iterable(self._blocks())

    def _blocks(self) -> Iterator[Iterator[tuple[str, str]]]:
        start = 0
        while start < len(self._text):
            stop = self._text.find("\n", start + _BLOCK)
            stop = len(self._text) if stop < 0 else stop
            parts = iter(self._text[start:stop].replace("\n", " ").split(" "))
            yield zip(parts, parts, strict=True)
            start = stop + 1


def read_merges(lines: bytes, count: int) -> Merges | None:
    """`count` merges, ``left right`` in each line; None when that is not what `lines` are, or they are not UTF-8."""
    separators = lines.translate(None, _NEITHER)
    if count < 1 or separators != (_SPACE + _LINE) * (count - 1) + _SPACE:
        return None
    try:
        return Merges(lines.decode(), count)
    except UnicodeDecodeError:
        return None
