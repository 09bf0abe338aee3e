"""How tensors change on their way into GGUF. Each function is a `hf2q.types.Transform`, named by the catalog.

Source: transformers 5.17, conversion_mapping.py, ``nomic_bert``: its q, k and v are the thirds of Nomic's ``Wqkv``.
"""

from __future__ import annotations

from collections.abc import Sequence

from hf2q import rows
from hf2q.errors import TensorMismatchError
from hf2q.types import HParams, Rows, TensorSpec


def attn_qkv(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """The fused projection as it is; of separate ones first q, then k, then v."""
    if len(inputs) == 1:
        return inputs[0]
    n_embd = hparams.symbols["n_embd"]
    wrong = next((part.shape for part in inputs if part.shape != (n_embd, n_embd)), None)
    if wrong is not None:
        raise TensorMismatchError(f"shape {wrong} of a projection, expected {(n_embd, n_embd)}")
    return rows.concatenate(inputs)


def split_qkv(fused: Rows, hparams: HParams) -> tuple[Rows, Rows, Rows]:
    """The inverse of `attn_qkv` for separate projections: q, k and v of a fused one."""
    n_embd = hparams.symbols["n_embd"]
    shape = (n_embd, n_embd)
    return (
        rows.slice_rows(fused, 0, n_embd, shape),
        rows.slice_rows(fused, n_embd, 2 * n_embd, shape),
        rows.slice_rows(fused, 2 * n_embd, 3 * n_embd, shape),
    )
