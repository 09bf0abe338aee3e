"""Which instructions the cpu backend uses: `amx`, `avx512`, `avxvnni`, `avx2` or `generic`. Chosen when kernels are
first wanted.

`HF2Q_CPU_ISA` forces a narrower way than the machine's best, for tests and comparisons: `avx512` leaves AMX out, the
others compile everything for an older processor (see `hf2q.simd.machine`). `amx-emulated` runs the AMX kernels with
tiles in ordinary memory, on any machine: slow, and only of use for testing them.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

from hf2q.errors import UsageError
from hf2q.simd.machine import AVX_VNNI, ISA_LANES, ISA_VARIABLE, LANES, MACHINE

TILES = frozenset({"amx-tile", "amx-bf16"})
EMULATED = "amx-emulated"
TILE_DATA = 18
"""The number of the state component that holds AMX tiles; ARCH_REQ_XCOMP_PERM of arch_prctl asks Linux for it."""


@cache
def isa() -> str:
    """The way taken in this process. Errors: UsageError when the one asked for is unknown or not to be had."""
    forced = os.environ.get(ISA_VARIABLE, "")
    if forced == EMULATED:
        return EMULATED
    if forced and forced not in ISA_LANES:
        raise UsageError(f"{ISA_VARIABLE} is {forced!r}, expected {', '.join(ISA_LANES)} or {EMULATED}")
    if forced != "amx" and forced:
        if ISA_LANES[forced] != LANES:
            raise UsageError(
                f"{ISA_VARIABLE} is {forced!r}, which takes {ISA_LANES[forced]} float32 lanes, but {LANES} are in use",
                hint=f"set {ISA_VARIABLE} before Python starts, or unset it; unset HF2Q_SIMD_LANES",
            )
        return forced
    problem = no_amx()
    if not problem:
        return "amx"
    if forced:
        raise UsageError(f"{ISA_VARIABLE} is 'amx', but {problem}", hint=f"unset {ISA_VARIABLE}")
    return {16: "avx512", 8: AVX_VNNI if AVX_VNNI in MACHINE.features else "avx2"}.get(LANES, "generic")


@cache
def no_amx() -> str:
    """Why there is no AMX, or "". Asks the kernel for the permission that AMX needs, which holds for all threads."""
    if LANES != 16 or not MACHINE.features >= TILES:
        return "this processor (or HF2Q_SIMD_LANES) has no amx-bf16"
    if not sys.platform.startswith("linux"):
        return "AMX is only asked for on Linux"
    system_call = ctypes.CDLL(None, use_errno=True).syscall
    system_call.restype = ctypes.c_long
    if system_call(ctypes.c_long(158), ctypes.c_long(0x1023), ctypes.c_long(TILE_DATA)):
        return f"the kernel refuses AMX: {os.strerror(ctypes.get_errno())}"
    return ""


def multiplies_tiles() -> bool:
    """Whether batches of quantized weights go through AMX tiles."""
    return isa() in ("amx", EMULATED)
