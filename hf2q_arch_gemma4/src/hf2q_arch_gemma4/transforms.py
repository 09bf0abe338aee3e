"""How tensors come about that are no plain copies. Each function is a `hf2q.types.Transform`, named by a catalog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from hf2q import rows
from hf2q.errors import ContractError, TensorMismatchError
from hf2q.types import HParams, Rows, TensorSpec
from hf2q_arch_gemma4.hparams import Gemma4HParams

STANDSTILL = 1e30
"""An angle divided by it is 0: the pair does not rotate."""


def rope_freqs(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """What the angles of full attention are divided by: 1 for pairs that rotate, `STANDSTILL` for the others.

    Source: llama.cpp, conversion/gemma.py, `Gemma4Model.generate_extra_tensors`.
    """
    rotated = cast("Gemma4HParams", hparams).rotated_pairs
    if rotated is None:
        raise ContractError("how many pairs of a head rotate is known from config.json only, not from GGUF metadata")
    factors = np.full(spec.shape, STANDSTILL, np.float32)
    factors[:rotated] = 1
    return rows.from_array(factors)


def first_rows(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """The rows of tokens that the tokenizer has; a checkpoint may have been padded with more."""
    (source,) = inputs
    n_vocab, columns = spec.shape
    if source.shape == spec.shape:
        return source
    if len(source.shape) != 2 or source.shape[0] < n_vocab or source.shape[1] != columns:
        raise TensorMismatchError(f"shape {source.shape}, expected {spec.shape}, or more rows")
    return rows.slice_rows(source, 0, n_vocab, spec.shape)


def patches(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """Rows of (y, x, colour) become a convolution (colour, y, x).

    Source: llama.cpp, conversion/gemma.py, `Gemma4VisionAudioModel.modify_tensors`.
    """
    (source,) = inputs
    n_embd, colours, height, width = spec.shape
    if source.shape != (n_embd, height * width * colours):
        raise TensorMismatchError(f"shape {source.shape}, expected {(n_embd, height * width * colours)}")
    order = np.arange(height * width * colours).reshape(height, width, colours).transpose(2, 0, 1).reshape(-1)
    return rows.reshape(rows.gather_columns(source, order), spec.shape)


def vector_of_one(inputs: Sequence[Rows], spec: TensorSpec, hparams: HParams) -> Rows:
    """A scalar, which GGUF keeps as a vector."""
    (source,) = inputs
    if source.shape not in ((), spec.shape):
        raise TensorMismatchError(f"shape {source.shape}, expected {()}")
    return rows.View(spec.shape, source.dtype, source.read)
