"""From entries to what a codec gets for one tensor. Bottom of `hf2q.formats.imatrix`.

Experts are stored in one stacked tensor (``blk.3.ffn_up_exps.weight``) or, in old files, one by one
(``blk.3.ffn_up.7.weight``); a matrix computed with one kind of file serves the other as well. Source: llama.cpp,
tools/quantize/quantize.cpp, `load_imatrix`, and src/llama-quant.cpp, `llama_model_quantize_impl`, which knows equal
names only; the two ways to name experts: src/llama-arch.cpp.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from hf2q.errors import TensorMismatchError

if TYPE_CHECKING:
    from hf2q.formats.imatrix.record import Entry
    from hf2q.types import Float32, Shape

log = logging.getLogger(__name__)

EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
"""Rows of these are looked up, not multiplied, so what a matrix says about them may be about another use."""

_STACKED = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|down))_exps\.weight")
_SINGLE = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|down))\.(\d+)\.weight")


def weights_for(entries: Mapping[str, Entry], name: str, shape: Shape) -> Float32 | None:
    """See `hf2q.formats.imatrix.record.Imatrix.weights_for`."""
    matrices, columns = prod(shape[:-2]), shape[-1]
    entry = entries.get(name)
    if entry is not None:
        if entry.sums.size != matrices * columns or entry.sums.shape[1] % columns:
            if name in EMBEDDINGS:
                log.info("the importance of %s has another size and is not used", name)
                return None
            raise _mismatch(name, entry, f"expected {matrices} x {columns} for a tensor of shape {shape}")
        return mean_squares(entry).reshape(matrices, columns)
    stacked, single = _STACKED.fullmatch(name), _SINGLE.fullmatch(name)
    if stacked:
        return _joined(entries, stacked[1], matrices, columns)
    if single and f"{single[1]}_exps.weight" in entries:
        return _taken(entries[f"{single[1]}_exps.weight"], single[1], int(single[2]), columns)
    return None


def mean_squares(entry: Entry) -> Float32:
    """Sums divided by counts, float32 as the sums; 1 where a count is 0."""
    counts = entry.counts.astype(np.float32)[:, None]
    used = counts > 0
    return np.where(used, entry.sums / np.where(used, counts, np.float32(1)), np.float32(1))


def _joined(entries: Mapping[str, Entry], stem: str, experts: int, columns: int) -> Float32 | None:
    """For a stack, from entries of single experts."""
    found = {e: entry for e in range(experts) if (entry := entries.get(f"{stem}.{e}.weight")) is not None}
    if f"{stem}.{experts}.weight" in entries:
        raise TensorMismatchError(
            f"the importance matrix has an expert {experts} of {stem}, but the model has {experts} experts",
            hint="the matrix was computed with another model",
        )
    if not found:
        return None
    joined = np.ones((experts, columns), np.float32)
    for e, entry in found.items():
        if entry.sums.shape != (1, columns):
            raise _mismatch(f"{stem}.{e}.weight", entry, f"expected 1 x {columns}")
        joined[e] = mean_squares(entry)[0]
    if len(found) < experts:
        log.info("the importance matrix knows %d of the %d experts of %s", len(found), experts, stem)
    return joined


def _taken(entry: Entry, stem: str, expert: int, columns: int) -> Float32:
    """For a single expert, from the entry of a stack."""
    if entry.sums.shape[1] % columns or expert >= entry.sums.size // columns:
        raise _mismatch(f"{stem}_exps.weight", entry, f"expected {columns} for each expert up to {expert}")
    return mean_squares(entry).reshape(-1, columns)[expert : expert + 1]


def _mismatch(name: str, entry: Entry, expected: str) -> TensorMismatchError:
    n, width = entry.sums.shape
    return TensorMismatchError(
        f"the importance of {name} has {n} x {width} values, {expected}",
        hint="the importance matrix was computed with another model; --exclude-weights leaves entries out",
    )
