"""Compiled code becomes functions of this process, without LLVM where the code is an image (see `image`).

An image is copied into pages of its own, its slots are filled, and then the pages may be run but no longer written.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from hf2q.simd.image import Code

FASTCALL = 0x80
"""METH_FASTCALL: https://docs.python.org/3/c-api/structures.html#c.METH_FASTCALL."""
READ_AND_RUN = 1 | 4
"""PROT_READ | PROT_EXEC of mmap."""


class Unloadable(Exception):
    """Code that cannot be put into memory here."""


class Loaded(NamedTuple):
    """`call` takes the numbers of `arguments.flat`; `entry` is the address of the kernel itself.

    Both are valid as long as `call` lives.
    """

    call: Callable[..., Any]
    entry: int


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def load(code: Code, name: str) -> Loaded:
    """Put code into memory. Errors: Unloadable."""
    known = {name: _resolve(name) for name in code.imports}
    if code.kind == "image":
        start, held = _map(code, known)
        assert isinstance(code.entry, int)
        assert isinstance(code.call, int)
        entry, call = start + code.entry, start + code.call
    else:  # LLVM ends the process when it misses a name, so it is good that all are known
        from hf2q.simd.llvm import addresses

        entry, call, held = addresses(code)
    method = _Method(name.encode(), call, FASTCALL, None)
    # the object that the function is bound to keeps alive what it needs; numba's kernels get it as an unused argument
    return Loaded(_new_function()(ctypes.byref(method), (method, held), None), entry)


def _map(code: Code, known: dict[str, int]) -> tuple[int, Any]:
    """Where an image begins in memory, and what keeps it there. `known` are the addresses of what it imports."""
    try:
        pages = mmap.mmap(-1, len(code.body), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as problem:
        raise Unloadable(f"no memory for code: {problem}") from problem
    pages[: len(code.body)] = code.body
    held = ctypes.c_char.from_buffer(pages)
    start = ctypes.addressof(held)
    for name, slots in code.imports.items():
        for at in slots:
            pages[at : at + 8] = known[name].to_bytes(8, "little")
    for at, to in code.bases:
        pages[at : at + 8] = (start + to).to_bytes(8, "little")
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(start, len(pages), READ_AND_RUN):
        raise Unloadable(f"the system does not let memory be run (errno {ctypes.get_errno()})")
    return start, held


@cache
def _resolve(name: str) -> int:
    """The address of a function or variable of the C library or of Python."""
    for library in (None, "libm.so.6"):
        try:
            found = getattr(ctypes.CDLL(library), name)
        except (AttributeError, OSError):
            continue
        return ctypes.cast(found, ctypes.c_void_p).value or 0
    raise Unloadable(f"nothing here is called {name}")


@cache
def _new_function() -> Any:
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return new
