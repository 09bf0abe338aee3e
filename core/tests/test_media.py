"""Images among the tokens of a sequence: where they go, where they stand, and what a cache remembers of them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf2q.backends.cache import Cache, KVCache, Taken
from hf2q.backends.media import (
    ImageEmbeddings,
    PlacedImage,
    advance_images,
    advance_mrope,
    check_media,
    deepstack,
    mrope_positions,
    with_images,
)
from hf2q.backends.reference import ReferenceOps
from hf2q.errors import ContractError, UsageError
from hf2q.types import ProjectorEntry

OPS = ReferenceOps(threads=1)
WIDTH, DEPTH = 3, 2


def image(rows, columns, value):
    """Embeddings that tell image, token and level."""
    tokens = np.arange(rows * columns, dtype=np.float32)[:, None] + np.zeros(WIDTH, np.float32)
    return ImageEmbeddings(
        value + tokens, tuple(value + tokens + 1000 * (k + 1) for k in range(DEPTH)), (rows, columns)
    )


def walk(images, total, cuts, cache=None):
    """Positions, inputs and features of a sequence that is fed in pieces."""
    cache = cache or Cache([])
    found = [], [], []
    edges = [cache.position, *cuts, total]
    for start, end in pairwise(edges):
        tokens = end - start
        if not tokens:
            continue
        media = check_media([cache], tokens, [images])
        x = with_images(OPS, np.full((1, tokens, WIDTH), -1, np.float32), [cache], media)
        features = deepstack(OPS, x, [cache], media) or [np.zeros_like(x)] * DEPTH
        found[0].append(mrope_positions([cache], tokens, media)[0])
        found[1].append(x[0])
        found[2].append(np.concatenate(features, axis=-1)[0])
        advance_mrope([cache], tokens, media)
    return [np.concatenate(part) for part in found], cache


def expected_positions(images, total):
    """The rule, token by token."""
    places, next_place, at = [], 0, 0
    while at < total:
        here = next((placed.image for placed in images if placed.place == at), None)
        if here is None:
            places.append((next_place,) * 3)
            next_place, at = next_place + 1, at + 1
            continue
        rows, columns = here.grid
        places += [(next_place, next_place + r, next_place + c) for r in range(rows) for c in range(columns)]
        next_place, at = next_place + max(rows, columns), at + rows * columns
    return np.array(places)


@st.composite
def sequences(draw):
    images, at = [], 0
    for number in range(draw(st.integers(0, 3))):
        at += draw(st.integers(0, 4))
        grid = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
        images.append(PlacedImage(at, image(*grid, 10 * (number + 1))))
        at = images[-1].end
    total = at + draw(st.integers(1, 4))
    cuts = sorted(draw(st.lists(st.integers(0, total), max_size=4)))
    return tuple(images), total, cuts


@settings(max_examples=200, deadline=None)
@given(sequences())
def test_images_stand_where_the_rule_says_however_the_tokens_are_cut(sequence):
    images, total, cuts = sequence
    (places, inputs, features), cache = walk(images, total, cuts)
    assert (places == expected_positions(images, total)).all()
    assert cache.position == total
    assert cache.rope_offset == places[-1].max() + 1 - total
    wanted = np.full((total, WIDTH), -1, np.float32)
    added = np.zeros((total, DEPTH * WIDTH), np.float32)
    for placed in images:
        wanted[placed.place : placed.end] = placed.image.embeddings
        added[placed.place : placed.end] = np.concatenate(placed.image.deepstack, axis=-1)
    assert (inputs == wanted).all()
    assert (features == added).all()
    after = walk((), total + 3, [], cache)[0][0]  # text goes on without being told about images again
    assert (after == places[-1].max() + 1 + np.arange(3)[:, None]).all()


@pytest.mark.parametrize("cuts", [[], [3], [1, 2, 3, 4, 5], [2, 8]])
def test_images_may_take_as_many_positions_as_they_have_tokens(cuts):
    images = [PlacedImage(1, image(2, 2, 0)), PlacedImage(6, image(1, 3, 0))]
    cache = Cache([])
    for start, end in pairwise([0, *cuts, 10]):
        media = check_media([cache], end - start, [images])
        assert cache.rope_offset == 0
        advance_images([cache], end - start, media)
    assert cache.images == (Taken(1, 5, 1, 4), Taken(6, 9, 6, 3))
    assert (cache.position, cache.rope_offset, cache.unfinished) == (10, 0, None)


def test_rows_have_images_of_their_own():
    caches = [Cache([]), Cache([]), Cache([])]
    caches[2].position = 5
    media = check_media(caches, 4, [(), [PlacedImage(1, image(1, 2, 10))], [PlacedImage(1, image(1, 2, 10))]])
    x = with_images(OPS, np.full((3, 4, WIDTH), -1, np.float32), caches, media)
    assert x[:, :, 0].tolist() == [[-1] * 4, [-1, 10, 11, -1], [-1] * 4]
    assert [level[:, :, 0].tolist() for level in deepstack(OPS, x, caches, media)] == [
        [[0] * 4, [0, 1010, 1011, 0], [0] * 4],
        [[0] * 4, [0, 2010, 2011, 0], [0] * 4],
    ]


def test_text_alone_costs_nothing():
    caches = [Cache([]), Cache([])]
    assert check_media(caches, 3, None) == []
    assert check_media(caches, 3, [(), [PlacedImage(7, image(1, 1, 0))]]) == []
    x = np.zeros((2, 3, WIDTH), np.float32)
    assert with_images(OPS, x, caches, []) is x
    assert deepstack(OPS, x, caches, []) == []


@pytest.mark.parametrize(
    ("images", "start", "said"),
    [
        ([PlacedImage(0, image(2, 2, 0)), PlacedImage(3, image(1, 1, 0))], 0, "overlap"),
        ([PlacedImage(4, image(1, 1, 0)), PlacedImage(2, image(1, 1, 0))], 0, "order of their places"),
        ([PlacedImage(1, image(2, 2, 0))], 2, "cannot begin in its middle, at token 1 of 4"),
    ],
)
def test_images_that_cannot_be_are_refused(images, start, said):
    cache = Cache([])
    cache.position = start
    with pytest.raises(UsageError, match=said):
        check_media([cache], 6, [images])
    with pytest.raises(UsageError, match="images for 1 rows, of which there are 2"):
        check_media([cache, cache], 6, [images])


def test_an_image_that_has_begun_must_go_on():
    images = [PlacedImage(1, image(2, 2, 0))]
    _, cache = walk(images, 3, [])
    for wrong in (None, [()], [[PlacedImage(2, image(2, 2, 0))]]):
        with pytest.raises(UsageError, match="a sequence of 3 tokens ends inside an image"):
            check_media([cache], 1, wrong)
    assert walk(images, 6, [], cache)[0][0].tolist() == [[1, 2, 1], [1, 2, 2], [3, 3, 3]]


def fed(images, total):
    part = KVCache(OPS)
    part.append(np.zeros((total, 1, 2), np.float32), np.zeros((total, 1, 2), np.float32))
    return walk(images, total, [], Cache([part]))[1]


def test_a_cache_is_cut_back_around_images_only():
    images = [PlacedImage(2, image(1, 3, 0)), PlacedImage(6, image(2, 2, 0))]
    cache = fed(images, 12)
    assert cache.images == (Taken(2, 5, 2, 3), Taken(6, 10, 6, 2))
    assert [p for p in range(13) if cache.can_trim(p)] == [0, 1, 2, 5, 6, 10, 11, 12]
    with pytest.raises(UsageError, match="cut back to 8") as raised:
        cache.trim(8)
    assert "an image is kept as a whole" in raised.value.hint
    cache.trim(10)
    assert (cache.rope_offset, len(cache.images)) == (-2, 2)
    cache.trim(6)
    assert (cache.rope_offset, len(cache.images)) == (0, 1)
    cache.trim(0)
    assert cache.images == ()


def test_copies_and_saved_caches_know_their_images():
    cache = fed([PlacedImage(2, image(2, 2, 0))], 8)
    copy, other = cache.copy(), Cache([KVCache(OPS)])
    other.restore(cache.save())
    cache.trim(0)
    for one in (copy, other):
        assert one.images == (Taken(2, 6, 2, 2),)
        assert one.rope_offset == -2
    other.restore(Cache([KVCache(OPS)]).save())
    assert (other.images, other.rope_offset) == ((), 0)


def test_a_projector_marks_images_on_both_sides_or_not_at_all():
    assert ProjectorEntry(name="p", hparams="", catalog="p").marks == ()
    assert ProjectorEntry(name="p", hparams="", catalog="p", marks=("<", ">")).marks == ("<", ">")
    with pytest.raises(ContractError, match="the projector p has 1 marks"):
        ProjectorEntry(name="p", hparams="", catalog="p", marks=("<",))
