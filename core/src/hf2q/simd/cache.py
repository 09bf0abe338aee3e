"""Compiled kernels on disk: one file per kernel, signature, CPU, lane count and state of the sources.

A file is named by the hash of its whole key and appears by an atomic rename; whose it is and what it holds is checked
before anything of it is used (see `folder`). Neither numba nor LLVM is needed to find and load it. Where the folder
cannot be written, kernels are compiled in every process and a warning says so once per kernel.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hf2q.simd.arguments import Argument
from hf2q.simd.digest import digest
from hf2q.simd.folder import cache_folder, prune, read, write
from hf2q.simd.host import host, versions
from hf2q.simd.image import Code, packed, unpacked
from hf2q.simd.loader import Loaded, Unloadable, load
from hf2q.simd.machine import LANES, MACHINE
from hf2q.simd.sources import source_digest

logger = logging.getLogger(__name__)

SUFFIX = ".code"
KEPT_PER_KERNEL = 16
"""Files kept for one kernel, those last used: a few widths and a few versions of the sources."""


class KernelCache:
    """The file of one kernel."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Argument, ...]) -> None:
        self._function = function
        self._arguments = arguments
        self.name = f"{function.__module__}.{function.__qualname__}"

    def key(self) -> tuple[Any, ...]:
        """Everything that the code depends on; the last is None when that cannot be known."""
        cpu = (MACHINE.cpu, MACHINE.added) if MACHINE.cpu else (host().cpu, *host().features)
        machine = (platform.machine(), cpu, LANES)
        closure = tuple(_told(cell.cell_contents) for cell in self._function.__closure__ or ())
        return self.name, self._arguments, machine, versions(), closure, source_digest(self._function)

    def loaded(self) -> Loaded:
        """The kernel in memory, compiled if need be. Errors: as `compile_kernel`; Unloadable."""
        parts = self.key()
        key = repr(parts).encode()
        file = self._file(key) if parts[-1] is not None else None
        data = read(file, key) if file else None
        if data is not None:
            code = unpacked(data)
            try:
                if code is None:
                    raise Unloadable("its content is not that of a kernel")
                return load(code, self.name)
            except Unloadable as problem:
                logger.warning("%s cannot be used and is written anew: %s", file, problem)
        code = self._compiled()
        made = load(code, self.name)
        if file:
            self._save(file, key, code)
        return made

    def _compiled(self) -> Code:
        from hf2q.simd.compiler import compile_kernel

        logger.info("compiling kernel %s for %d lanes", self.name, LANES)
        started = time.perf_counter()
        code = compile_kernel(self._function, self._arguments)
        logger.debug("compiled kernel %s in %.2f s", self.name, time.perf_counter() - started)
        return code

    def _save(self, file: Path, key: bytes, code: Code) -> None:
        """A folder that cannot be written costs compile time only, so it is no error."""
        try:
            write(file, key, packed(code))
            prune(file.parent, self.stem, KEPT_PER_KERNEL)
        except OSError as problem:
            logger.warning("%s is not kept on disk: %s (HF2Q_CACHE_DIR names another folder)", self.name, problem)

    def _file(self, key: bytes) -> Path | None:
        try:
            folder = cache_folder()
        except RuntimeError as problem:  # a user without a home folder
            logger.warning("%s is not kept on disk: %s (HF2Q_CACHE_DIR names a folder)", self.name, problem)
            return None
        return folder / f"{self.stem}-{digest(key).hex()[:40]}{SUFFIX}"

    @property
    def stem(self) -> str:
        """What the names of this kernel's files begin with."""
        return self.name.replace("<", "").replace(">", "")


def _told(value: Any) -> str:
    """A value of a closure, the same in every process."""
    function = getattr(value, "py_func", None)
    return repr(value) if function is None else f"{function.__module__}.{function.__qualname__}"
