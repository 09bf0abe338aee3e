"""exp with the converter's bits. The digests are of results of torch 2.13 (x86-64)."""

import hashlib

import numpy as np
import pytest

from hf2q_arch_qwen35.exponential import LIMIT, exp


def digest(x):
    return hashlib.sha256(x.tobytes()).hexdigest()


def test_every_bfloat16_value():
    x = (np.arange(65536, dtype=np.uint32) << 16).view(np.float32)
    x = x[np.abs(x) <= LIMIT]
    assert len(x) == 34142
    assert digest(exp(x)) == "b075404ac9b460fd543f20227d5f2a229e0ef96583fc60e096b4cff8e8cd11fe"


def test_random_float32_values():
    raw = np.random.PCG64([7, 7]).random_raw(1 << 16) >> np.uint64(40)
    x = (raw.astype(np.float64) / (1 << 24) * 12 - 8).astype(np.float32)
    assert digest(exp(x)) == "041a2425d6eb8d0535dd7b5b1af74fe6d5bd91b9b72765908a7fe0db31975fbf"
    nearest = np.exp(x.astype(np.float64)).astype(np.float32)
    assert 0.005 < np.mean(exp(x) != nearest) < 0.02  # else plain numpy would do


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, 1.0), (-0.0, 1.0), (np.inf, np.inf), (-np.inf, 0.0), (100.0, np.inf), (-200.0, 0.0), (88.5, 2.7230879e38)],
)
def test_ends(value, expected):
    assert exp(np.float32([value]))[0] == np.float32(expected)


def test_nan_stays_and_shapes_stay():
    assert np.isnan(exp(np.float32([np.nan]))[0])
    assert exp(np.zeros((2, 3), np.float32)).shape == (2, 3)
    assert exp(np.zeros((2, 3), np.float32)).dtype == np.float32
