"""Inputs whose encoded bytes were recorded once with llama.cpp, and how to record them again.

    python reference.py PATH/libggml-base.so        # writes data/reference.json

The inputs are made from the raw 64-bit stream of PCG64, which numpy keeps stable, by exact arithmetic only: the same
floats on every machine and with every version of numpy.
"""

import ctypes
import hashlib
import json
import sys
from pathlib import Path

import numpy as np

RECORDED = Path(__file__).parent / "data" / "reference.json"
LARGE = 1 << 21

# qtype: weights per block, bytes per block, where the float16 numbers of a block begin, the peer's function
TYPES = {
    "Q8_0": (32, 34, (0,), "quantize_q8_0"),
    "Q4_0": (32, 18, (0,), "quantize_q4_0"),
    "Q4_1": (32, 20, (0, 2), "quantize_q4_1"),
    "Q5_0": (32, 22, (0,), "quantize_q5_0"),
    "Q5_1": (32, 24, (0, 2), "quantize_q5_1"),
    "Q2_K": (256, 84, (80, 82), "quantize_q2_K"),
    "Q3_K": (256, 110, (108,), "quantize_q3_K"),
    "Q4_K": (256, 144, (0, 2), "quantize_q4_K"),
    "Q5_K": (256, 176, (0, 2), "quantize_q5_K"),
    "Q6_K": (256, 210, (208,), "quantize_q6_K"),
    "IQ4_NL": (32, 18, (0,), "quantize_iq4_nl"),
    "IQ4_XS": (256, 136, (0,), "quantize_iq4_xs"),
}
COLUMNS = 4096
"""Of the large inputs."""


def bell(seed, n):
    """n float32 close to a normal distribution of standard deviation 0.036: sums of four 16-bit integers."""
    raw = np.random.PCG64(seed).random_raw(n).view(np.uint16).reshape(n, 4)
    return (raw.astype(np.int32).sum(1) - 131070).astype(np.float32) * np.float32(2.0**-20)


def heavy(seed, n):
    """The same with tails: each weight is scaled by a power of two between 1 and 128, large ones being rare."""
    raw = np.random.PCG64(seed + 1).random_raw(n)
    rare = np.zeros(n, np.int32)
    for bit in range(7):
        rare += (raw & np.uint64((2 << bit) - 1) == 0).astype(np.int32)
    return np.ldexp(bell(seed, n), rare).astype(np.float32)


def inputs():
    """Name to float32 array of the large recorded inputs."""
    normal = bell(1, LARGE)
    return {
        "bell": normal,
        "heavy": heavy(2, LARGE),
        "bf16": (bell(3, LARGE).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32),
        "f16": bell(4, LARGE).astype(np.float16).astype(np.float32),
    }


def importance(seed, n):
    """n float32 as an importance matrix has them: positive, over four orders of magnitude, one in sixteen zero."""
    raw = np.random.PCG64(seed).random_raw(n)
    size = np.ldexp(
        1 + (raw & np.uint64(0xFFFF)).astype(np.float64), -(raw >> np.uint64(16) & np.uint64(15)).astype(int)
    )
    return np.where(raw >> np.uint64(60) == 0, 0, size).astype(np.float32)


def golden_input():
    """256 small exact numbers: a block that can be followed by hand."""
    return ((np.arange(256) * 37 % 101 - 50) / 64).astype(np.float32)


def golden_importance():
    """256 more."""
    return (np.arange(256) * 29 % 17 / 8).astype(np.float32)


def adversarial(seed=0):
    """Name to float32 array of 2048 weights: rows on which rounding, clamping and empty blocks go wrong first."""
    r, n = np.random.default_rng(seed), 2048
    normal = r.standard_normal(n)
    bits = r.integers(0, 2**32, n, dtype=np.uint64).astype(np.uint32).view(np.float32)
    one = np.zeros(n)
    one[3::256] = r.standard_normal(n // 256)
    outlier, spikes = normal * 1e-3, normal * 1e-3
    outlier[::256], spikes[7::32] = 1000, -1e6
    ties = r.choice([-1, 1], n) * r.choice([0.5 - 2.0**-25, 0.5, 1.5 - 2.0**-23, 1.5, 2.5, 126.5], n)
    ties[::32] = 127  # so that Q8_0 has a scale of one
    cases = {
        "zero": np.zeros(n),
        "negative zero": -np.zeros(n),
        "constant": np.full(n, 0.25),
        "constant blocks": np.repeat(r.standard_normal(n // 32), 32),
        "denormal": r.integers(-(1 << 22), 1 << 22, n) * 2.0**-149,
        "smallest": r.integers(-3, 4, n) * 2.0**-149,
        "1e-38": normal * 1e-38,
        "1e-30": normal * 1e-30,
        "1e-15": normal * 1e-15,
        "1e-9": normal * 1e-9,
        "1e3": normal * 1e3,
        "1e18": normal * 1e18,
        "1e30": normal * 1e30,
        "huge": r.uniform(-1, 1, n) * 3.3e38,
        "largest half": r.choice([-65504.0, 65504.0], n),
        "one outlier": outlier,
        "outliers": spikes,
        "one weight": one,
        "negative": -np.abs(normal),
        "positive": np.abs(normal),
        "far below zero": -100 - np.abs(normal) * 1e-3,
        "far above zero": 100 + np.abs(normal) * 1e-3,
        "integers": r.integers(-8, 8, n),
        "ternary": r.integers(-1, 2, n),
        "halves": r.integers(-16, 17, n) * 0.5,
        "ties": ties,
        "last bits": 1 + r.integers(0, 4, n) * 2.0**-23,
        "all magnitudes": normal * 10.0 ** r.uniform(-40, 38, n),
        "magnitudes by block": normal * np.repeat(10.0 ** r.uniform(-40, 38, n // 32), 32),
        "sparse": np.where(r.random(n) < 0.03, normal, 0),
        "any bits": np.where(np.isfinite(bits), bits, 0),
    }
    with np.errstate(all="ignore"):
        arrays = {name: np.asarray(x, np.float64).astype(np.float32) for name, x in cases.items()}
    return {name: np.where(np.isfinite(x), x, np.float32(0)) for name, x in arrays.items()}


def importances(columns, seed=0):
    """Name to float32 (columns,): importance on which sums vanish, and such as no activations give."""
    r = np.random.default_rng(seed)
    usual = r.random(columns) ** 4 + 1e-3
    cases = {
        "usual": usual,
        "ones": np.ones(columns),
        "zeros among others": np.where(r.random(columns) < 0.3, 0, usual),
        "zero blocks": usual * np.repeat(r.random(columns // 32) < 0.5, 32),
        "zero": np.zeros(columns),
        "one column": np.where(np.arange(columns) % 256 == 77, 1, 0),
        "many magnitudes": 10.0 ** r.uniform(-12, 6, columns),
        "denormal": usual * 1e-40,
        "large": usual * 1e30,
    }
    return {name: q.astype(np.float32) for name, q in cases.items()}


def finite(qtype, data):
    """Which blocks of uint8 (blocks, bytes per block) have finite scales; the reference's users refuse the others."""
    halves = [np.ascontiguousarray(data[:, at : at + 2]).view(np.float16)[:, 0] for at in TYPES[qtype][2]]
    return np.isfinite(halves).all(0)


def peer_encoder(path):
    """encode(qtype, x, importance=None) -> uint8 (blocks, bytes per block) by llama.cpp's ggml-base library at `path`.

    x: float32 (rows, columns) or (columns,).
    """
    library = ctypes.CDLL(str(path))

    def encode(qtype, x, importance=None):
        size, bytes_, _, name = TYPES[qtype]
        x = np.ascontiguousarray(x, np.float32).reshape(-1, x.shape[-1])
        out = np.zeros((x.size // size, bytes_), np.uint8)
        function = getattr(library, name)
        function.restype = ctypes.c_size_t
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
        weights = None if importance is None else np.ascontiguousarray(importance, np.float32)
        address = None if weights is None else weights.ctypes.data
        assert function(x.ctypes.data, out.ctypes.data, *x.shape, address) == out.nbytes
        return out

    return encode


def digest(data):
    return hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest()


def record(path):
    encode = peer_encoder(path)
    large = {name: x.reshape(-1, COLUMNS) for name, x in inputs().items()}
    weights = importance(5, COLUMNS)
    recorded = {
        "inputs": {name: digest(x) for name, x in large.items()} | {"importance": digest(weights)},
        "types": {},
    }
    for qtype in TYPES:
        recorded["types"][qtype] = {
            "golden": encode(qtype, golden_input()).tobytes().hex(),
            "golden with importance": encode(qtype, golden_input(), golden_importance()).tobytes().hex(),
            "sha256": {name: digest(encode(qtype, x)) for name, x in large.items()},
            "sha256 with importance": {name: digest(encode(qtype, x, weights)) for name, x in large.items()},
        }
    RECORDED.write_text(json.dumps(recorded, indent=2) + "\n")


if __name__ == "__main__":
    record(sys.argv[1])
