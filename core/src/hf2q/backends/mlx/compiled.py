"""Functions that MLX has compiled: traced once for each kind of arguments, then replayed, with elementwise steps fused.

In decoding, starting operations takes longer than what they do. A replay starts fewer of them, and needs no Python for
each. MLX keys its traces by the address of the function, in a cache of each thread, and what it traced runs on the
thread's own stream. Therefore each thread has compiled functions of its own here: none is ever run by two threads, and
MLX drops a trace together with its function. Functions get all arrays as arguments, so that a trace keeps no weights.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import prod
from typing import Any

import mlx.core as mx

from hf2q.types import Shape

AT_MOST = 32
"""Tokens, of all rows together, up to which shapes are worth a trace: decoding, and the verification of drafts."""


def few(shape: Shape) -> bool:
    """Whether the leading axes (rows and tokens) of an array hold so few that a trace of their shapes pays."""
    return 0 < prod(shape) <= AT_MOST


class Compiled:
    """Compiled forms of functions from trees of arrays and constants to trees of arrays.

    active  whether to compile at all; functions are called as they are where not
    """

    def __init__(self, *, active: bool) -> None:
        self.active = active
        self._own = _Functions()

    def exact(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """`function`, traced for the very shapes of the arguments: only where `few` keeps their number small."""
        if not self.active:
            return function(*arguments)
        return self._own.get(function, shapeless=False)(*arguments)

    def any_shape(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """`function` of elementwise operations and nothing else, with one trace for all shapes."""
        if not self.active:
            return function(*arguments)
        return self._own.get(function, shapeless=True)(*arguments)


class _Functions(threading.local):
    """Those of one thread."""

    def __init__(self) -> None:
        self._compiled: dict[Callable[..., Any], Any] = {}

    def get(self, function: Callable[..., Any], *, shapeless: bool) -> Any:
        found = self._compiled.get(function)
        if found is None:
            # an address of its own for each trace: `function` itself has one for all threads and models
            found = mx.compile(lambda *arguments: function(*arguments), shapeless=shapeless)
            self._compiled[function] = found
        return found
