"""What LLVM says about this CPU, without LLVM: its answer is kept on disk, by what the system says about the CPU.

Loading LLVM to ask takes a hundred milliseconds and as many megabytes. Linux describes the CPU in a few lines of text;
as long as those and the version of LLVM are the same, so is the answer. Elsewhere LLVM is asked every time.
"""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

from hf2q.installed import version_of
from hf2q.simd.digest import digest
from hf2q.simd.folder import cache_folder, read, write

CPUINFO = Path("/proc/cpuinfo")
ENOUGH = 1 << 13
"""Bytes of it that describe the first CPU. Asking for all makes Linux measure the clock of every one."""
TELLING = frozenset(
    {"vendor_id", "cpu family", "model", "model name", "stepping", "flags"}
    | {"CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features"}
)


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """LLVM's name of the CPU, and the features that it has, sorted."""

    cpu: str
    features: tuple[str, ...]


@cache
def host() -> Host:
    """This machine's CPU."""
    told = described()
    key = repr((told, platform.machine(), *versions())).encode()
    file = _file(key) if told else None
    data = read(file, key) if file else None
    if data is not None:
        with suppress(msgspec.MsgspecError):
            return msgspec.msgpack.decode(data, type=Host)
    found = asked()
    if file:
        with suppress(OSError):  # every kernel will say that it is not kept
            write(file, key, msgspec.msgpack.encode(found))
    return found


def asked() -> Host:
    """What LLVM says."""
    from llvmlite import binding

    features = sorted(name for name, present in binding.get_host_cpu_features().items() if present)
    return Host(cpu=binding.get_host_cpu_name(), features=tuple(features))


def described(source: Path = CPUINFO) -> str:
    """What the system says about its first CPU that does not change from one moment to the next; "" if nothing."""
    if not sys.platform.startswith("linux"):
        return ""
    try:
        with source.open("rb", buffering=0) as stream:
            text = stream.read(ENOUGH).decode(errors="replace")
    except OSError:
        return ""
    lines = text.partition("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if line.partition(":")[0].strip() in TELLING)


def _file(key: bytes) -> Path | None:
    try:
        return cache_folder() / f"cpu-{digest(key).hex()[:40]}.host"
    except RuntimeError:  # a user without a home folder
        return None


@cache
def versions() -> tuple[str, ...]:
    """Of what compiles: numba, llvmlite and Python, and the settings of numba in the environment."""
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("NUMBA_"))
    return version_of("numba"), version_of("llvmlite"), platform.python_version(), sys.platform, *settings
