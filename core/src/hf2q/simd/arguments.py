"""The types of a kernel's arguments, and what Python's values become on the way to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Argument:
    """A number of a numpy dtype, or with `ndim` a C-contiguous array of such, of any alignment."""

    dtype: str
    ndim: int | None = None
    readonly: bool = False


INT = Argument("int64")
"""The type of an integer argument of a kernel."""
FLOAT = Argument("float32")
"""The type of a float argument of a kernel."""


def reads(dtype: str, ndim: int = 2) -> Argument:
    """The type of an array argument that the kernel reads: C-contiguous, any alignment, read-only or not."""
    return Argument(dtype, ndim, readonly=True)


def writes(dtype: str, ndim: int = 2) -> Argument:
    """The type of an array argument that the kernel writes: C-contiguous, any alignment."""
    return Argument(dtype, ndim)


def flat(name: str, arguments: Sequence[Argument], values: Sequence[Any]) -> list[Any]:
    """The numbers that a compiled kernel takes: of an array the address of its data and its sizes.

    Errors: TypeError for another number of values, or an array of another dtype, shape or order, or one that is
    read-only where the kernel writes.
    """
    if len(values) != len(arguments):
        raise TypeError(f"kernel {name} takes {len(arguments)} arguments, found {len(values)}")
    numbers = []
    for k, (argument, value) in enumerate(zip(arguments, values, strict=True)):
        if argument.ndim is None:
            numbers.append(value)
            continue
        flags = getattr(value, "flags", None)
        if (
            flags is None
            or value.dtype != argument.dtype
            or value.ndim != argument.ndim
            or not flags.c_contiguous
            or not (argument.readonly or flags.writeable)
        ):
            raise TypeError(f"kernel {name}: argument {k} is {_told(value)}, expected {_wanted(argument)}")
        numbers.append(value.ctypes.data)
        numbers.extend(value.shape)
    return numbers


def _wanted(argument: Argument) -> str:
    access = "read-only or not" if argument.readonly else "writable"
    return f"a C-contiguous array of {argument.dtype} with {argument.ndim} dimensions, {access}"


def _told(value: Any) -> str:
    flags = getattr(value, "flags", None)
    if flags is None:
        return type(value).__name__
    order = "C-contiguous" if flags.c_contiguous else "not C-contiguous"
    return f"{order} {value.dtype} {value.shape}, {'writable' if flags.writeable else 'read-only'}"
