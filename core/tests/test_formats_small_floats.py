"""Small floats: every code against the definition of its format, written out another way."""

import numpy as np
import pytest

from hf2q.formats.small_floats import e2m1, e2m1_pairs, e4m3, e8m0


def value(code, exponent_bits, mantissa_bits, bias):
    """From the text of the bits."""
    bits = f"{code:0{1 + exponent_bits + mantissa_bits}b}"
    sign, exponent, mantissa = bits[0], int(bits[1 : 1 + exponent_bits], 2), bits[1 + exponent_bits :]
    fraction = sum(int(bit) / 2 ** (k + 1) for k, bit in enumerate(mantissa))
    size = (1 + fraction) * 2.0 ** (exponent - bias) if exponent else fraction * 2.0 ** (1 - bias)
    return -size if sign == "1" else size


def test_e4m3():
    table = e4m3()
    for code in range(256):
        if code in (0x7F, 0xFF):
            assert np.isnan(table[code])
        else:
            assert table[code] == value(code, 4, 3, 7)
    assert table[0x7E] == 448
    assert table[1] == 2.0**-9
    assert np.signbit(table[0x80])
    assert table[0x80] == 0


def test_e8m0():
    table = e8m0()
    assert np.isnan(table[255])
    assert [float(x) for x in table[:255]] == [2.0 ** (code - 127) for code in range(255)]


def test_e2m1():
    assert e2m1()[:8].tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert [float(x) for x in e2m1()] == [value(code, 2, 1, 1) for code in range(16)]
    assert np.signbit(e2m1()[8])
    assert e2m1_pairs()[0x52].tolist() == [1, 3]


def test_tables_cannot_be_changed():
    for table in (e4m3(), e8m0(), e2m1(), e2m1_pairs()):
        assert table.dtype == np.float32
        with pytest.raises(ValueError, match="read-only"):
            table[0] = 1
