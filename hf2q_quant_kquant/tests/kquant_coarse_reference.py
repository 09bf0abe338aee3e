"""What llama.cpp's encoders of TQ1_0, TQ2_0, MXFP4, IQ2_XS, IQ2_S, IQ3_S and IQ3_XXS give, and how to record it again.

    python kquant_coarse_reference.py PATH/libggml-base.so        # writes data/coarse.json

The inputs are those of reference.py, of the large ones the first rows.
"""

import ctypes
import json
import sys
from pathlib import Path

import numpy as np

RECORDED = Path(__file__).parent / "data" / "coarse.json"
ROWS = 64

# qtype: weights per block, bytes per block, where the float16 number of a block begins, the peer's function, its number
TYPES = {
    "TQ1_0": (256, 54, 52, "quantize_tq1_0", 34),
    "TQ2_0": (256, 66, 64, "quantize_tq2_0", 35),
    "MXFP4": (32, 17, None, "quantize_mxfp4", 39),
    "IQ2_XS": (256, 74, 0, "quantize_iq2_xs", 17),
    "IQ2_S": (256, 82, 0, "quantize_iq2_s", 22),
    "IQ3_S": (256, 110, 0, "quantize_iq3_s", 21),
    "IQ3_XXS": (256, 98, 0, "quantize_iq3_xxs", 18),
}
NEED_IMPORTANCE = ("IQ2_XS",)
"""Types that have no search without importance: there "without" means the same for every column."""


def inputs(reference):
    """Name to float32 (rows, columns) of the large recorded inputs."""
    return {name: x.reshape(-1, reference.COLUMNS)[:ROWS] for name, x in reference.inputs().items()}


def weights(qtype, columns, importance):
    """`importance`, or ones (columns,) where there is none and the type needs some."""
    return np.ones(columns, np.float32) if importance is None and qtype in NEED_IMPORTANCE else importance


def finite(qtype, data):
    """Which blocks of uint8 (blocks, bytes per block) have a finite scale."""
    at = TYPES[qtype][2]
    if at is None:
        return data[:, 0] < 255
    return np.isfinite(np.ascontiguousarray(data[:, at : at + 2]).view(np.float16)[:, 0])


def peer_encoder(path):
    """encode(qtype, x, importance=None) -> uint8 (blocks, bytes per block) by llama.cpp's ggml-base library at `path`.

    Some weights that no float16 scale can hold make it end the process.
    """
    library = ctypes.CDLL(str(path))

    def encode(qtype, x, importance=None):
        size, bytes_, _, name, number = TYPES[qtype]
        library.ggml_quantize_init(number)
        x = np.ascontiguousarray(x, np.float32).reshape(-1, x.shape[-1])
        out = np.zeros((x.size // size, bytes_), np.uint8)
        function = getattr(library, name)
        function.restype = ctypes.c_size_t
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
        importance = weights(qtype, x.shape[1], importance)
        counts = None if importance is None else np.ascontiguousarray(importance, np.float32)
        address = None if counts is None else counts.ctypes.data
        assert function(x.ctypes.data, out.ctypes.data, *x.shape, address) == out.nbytes
        return out

    return encode


def record(reference, path):
    encode, digest = peer_encoder(path), reference.digest
    large, importance = inputs(reference), reference.importance(5, reference.COLUMNS)
    golden, its_weights = reference.golden_input(), reference.golden_importance()
    recorded = {
        "inputs": {name: digest(x) for name, x in large.items()} | {"importance": digest(importance)},
        "types": {},
    }
    for qtype in TYPES:
        recorded["types"][qtype] = {
            "golden": encode(qtype, golden).tobytes().hex(),
            "golden with importance": encode(qtype, golden, its_weights).tobytes().hex(),
            "sha256": {name: digest(encode(qtype, x)) for name, x in large.items()},
            "sha256 with importance": {name: digest(encode(qtype, x, importance)) for name, x in large.items()},
        }
    RECORDED.write_text(json.dumps(recorded, indent=2) + "\n")


if __name__ == "__main__":
    import reference

    record(reference, sys.argv[1])
