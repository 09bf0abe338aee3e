"""What this machine's registers hold: the bottom of `hf2q.simd`, decided once when the layer is imported.

`HF2Q_SIMD_LANES` (16, 8 or 4) forces a narrower path: 8 compiles for x86-64-v3 (AVX2), 4 for bare x86-64 (SSE2), so one
AVX-512 machine can run the tests of all three. The width has to be known before anything is compiled, because the
kernels' vector types are built from it.

AArch64 takes the 4-lane path with the same sources: every operation is either generic LLVM or has a generic branch.
That path was written with care and has never been run on an ARM machine.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass

from hf2q.errors import UsageError
from hf2q.simd.host import host

AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})
"""What the 16-lane path needs: `dot` multiplies 16-bit lanes (BW), the others come with every CPU that has BW."""

ISA_VARIABLE = "HF2Q_CPU_ISA"
"""Forces a way of the cpu backend, and with it a width; see `hf2q.backends.cpu.isa`."""
ISA_LANES = {"amx": 16, "avx512": 16, "avxvnni": 8, "avx2": 8, "generic": 4}

FORCED = {
    8: ("x86-64-v3", frozenset({"avx", "avx2", "f16c", "fma", "ssse3", "sse4.1", "sse4.2"})),
    4: ("x86-64", frozenset[str]()),
}
"""Per forced width: LLVM's name of the CPU to compile for, and the features of it that the layer asks about."""
AVX_VNNI = "avxvnni"
"""Dot products of bytes in registers of eight lanes: on Intel's desktop CPUs since Alder Lake, without AVX-512."""


@dataclass(frozen=True)
class Machine:
    """`lanes` of float32 per register, usable `features` (LLVM's names), `cpu` to compile for (None: this one).

    added  features beyond those of `cpu`, as LLVM wants them
    """

    lanes: int
    features: frozenset[str]
    x86: bool
    cpu: str | None = None
    added: str = ""


def choose(
    forced: str | None, architecture: str, host: frozenset[str], variable: str = "HF2Q_SIMD_LANES", way: str = ""
) -> Machine:
    """The widest path of a CPU with the features `host`, or the `forced` one, which came from `variable`.

    `architecture` is `platform.machine()`, `way` what `HF2Q_CPU_ISA` asks for. Errors: UsageError for a forced width
    that is not 16, 8 or 4, or that this machine cannot run, and for a way that it has not the instructions for.
    """
    x86 = architecture.lower() in ("x86_64", "amd64")
    widest = 16 if host >= AVX512 else 8 if "avx2" in host else 4
    if not x86:
        widest = 4
    if not forced:
        return Machine(widest, host, x86)
    if forced not in ("16", "8", "4"):
        raise UsageError(f"HF2Q_SIMD_LANES is {forced!r}, expected 16, 8 or 4", hint="unset HF2Q_SIMD_LANES")
    lanes = int(forced)
    if lanes > widest:
        raise UsageError(
            f"{variable} wants {lanes} float32 lanes, but this machine ({architecture}) has at most {widest}",
            hint=f"set HF2Q_SIMD_LANES to {widest} or less, or unset {variable}",
        )
    if way == AVX_VNNI and AVX_VNNI not in host:
        raise UsageError(f"{variable} is {way!r}, but this processor has no AVX-VNNI", hint=f"unset {variable}")
    if lanes == widest and not (way == "avx2" and AVX_VNNI in host):
        return Machine(widest, host, x86)
    cpu, features = FORCED[lanes]
    if way == AVX_VNNI:
        return Machine(lanes, features | {AVX_VNNI}, x86, cpu, f"+{AVX_VNNI}")
    return Machine(lanes, features, x86, cpu)


def forced_by(environment: Mapping[str, str]) -> tuple[str | None, str]:
    """The width that the environment forces, if any, and the variable that does.

    Errors: UsageError when the two variables contradict each other. An unknown way is the cpu backend's to refuse.
    """
    lanes, way = environment.get("HF2Q_SIMD_LANES"), environment.get(ISA_VARIABLE, "")
    if way not in ISA_LANES:
        return lanes, "HF2Q_SIMD_LANES"
    wanted = str(ISA_LANES[way])
    if lanes and lanes != wanted:
        raise UsageError(f"{ISA_VARIABLE}={way} takes {wanted} lanes, HF2Q_SIMD_LANES is {lanes}", hint="unset one")
    return wanted, ISA_VARIABLE


def refuse_other_cpu(name: object, features: object) -> None:
    """Errors: UsageError when numba itself was told to compile for another CPU: the features of that one are unknown
    here, and an instruction that it lacks would end the process."""
    if name is not None or features is not None:
        raise UsageError(
            "NUMBA_CPU_NAME or NUMBA_CPU_FEATURES is set: hf2q cannot tell which instructions it may use",
            hint="unset both; HF2Q_SIMD_LANES=8 or 4 makes hf2q compile for an older CPU",
        )


def setup() -> Machine:
    """The machine of this process. Errors: UsageError as in `choose` and `refuse_other_cpu`."""
    refuse_other_cpu(os.environ.get("NUMBA_CPU_NAME"), os.environ.get("NUMBA_CPU_FEATURES"))
    forced, variable = forced_by(os.environ)
    return choose(forced, platform.machine(), frozenset(host().features), variable, os.environ.get(ISA_VARIABLE, ""))


MACHINE = setup()
LANES = MACHINE.lanes
"""float32 lanes of one register: 16, 8 or 4."""
WIDE = 2 * LANES
"""Lanes of the vectors that encoders compute with: two registers, so two independent chains hide the add latency."""
