"""How much memory this process may take now. Imports nothing heavy."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def available_memory(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Bytes that can be had without swapping, or None where the system does not say.

    Linux: ``MemAvailable``, or what the control group of the process leaves if that is less. macOS: all memory, since
    the system gives that of idle programs away (``hw.memsize``).
    """
    if sys.platform == "darwin":
        return _sysctl("hw.memsize")
    found = [bytes_ for bytes_ in (_meminfo(meminfo), _cgroup(cgroup)) if bytes_ is not None]
    return min(found, default=None)


def _meminfo(path: Path) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in path.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _cgroup(folder: Path) -> int | None:
    """What the limit of the control group leaves, of version 2 or 1; pages of files in it can be dropped."""
    for own, limit, used, inactive in (
        (folder, "memory.max", "memory.current", "inactive_file"),
        (folder / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with suppress(OSError, ValueError, KeyError):
            most = (own / limit).read_text(encoding="ascii").strip()
            if most == "max":
                continue
            stat = dict(line.split() for line in (own / "memory.stat").read_text(encoding="ascii").splitlines())
            return max(0, int(most) - int((own / used).read_text(encoding="ascii")) + int(stat[inactive]))
    return None


def _sysctl(name: str) -> int | None:
    import subprocess  # here: no other system needs it

    with suppress(OSError, ValueError, subprocess.SubprocessError):
        told = subprocess.run(["/usr/sbin/sysctl", "-n", name], capture_output=True, timeout=5, check=True)
        return int(told.stdout)
    return None
