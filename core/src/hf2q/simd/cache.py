"""Compiled kernels on disk: one file per kernel, signature, CPU, lane count and state of the sources.

A file is named by the hash of its whole key and appears by an atomic rename; what it holds is checked by a digest
before anything of it is used. Neither numba nor LLVM is needed to find and load it. Where the folder (see `folder`)
cannot be written, kernels are compiled in every process and a warning says so once per kernel.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hf2q.simd.arguments import Argument
from hf2q.simd.folder import cache_folder, read, write
from hf2q.simd.host import host, versions
from hf2q.simd.image import Code, packed, unpacked
from hf2q.simd.loader import Loaded, Unloadable, load
from hf2q.simd.machine import LANES, MACHINE
from hf2q.simd.sources import source_digest

logger = logging.getLogger(__name__)

SUFFIX = ".code"
KEPT_PER_KERNEL = 16
"""Newest files kept for one kernel: a few widths and a few versions of the sources."""


class KernelCache:
    """The file of one kernel."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Argument, ...]) -> None:
        self._function = function
        self._arguments = arguments
        self.name = f"{function.__module__}.{function.__qualname__}"

    def key(self) -> tuple[Any, ...]:
        """Everything that the code depends on; the last is None when that cannot be known."""
        cpu = (MACHINE.cpu,) if MACHINE.cpu else (host().cpu, *host().features)
        machine = (platform.machine(), cpu, LANES)
        closure = tuple(_told(cell.cell_contents) for cell in self._function.__closure__ or ())
        return self.name, self._arguments, machine, versions(), closure, source_digest(self._function)

    def loaded(self) -> Loaded:
        """The kernel in memory, compiled if need be. Errors: as `compile_kernel`; Unloadable."""
        file = self._file()
        data = read(file) if file else b""
        if data:
            code = unpacked(data)
            if code is not None:
                try:
                    return load(code, self.name)
                except Unloadable as problem:
                    logger.warning("%s cannot be used and is written anew: %s", file, problem)
            else:
                logger.warning("%s is damaged and is written anew", file)
        code = self._compiled()
        made = load(code, self.name)
        if file:
            self._save(file, code)
        return made

    def _compiled(self) -> Code:
        from hf2q.simd.compiler import compile_kernel

        logger.info("compiling kernel %s for %d lanes", self.name, LANES)
        started = time.perf_counter()
        code = compile_kernel(self._function, self._arguments)
        logger.debug("compiled kernel %s in %.2f s", self.name, time.perf_counter() - started)
        return code

    def _save(self, file: Path, code: Code) -> None:
        """A folder that cannot be written costs compile time only, so it is no error."""
        try:
            write(file, packed(code))
            self.prune()
        except OSError as problem:
            logger.warning("%s is not kept on disk: %s (HF2Q_CACHE_DIR names another folder)", self.name, problem)

    def _file(self) -> Path | None:
        key = self.key()
        if key[-1] is None:
            return None
        try:
            folder = cache_folder()
        except RuntimeError as problem:  # a user without a home folder
            logger.warning("%s is not kept on disk: %s (HF2Q_CACHE_DIR names a folder)", self.name, problem)
            return None
        return folder / f"{self.stem}-{hashlib.sha256(repr(key).encode()).hexdigest()[:40]}{SUFFIX}"

    @property
    def stem(self) -> str:
        """What the names of this kernel's files begin with."""
        return self.name.replace("<", "").replace(">", "")

    def prune(self) -> None:
        """Remove all but the newest of this kernel's files."""
        files = sorted(cache_folder().glob(f"{self.stem}-*{SUFFIX}"), key=_age, reverse=True)
        for file in files[KEPT_PER_KERNEL:]:
            file.unlink(missing_ok=True)


def _told(value: Any) -> str:
    """A value of a closure, the same in every process."""
    function = getattr(value, "py_func", None)
    return repr(value) if function is None else f"{function.__module__}.{function.__qualname__}"


def _age(path: Path) -> float:
    """When it was written; another process may have removed it meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
