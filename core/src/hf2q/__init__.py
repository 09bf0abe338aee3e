"""hf2q: convert Hugging Face checkpoints to quantized GGUF, prove them right, serve them.

    import hf2q
    model = hf2q.load("model.gguf")
    for event in model.generate("The capital of Japan is"):
        print(event.text, end="")

Importing this package imports neither numpy, MLX nor numba; `load` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf2q.serve.load import load

__all__ = ["__version__", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # `hf2q.load` without paying for numpy and MLX in every `hf2q --help` (PEP 562)
    if name == "load":
        from hf2q.serve.load import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
