"""The cpu backend: kernels on numpy arrays over weights that are repacked once, when loading.

Nothing heavy is imported here.

| module | job |
|---|---|
| team, teamwork | threads that stay and start a kernel together within about a microsecond |
| memory, native | large pages; addresses, atomics, calls of compiled kernels |
| isa | which instructions are used; HF2Q_CPU_ISA |
| blocks/ | where scales and codes lie in each block type, once repacked |
| matrix, loading, repack | `Matrix`: a weight, or a stack of experts; repacked in the background |
| linear, route, linear_job, job | `Linear`: products, one start of the team for all matrices that share activations |
| activations, bytes, integer | int8 kernels: one row, many rows |
| floats | float32 kernels: F32, F16 and BF16 weights, all weights in exact mode, rows for embeddings |
| tiles, tiled | bfloat16 kernels on AMX tiles for 32 rows and more |
| specialise | one kernel source for all qtypes |
| kernels/functions, elementwise, rowwise | activations; norms and rotary positions |
| kernels/attend, recurrent, delta_net, pending | attention; convolution and gated delta rule |
| kernels/chain, ffn, attention_layer, delta_layer | layers of a few tokens in one start of the team |
| ops | `CpuOps`: the op vocabulary |

`docs/explanation/cpu-backend.md` explains the numbers and the layout.
"""

from __future__ import annotations

from importlib.util import find_spec


def available() -> str | None:
    """Why it cannot run here, or None."""
    return None if find_spec("numba") is not None else "numba is not installed, which compiles its kernels"


def priority() -> int:
    """Before MLX on a CPU, which runs on reference kernels there; after MLX on a GPU."""
    return 20
