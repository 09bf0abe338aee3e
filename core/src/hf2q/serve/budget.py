"""How much memory caches take, will take, and may take."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hf2q.backends.cache import Cache

KV_SHARE = 0.8
"""Of the memory that is free once the model is loaded, the part that caches may take."""

PREFIX_SHARE = 0.05
PREFIX_LEAST = 256 << 20
PREFIX_MOST = 16 << 30
"""The prefix store's part of the same, and its bounds in bytes."""

_LENGTHS = [*range(16, 256, 16), *range(256, 4097, 256)]
while _LENGTHS[-1] < 1 << 24:
    _LENGTHS.append(_LENGTHS[-1] * 9 // 8)


def default_kv_budget(available: int | None) -> int | None:
    """Bytes for all caches when `available` are free; None, no limit, where that is not known."""
    return None if available is None else int(available * KV_SHARE)


def default_prefix_budget(available: int | None) -> int:
    """Bytes for the prefix store, which are part of those for all caches."""
    return PREFIX_LEAST if available is None else min(max(int(available * PREFIX_SHARE), PREFIX_LEAST), PREFIX_MOST)


def size(count: int) -> str:
    """Bytes for people."""
    if count < 1e6:
        return f"{count} bytes"
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def bytes_of(cache: Cache) -> int:
    """What it takes now."""
    return sum(int(array.nbytes) for array in cache.arrays())


def bytes_after(cache: Cache, tokens: int) -> int:
    """What it will take once `tokens` more are in.

    A part may tell it (``bytes_after(tokens)``, as those of `hf2q.backends.cache` do); of others it is taken to grow
    with the tokens. Nothing is known of a part that holds nothing yet: it counts as 0.
    """
    total = 0.0
    for part in cache.parts:
        tell = getattr(part, "bytes_after", None)
        if tell is not None:
            total += tell(tokens)
        elif cache.position:
            held = sum(int(array.nbytes) for array in part.arrays())
            total += held * (cache.position + tokens) / cache.position
    return int(total)


class CacheSizes:
    """What a model's caches take by their length, learned from the first that is used."""

    def __init__(self) -> None:
        self._bytes: list[int] = []

    @property
    def known(self) -> bool:
        """Whether there was one to learn from."""
        return bool(self._bytes)

    def learn(self, cache: Cache) -> None:
        """Take note of a cache that holds tokens."""
        if not self._bytes and cache.position:
            self._bytes = [bytes_after(cache, max(0, length - cache.position)) for length in _LENGTHS]

    def of(self, tokens: int) -> int:
        """About the bytes of a cache of so many tokens; 0 while nothing is known."""
        if not self._bytes:
            return 0
        return self._bytes[min(bisect_left(_LENGTHS, tokens), len(_LENGTHS) - 1)]

    def after(self, cache: Cache | None, tokens: int) -> int:
        """The bytes of `cache`, or of an empty one, once `tokens` more are in."""
        if cache is None or not cache.position:
            return self.of(tokens)
        return bytes_after(cache, tokens)
