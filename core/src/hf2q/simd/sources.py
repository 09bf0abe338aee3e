"""From which sources a kernel is compiled, as one digest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from hf2q.simd.digest import digest


def source_digest(function: Callable[..., Any]) -> str | None:
    """A digest over all sources that `function` may be compiled from: this layer, and for the kernel and everything of
    kernels that it reaches the whole import package they live in (of `hf2q` itself only their own folder).

    A package is read once in a process. None if one of the sources was not read from a file (typed at a prompt, say):
    then nothing can tell when it changes.
    """
    files = {part.__code__.co_filename for part in _reachable(function)} | {__file__}
    packages = {_package(file) for file in files}
    parts = []
    for place, deep in sorted(packages):
        one = package_digest(place, deep)
        if one is None:
            return None
        parts.append(f"{place}\n".encode() + one)
    return digest(*parts).hex()


@cache
def _package(name: str) -> tuple[Path, bool]:
    """The outermost package around a file and True, but of `hf2q` the folder, and of no package the file, and False."""
    file = Path(name)
    if not (file.parent / "__init__.py").exists():
        return file, False
    root = file.parent
    while (root.parent / "__init__.py").exists():
        root = root.parent
    return (file.parent, False) if root.name == "hf2q" else (root, True)


@cache
def package_digest(place: Path, deep: bool) -> bytes | None:
    """Over the sources in a folder, or of one file; None if that is no file."""
    files = sorted(place.rglob("*.py") if deep else place.glob("*.py")) if place.is_dir() else [place]
    try:
        return digest(*(f"{file}\n".encode() + digest(file.read_bytes()) for file in files))
    except OSError:
        return None


def _reachable(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """`function` and the functions behind the parts and operations that it names, directly or not."""
    found: dict[Callable[..., Any], None] = {}
    ahead = [function]
    while ahead:
        part = ahead.pop()
        if part in found:
            continue
        found[part] = None
        values: list[Any] = [part.__globals__.get(name) for name in _names(part.__code__)]
        values += [cell.cell_contents for cell in part.__closure__ or ()]
        # `py_func` is numba's name for it, and so ours
        ahead += [value.py_func for value in values if hasattr(value, "py_func")]
    return list(found)


@cache
def _names(code: CodeType) -> tuple[str, ...]:
    def all_names(code: CodeType) -> Iterator[str]:
        yield from code.co_names
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from all_names(constant)

    return tuple(all_names(code))
