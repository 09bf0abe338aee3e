"""Through the codec: what no float16 scale can hold is refused, never stored as zeros, infinity or NaN."""

import contextlib

import numpy as np
import pytest

from hf2q.errors import EncodeError
from hf2q.plugins import Plugins

PLUGINS = Plugins.load()
QTYPES = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]


def rows(seed=0):
    return (np.random.default_rng(seed).standard_normal((2, 512)) * 0.02).astype(np.float32)


@pytest.mark.parametrize("qtype", QTYPES)
@pytest.mark.parametrize("size", [1e9, 1e13, 1e18, 3e38])
def test_one_huge_weight_is_refused(qtype, size):
    x, importance = rows(), np.ones(512, np.float32)
    x[1, 300] = -size
    for weights in (None, importance):
        with pytest.raises(EncodeError, match=rf"'a\.weight' .* row 8, column 300; {qtype} cannot hold that"):
            PLUGINS.codec(qtype).encode(x, weights, name="a.weight", first_row=7)


@pytest.mark.parametrize("qtype", QTYPES)
@pytest.mark.parametrize("size", [1e12, 1e30, 3e38])
def test_importance_out_of_this_world_is_refused_or_harmless(qtype, size):
    x = rows(1) * np.float32(1e5)
    importance = np.linspace(0, size, 512, dtype=np.float32)
    codec = PLUGINS.codec(qtype)
    data = None
    with contextlib.suppress(EncodeError):
        data = codec.encode(x, importance)
    assert data is None or np.isfinite(codec.decode(data)).all()
    assert data is not None or size > 1e12
