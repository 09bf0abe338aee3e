"""Images in a sequence: what a forward graph needs to put them in the place of tokens.

A vision graph turns an image into embeddings, one for each token that stands for it. A text graph that sees gets them
with the call that feeds these tokens. The ids there only hold the place; the embeddings go in instead. However the
tokens are cut into calls, the result is the same: an image is given by its place in the sequence, and each call takes
the part that falls into it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hf2q.backends.cache import Cache, Taken, advance
from hf2q.backends.ops import Array, Ops
from hf2q.errors import UsageError


class ImageEmbeddings(NamedTuple):
    """An image as a text model takes it.

    embeddings  (N, C), row by row
    deepstack   for each of the first layers of the text model (N, C), added to what comes out of it; may be empty
    grid        rows and columns; N is their product
    """

    embeddings: Array
    deepstack: tuple[Array, ...]
    grid: tuple[int, int]

    @property
    def tokens(self) -> int:
        """How many tokens of a sequence it takes."""
        return self.grid[0] * self.grid[1]


class PlacedImage(NamedTuple):
    """An image, and the position in its sequence of the first of its tokens."""

    place: int
    image: ImageEmbeddings

    @property
    def end(self) -> int:
        """The position after the last of its tokens."""
        return self.place + self.image.tokens


Media: TypeAlias = Sequence[Sequence[PlacedImage]]
"""For each row of a batch the images of its sequence, in order; those outside of a call do not count."""


class _Part(NamedTuple):
    """What of an image falls into a call: its embeddings from `first` on, for the tokens from `start` to `end`."""

    start: int
    end: int
    first: int
    image: ImageEmbeddings


def _parts(cache: Cache, tokens: int, images: Sequence[PlacedImage]) -> Iterator[_Part]:
    for placed in images:
        start, end = max(placed.place, cache.position), min(placed.end, cache.position + tokens)
        if start < end:
            yield _Part(start - cache.position, end - cache.position, start - placed.place, placed.image)


def check_media(caches: Sequence[Cache], tokens: int, media: Media | None) -> Media:
    """The images of a call, an empty list for each row without any; [] for a call of text alone.

    Errors: UsageError for images that overlap, or for another number of rows; when a sequence ended inside an image,
    and the rest of it is not given; when the tokens of an image would begin in the middle.
    """
    if media is not None and len(media) != len(caches):
        raise UsageError(f"images for {len(media)} rows, of which there are {len(caches)}")
    found: list[Sequence[PlacedImage]] = []
    for row, cache in enumerate(caches):
        images = media[row] if media is not None else ()
        taken = list(_parts(cache, tokens, images))
        if any(a.end > b.start for a, b in pairwise(taken)):
            raise UsageError("images overlap, or are not in the order of their places")
        begun = cache.unfinished
        going_on = taken[0] if taken and taken[0].first else None
        if begun is not None and (going_on is None or cache.position - going_on.first != begun.start):
            raise UsageError(
                f"a sequence of {cache.position} tokens ends inside an image, the rest of which must follow"
            )
        if begun is None and going_on is not None:
            raise UsageError(
                f"an image cannot begin in its middle, at token {going_on.first} of {going_on.image.tokens}"
            )
        found.append(images if taken else ())
    return found if any(found) else []


def with_images(ops: Ops, x: Array, caches: Sequence[Cache], media: Media) -> Array:
    """Embeddings of tokens x (B, T, C), those of the images in their places. Before the caches are advanced."""
    if not media:
        return x
    return _rows(
        ops, [_filled(ops, x[row], _of(cache, x, images, -1)) for row, (cache, images) in _each(caches, media)]
    )


def deepstack(ops: Ops, x: Array, caches: Sequence[Cache], media: Media) -> list[Array]:
    """For each of the first layers what is added to its output: (B, T, C), 0 for text. Of the shape of `x`."""
    depth = max((len(placed.image.deepstack) for images in media for placed in images), default=0)
    zeros = ops.zeros(x.shape[1:]) if depth else x
    return [
        _rows(ops, [_filled(ops, zeros, _of(cache, x, images, level)) for _, (cache, images) in _each(caches, media)])
        for level in range(depth)
    ]


def mrope_positions(caches: Sequence[Cache], tokens: int, media: Media) -> NDArray[np.int64]:
    """M-RoPE positions (B, T, 3) of the next tokens: time, height, width.

    Text advances all three together. An image that begins at p has its time there, its row r at height p + r, its
    column c at width p + c; after it text goes on at p + the larger of its sides.
    Source: transformers, models/qwen3_vl/modeling_qwen3_vl.py, `Qwen3VLModel.get_rope_index`.
    """
    places = np.empty((len(caches), tokens, 3), np.int64)
    for row, cache in enumerate(caches):
        places[row] = (cache.position + cache.rope_offset + np.arange(tokens))[:, None]
        for part, taken in _taken(cache, tokens, media[row] if media else ()):
            rows, columns = np.divmod(np.arange(part.first, part.first + part.end - part.start), part.image.grid[1])
            places[row, part.start : part.end] = taken.rope
            places[row, part.start : part.end, 1] += rows
            places[row, part.start : part.end, 2] += columns
            rest = np.arange(tokens - part.end)
            places[row, part.end :] = (taken.rope + taken.advance + rest)[:, None]
    return places


def advance_mrope(caches: Sequence[Cache], tokens: int, media: Media) -> None:
    """`advance` after a call with M-RoPE positions: the caches remember the images."""
    for row, cache in enumerate(caches):
        begun = cache.unfinished
        new = [taken for _, taken in _taken(cache, tokens, media[row] if media else ()) if taken != begun]
        cache.images += tuple(new)
    advance(caches, tokens)


def advance_images(caches: Sequence[Cache], tokens: int, media: Media) -> None:
    """`advance` after a call in which an image takes as many positions as it has tokens, like text."""
    for row, cache in enumerate(caches):
        for part in _parts(cache, tokens, media[row] if media else ()):
            if not part.first:
                start, count = cache.position + part.start, part.image.tokens
                cache.images += (Taken(start, start + count, start, count),)
    advance(caches, tokens)


def _taken(cache: Cache, tokens: int, images: Sequence[PlacedImage]) -> Iterator[tuple[_Part, Taken]]:
    """The parts of images in a call, each with where its image stands."""
    offset, begun = cache.rope_offset, cache.unfinished
    for part in _parts(cache, tokens, images):
        start = cache.position + part.start - part.first
        taken = Taken(start, start + part.image.tokens, start + offset, max(part.image.grid))
        if part.first and begun is not None:
            taken = begun
        offset = taken.rope + taken.advance - taken.end
        yield part, taken


def _each(caches: Sequence[Cache], media: Media) -> Iterator[tuple[int, tuple[Cache, Sequence[PlacedImage]]]]:
    yield from enumerate(zip(caches, media, strict=True))


def _of(cache: Cache, x: Array, images: Sequence[PlacedImage], level: int) -> Iterator[tuple[_Part, Array]]:
    """The parts in a call with their embeddings, or with those of a level of DeepStack."""
    for part in _parts(cache, x.shape[1], images):
        source = part.image.embeddings if level < 0 else part.image.deepstack[level]
        yield part, source[part.first : part.first + part.end - part.start]


def _filled(ops: Ops, x: Array, parts: Iterator[tuple[_Part, Array]]) -> Array:
    """x (T, C) with other rows where there are images."""
    pieces, at = [], 0
    for part, values in parts:
        pieces += [x[at : part.start], values] if part.start > at else [values]
        at = part.end
    if at < x.shape[0]:
        pieces.append(x[at:])
    return pieces[0] if len(pieces) == 1 else ops.concat(pieces, 0)


def _rows(ops: Ops, rows: Sequence[Array]) -> Array:
    """Rows (T, C) together: (B, T, C)."""
    whole = [row.reshape(1, *row.shape) for row in rows]
    return whole[0] if len(whole) == 1 else ops.concat(whole, 0)
