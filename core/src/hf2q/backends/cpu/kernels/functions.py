"""Functions of vectors: e^x, the error function, and the activations made of them."""

from __future__ import annotations

from hf2q.simd import F32, I32, Vector, as_float, as_int, fma, inline, where

F, I = F32(16), I32(16)  # noqa: E741

LOG2_E = 1.44269504088896341
LN_2_HIGH, LN_2_LOW = 0.693359375, -2.12194440e-4
"""ln 2 in two parts, the first with so few bits that its product with a small integer is exact."""
ROUND = 12582912.0
"""1.5 · 2^23: adding it and taking it off again rounds to the nearest integer, ties to even."""
LEAST, MOST = -87.0, 88.0
"""Below and above these e^x is 0 or not a float32 any more."""


@inline
def exp(x: Vector) -> Vector:
    """e^x to about 1 ulp; 0 below -87, at most e^88. Polynomial: Cephes, single/expf.c."""
    z = where(x < LEAST, LEAST, where(x > MOST, MOST, x))
    n = (z * LOG2_E + ROUND) - ROUND
    r = fma(n, F(-LN_2_LOW), fma(n, F(-LN_2_HIGH), z))
    p = fma(F(1.9875691500e-4), r, F(1.3981999507e-3))
    p = fma(p, r, F(8.3334519073e-3))
    p = fma(p, r, F(4.1665795894e-2))
    p = fma(p, r, F(1.6666665459e-1))
    p = fma(p, r, F(5.0000001201e-1))
    y = fma(p * r, r, r) + 1
    return where(x < LEAST, F(0), as_float(as_int(y) + (I(n) << 23)))


@inline
def sigmoid(x: Vector) -> Vector:
    """1 / (1 + e^-x)."""
    return F(1) / (exp(-x) + 1)


@inline
def softplus(x: Vector) -> Vector:
    """log(1 + e^x) = max(x, 0) + log(w), w = 1 + u, u = e^-|x|; log(w) · u / (w - 1) undoes the rounding of w.

    Polynomial for the logarithm: Cephes, single/logf.c.
    """
    u = exp(-abs(x))
    w = u + 1
    high = w > 1.41421356237
    z = where(high, w * 0.5, w) - 1
    s = z * z
    p = fma(F(7.0376836292e-2), z, F(-1.1514610310e-1))
    p = fma(p, z, F(1.1676998740e-1))
    p = fma(p, z, F(-1.2420140846e-1))
    p = fma(p, z, F(1.4249322787e-1))
    p = fma(p, z, F(-1.6668057665e-1))
    p = fma(p, z, F(2.0000714765e-1))
    p = fma(p, z, F(-2.4999993993e-1))
    p = fma(p, z, F(3.3333331174e-1))
    e = where(high, F(1), F(0))
    y = fma(e, F(LN_2_LOW), p * z * s) - s * 0.5
    log = fma(e, F(LN_2_HIGH), z + y)
    return where(x > 0, x, F(0)) + where(w > 1, log * (u / where(w > 1, w - 1, F(1))), u)


@inline
def silu(x: Vector) -> Vector:
    """x · sigmoid(x)."""
    return x * sigmoid(x)


@inline
def gelu_tanh(x: Vector) -> Vector:
    """x / 2 · (1 + tanh z) = x · sigmoid(2 z), with z = sqrt(2 / π) · (x + 0.044715 x³)."""
    z = x * fma(x * x, F(0.044715 * 0.7978845608028654), F(0.7978845608028654))
    return x * sigmoid(z + z)


@inline
def gelu(x: Vector) -> Vector:
    """x / 2 · (1 + erf(x / sqrt 2)). Rational function for erf: Eigen, MathFunctionsImpl.h, generic_fast_erf_float."""
    z = x * 0.70710678118654752
    far = abs(z) > 3.832506856900711
    z = where(far, F(0), z)
    s = z * z
    a = fma(F(-2.72614225801306e-10), s, F(2.77068142495902e-08))
    a = fma(a, s, F(-2.10102402082508e-06))
    a = fma(a, s, F(-5.69250639462346e-05))
    a = fma(a, s, F(-7.34990630326855e-04))
    a = fma(a, s, F(-2.95459980854025e-03))
    a = fma(a, s, F(-1.60960333262415e-02))
    b = fma(F(-1.45660718464996e-05), s, F(-2.13374055278905e-04))
    b = fma(b, s, F(-1.68282697438203e-03))
    b = fma(b, s, F(-7.37332916720468e-03))
    b = fma(b, s, F(-1.42647390514189e-02))
    return where(far, where(x < 0, F(0), x), x * 0.5 * (z * a / b + 1))
