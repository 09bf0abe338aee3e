"""Whether what compiles kernels is installed, without importing it."""

from __future__ import annotations

from importlib.util import find_spec

from hf2q.errors import LoadError

for _name in ("numba", "llvmlite"):
    if find_spec(_name) is None:
        raise LoadError(
            f"hf2q.simd compiles its kernels with numba, which cannot be imported: there is no {_name}",
            hint='pip install "hf2q[simd]"',
        )
