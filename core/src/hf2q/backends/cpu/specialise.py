"""One kernel source for all qtypes: `specialise` compiles a function anew with other values behind some of its names.

numba takes globals for constants, so what is named here costs nothing when the kernel runs. The copy carries the qtype
in its name, which keeps the compiled codes apart on disk: the values themselves are not part of the key.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from hf2q.simd import INT, Kernel, inline


def specialise(template: Callable[..., Any], suffix: str, **names: Any) -> Kernel[[int, int, int], None]:
    """A kernel of three INT arguments from `template`, whose globals are replaced by `names`."""
    return Kernel(_copy(template, suffix, names), (INT, INT, INT))


def specialise_part(template: Callable[..., Any], suffix: str, **names: Any) -> Any:
    """A part of kernels, likewise."""
    return inline(_copy(template, suffix, names))


def _copy(template: Callable[..., Any], suffix: str, names: dict[str, Any]) -> Any:
    missing = names.keys() - template.__globals__.keys()
    if missing:
        raise NameError(f"{template.__name__} knows no {', '.join(sorted(missing))}")
    name = f"{template.__name__}_{suffix}"
    copy = FunctionType(template.__code__, {**template.__globals__, **names}, name)
    copy.__qualname__, copy.__module__, copy.__doc__ = name, template.__module__, template.__doc__
    return copy
