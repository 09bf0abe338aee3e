"""Numbers that are not finite: found wherever they are, said where."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf2q.backends import weights as loading
from hf2q.backends.reference import ReferenceOps
from hf2q.backends.weights import ArraySource, ArrayTensor, Weights
from hf2q.builtin import hf2q_quant_codecs
from hf2q.codec import QuantCodec
from hf2q.errors import LoadError
from hf2q.formats import finite
from hf2q.formats.finite import E8M0_SCALES, HALF_SCALES, KNOWN, Bad, first_bad
from hf2q.formats.ggml_types import GGML_TYPES

CODECS = {codec.name: codec for codec in hf2q_quant_codecs()}


def blocks(qtype, rows=3, per_row=4):
    """Blocks of random bytes below 0x40, which make no float infinite."""
    size = GGML_TYPES[qtype].type_size
    return np.random.default_rng(0).integers(0, 0x40, (rows, per_row * size), dtype=np.uint8)


@pytest.mark.parametrize("qtype", sorted(KNOWN))
def test_ordinary_bytes_are_finite_and_so_is_nothing(qtype):
    assert first_bad(blocks(qtype), qtype) is None
    assert first_bad(blocks(qtype)[:0], qtype) is None
    assert first_bad(blocks(qtype)[:, :0], qtype) is None


@pytest.mark.parametrize(("qtype", "at"), [(qtype, at) for qtype, places in HALF_SCALES.items() for at in places])
@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7C01, 0xFE00, 0x7FFF, 0xFFFF])
def test_every_half_is_looked_at(qtype, at, bits):
    data, size = blocks(qtype), GGML_TYPES[qtype].type_size
    data[1, 2 * size + at : 2 * size + at + 2] = [bits & 255, bits >> 8]
    data[2, at : at + 2] = [0, 0x7C]  # a later one is not the first
    found = first_bad(data, qtype)
    assert (found.row, found.at) == (1, 2)
    value = float(np.array(bits, np.uint16).view(np.float16))
    assert found.value == value or (math.isnan(found.value) and math.isnan(value))


def test_the_first_of_two_kinds_of_scale_counts():
    data = blocks("Q4_K")
    data[0, 144:146] = data[0, 2:4] = [0, 0x7C]
    assert first_bad(data, "Q4_K") == Bad(row=0, at=0, value=math.inf)


def test_powers_of_two():
    data = blocks("MXFP4")
    data[2, 17 * 3 + E8M0_SCALES["MXFP4"]] = 254
    assert first_bad(data, "MXFP4") is None
    data[2, 17 * 3 + E8M0_SCALES["MXFP4"]] = 255
    assert (first_bad(data, "MXFP4").row, first_bad(data, "MXFP4").at) == (2, 3)


@given(st.data())
def test_floats_agree_with_numpy_wherever_pieces_end(data):
    piece, finite.PIECE = finite.PIECE, 64
    try:
        shape = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 40)))
        bits = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 1 << 32, shape, dtype=np.uint32)
        for qtype, raw, values in (
            ("F32", bits, bits.view(np.float32)),
            ("BF16", (bits >> 16).astype(np.uint16), (bits & 0xFFFF0000).view(np.float32)),
            ("F16", (bits >> 16).astype(np.uint16), (bits >> 16).astype(np.uint16).view(np.float16)),
        ):
            wrong = np.argwhere(~np.isfinite(values))
            found = first_bad(raw.view(np.uint8), qtype)
            assert (None if found is None else [found.row, found.at]) == (wrong[0].tolist() if len(wrong) else None)
    finally:
        finite.PIECE = piece


class Source(ArraySource):
    """Tensors given as bytes."""

    def __init__(self, **tensors):
        self.tensors = {name: ArrayTensor(shape=shape, qtype=qtype) for name, (qtype, shape, _) in tensors.items()}
        self._rows = {name: rows for name, (_, _, rows) in tensors.items()}

    def rows(self, name):
        return self._rows[name]


def load(qtype, shape, rows, codecs=CODECS):
    return Weights(Source(w=(qtype, shape, rows)), codecs.__getitem__, ReferenceOps(threads=1))


def test_loading_names_tensor_row_and_column():
    values = np.ones((2, 3), np.float32)
    values[1, 2] = np.nan
    for take in (Weights.matrix, Weights.array):
        with pytest.raises(LoadError, match=r"tensor 'w' \(F32\) holds nan in row 1, column 2; expected finite"):
            take(load("F32", (2, 3), values.view(np.uint8)), "w")


def test_loading_names_tensor_and_block():
    data = blocks("Q8_0")
    data[1, 34:36] = [0, 0xFC]
    codecs = {"Q8_0": QuantCodec(name="Q8_0", ggml_type=8, block_size=32, type_size=34, encoder="", decoder="")}
    with pytest.raises(LoadError, match=r"tensor 'w' \(Q8_0\) holds -inf in row 1, as a scale of block 1"):
        load("Q8_0", (3, 128), data, codecs).matrix("w")


def decode_odd(data, out):
    out[...] = np.repeat(data.astype(np.float32), 2, axis=1)
    out[out == 255] = np.inf


def test_a_type_of_unknown_layout_is_decoded_to_look_at(monkeypatch):
    monkeypatch.setattr(loading, "_DECODED_AT_ONCE", 8)
    odd = QuantCodec(name="ODD", ggml_type=99, block_size=2, type_size=1, encoder="", decoder=f"{__name__}:decode_odd")
    data = np.zeros((5, 4), np.uint8)
    assert load("ODD", (5, 8), data, {"ODD": odd}).matrix("w").shape == (5, 8)
    data[3, 2] = 255
    with pytest.raises(LoadError, match=r"tensor 'w' \(ODD\) holds inf in row 3, as a scale of block 2"):
        load("ODD", (5, 8), data, {"ODD": odd}).matrix("w")


def test_whole_numbers_have_no_infinity():
    values = np.full((1, 2), 0x7F800000, np.int32)  # infinity, were it a float
    assert load("I32", (1, 2), values.view(np.uint8)).array("w").shape == (1, 2)
