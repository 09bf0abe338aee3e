"""Where core looks for a block's scales is where they are: an infinite one there spoils exactly that block."""

import numpy as np
import pytest

from hf2q.formats.finite import E8M0_SCALES, HALF_SCALES, first_bad
from hf2q_quant_kquant import hf2q_quant_codecs

CODECS = {codec.name: codec for codec in hf2q_quant_codecs()}


@pytest.fixture(params=sorted(CODECS))
def codec(request):
    return CODECS[request.param]


def encoded(codec):
    x = np.random.default_rng(1).standard_normal((3, 4 * codec.block_size)).astype(np.float32)
    return codec.encode(x, np.ones(x.shape[1], np.float32), threads=1)


def test_what_is_encoded_is_finite(codec):
    assert first_bad(encoded(codec), codec.name) is None


def test_the_places_are_those_of_scales(codec):
    for at in HALF_SCALES.get(codec.name, ()):
        data = encoded(codec)
        start = 2 * codec.type_size + at
        data[1, start : start + 2] = [0, 0x7C]
        with np.errstate(invalid="ignore"):
            values = codec.decode(data, threads=1).reshape(3, 4, codec.block_size)
        spoilt = ~np.isfinite(values).all(axis=2)
        assert spoilt.tolist() == [[False] * 4, [False, False, True, False], [False] * 4]
        found = first_bad(data, codec.name)
        assert (found.row, found.at) == (1, 2)
    assert codec.name in HALF_SCALES or codec.name in E8M0_SCALES
