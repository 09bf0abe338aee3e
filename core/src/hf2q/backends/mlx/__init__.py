"""The MLX backend: Metal on macOS, CUDA on Linux with a GPU, and a slow CPU build that serves as a cross-check.

MLX itself is imported by `available` and by `MlxOps`, not here.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

__all__ = ["MlxOps", "available", "priority"]


def available() -> str | None:
    """None when MLX can be imported, else why not."""
    try:
        import mlx.core  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:  # missing, a broken library, or no usable device
        return f"MLX cannot be imported: {error}"
    return None


def priority() -> int:
    """First choice on a GPU; on a CPU its matrix products are slow, and anything made for CPUs goes first.

    MLX is not imported where there is no device that it could drive.
    """
    if not _may_have_gpu():
        return 10
    import mlx.core as mx

    return 100 if mx.default_device().type == mx.gpu else 10


def _may_have_gpu() -> bool:
    """Apple's own processors have one; Linux shows NVIDIA's as devices, in WSL 2 as /dev/dxg."""
    system = platform.system()
    if system == "Linux":
        return Path("/dev/dxg").exists() or any(Path("/dev").glob("nvidia*"))
    return system != "Darwin" or platform.machine() == "arm64"


def __getattr__(name: str) -> Any:
    if name == "MlxOps":  # the class needs MLX at import; asking whether it is available must not
        from hf2q.backends.mlx.ops import MlxOps

        return MlxOps
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
