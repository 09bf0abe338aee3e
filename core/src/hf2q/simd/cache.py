"""Compiled kernels on disk: one file per kernel, signature, CPU, lane count and state of the sources.

numba's own cache does not fit: it looks at the kernel's file only (an edit of a helper, or of this layer, would keep
stale code), and its index and data files are written separately, so two processes that compile different variants at
once can leave one under the other's name. Here a file is named by the hash of its whole key and appears by an atomic
rename; what it holds is checked by a digest before anything of it is used.

The folder is `$HF2Q_CACHE_DIR/kernels`, else `$XDG_CACHE_HOME/hf2q/kernels`, else `~/.cache/hf2q/kernels`. It holds
machine code that later runs: it is private to the user, like `__pycache__`. Where it cannot be written, kernels are
compiled in every process and a warning says so once per kernel.

This leans on three names inside numba (`FunctionCache._index_key`, `CompileResult._reduce`, `_rebuild`), which is why
numba is pinned; `core/tests/test_simd_cache.py` covers them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import llvmlite
import numba
from numba.core.caching import FunctionCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from hf2q.simd.machine import LANES

logger = logging.getLogger(__name__)

SUFFIX = ".kernel"
KEPT_PER_KERNEL = 16
"""Newest files kept for one kernel: a few widths and a few versions of the sources."""


def cache_folder() -> Path:
    """Where compiled kernels are kept; see above. RuntimeError if that needs a home folder and the user has none."""
    if own := os.environ.get("HF2Q_CACHE_DIR"):
        return Path(own) / "kernels"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hf2q" / "kernels"


def source_digest(function: Callable[..., Any]) -> str | None:
    """SHA-256 over all sources that `function` may be compiled from: this layer, and for the kernel and every compiled
    function that it reaches the whole import package they live in (of `hf2q` itself only their own folder).

    None if one of them was not read from a file (typed at a prompt, say): then nothing can tell when it changes.
    """
    files = set(Path(__file__).parent.glob("*.py"))
    for source in {Path(part.__code__.co_filename) for part in _reachable(function)}:
        if source not in files:  # with it are all the others of its package
            files |= _package(source)
    total = hashlib.sha256()
    try:
        for file in sorted(files):
            total.update(f"{file}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
    except OSError:
        return None
    return total.hexdigest()


def _package(file: Path) -> set[Path]:
    """The sources of the outermost package around `file`, or `file` alone."""
    if not (file.parent / "__init__.py").exists():
        return {file}
    root = file.parent
    while (root.parent / "__init__.py").exists():
        root = root.parent
    return set(file.parent.glob("*.py") if root.name == "hf2q" else root.rglob("*.py"))


def _reachable(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """`function` and the compiled functions that it calls by name, directly or not."""
    found: list[Callable[..., Any]] = []
    ahead = [function]
    while ahead:
        part = ahead.pop()
        if part in found:
            continue
        found.append(part)
        values: list[Any] = [part.__globals__.get(name) for name in _names(part.__code__)]
        values += [cell.cell_contents for cell in part.__closure__ or ()]
        ahead += [value.py_func for value in values if hasattr(value, "py_func")]
    return found


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


class KernelCache(FunctionCache):  # type: ignore[misc]
    """What a numba dispatcher asks for compiled code of one kernel; `_index_key` is numba's hook for the key."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._py_func = function
        self._name = f"{function.__module__}.{function.__qualname__}"
        self._started = 0.0

    @property
    def cache_path(self) -> str:
        return str(cache_folder())

    def _index_key(self, signature: Any, codegen: Any) -> tuple[Any, ...]:
        versions = (numba.__version__, llvmlite.__version__, platform.python_version())
        base: tuple[Any, ...] = super()._index_key(signature, codegen)
        return (*base, LANES, versions, source_digest(self._py_func))

    def _file(self, signature: Any, codegen: Any) -> Path | None:
        key = self._index_key(signature, codegen)
        if key[-1] is None:
            return None
        try:
            folder = cache_folder()
        except RuntimeError as problem:  # a user without a home folder
            logger.warning("%s is not kept on disk: %s (HF2Q_CACHE_DIR names a folder)", self._name, problem)
            return None
        return folder / f"{self._stem()}-{hashlib.sha256(repr(key).encode()).hexdigest()[:40]}{SUFFIX}"

    def _stem(self) -> str:
        return self._name.replace("<", "").replace(">", "")

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The compiled code, or None when it has to be compiled; then the time until `save_overload` is logged."""
        target_context.refresh()
        file = self._file(signature, target_context.codegen())
        data = _read(file) if file else b""
        digest, body = data[:32], data[32:]
        if body and hashlib.sha256(body).digest() == digest:
            return CompileResult._rebuild(target_context, *pickle.loads(body))
        if data:
            logger.warning("%s is damaged and is written anew", file)
        logger.info("compiling kernel %s for %d lanes", self._name, LANES)
        self._started = time.perf_counter()
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep what was compiled. A folder that cannot be written costs compile time only, so it is no error."""
        logger.debug("compiled kernel %s in %.2f s", self._name, time.perf_counter() - self._started)
        file = self._file(signature, result.codegen)
        if file is None:
            return
        if result.lifted or result.library.has_dynamic_globals:
            raise TypeError(f"{self._name} cannot be kept on disk: it holds addresses of this process")
        body = dumps(result._reduce())
        try:
            _write(file, hashlib.sha256(body).digest() + body)
            self._prune()
        except OSError as problem:
            logger.warning("%s is not kept on disk: %s (HF2Q_CACHE_DIR names another folder)", self._name, problem)

    def _prune(self) -> None:
        files = sorted(cache_folder().glob(f"{self._stem()}-*{SUFFIX}"), key=_age, reverse=True)
        for file in files[KEPT_PER_KERNEL:]:
            file.unlink(missing_ok=True)

    def flush(self) -> None:
        """Forget this kernel's files, as numba's own caches do."""
        for file in cache_folder().glob(f"{self._stem()}-*{SUFFIX}"):
            file.unlink(missing_ok=True)


def _age(path: Path) -> float:
    """When it was written; another process may have removed it meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _read(path: Path) -> bytes:
    """What the file holds; nothing if it is not there."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _write(path: Path, data: bytes) -> None:
    """`path` appears whole or not at all, also when two processes write it at once."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
