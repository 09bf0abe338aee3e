"""For each output tensor: its place in the converter's order, the type it has before quantization, and its rows.

Source of order and types: llama.cpp, conversion/base.py, `ModelBase.__init__` (``--outtype auto``) and
`prepare_tensors`; src/llama-model-loader.h, `weight_name_comparer` (the order of llama-quantize).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import prod

from hf2q.catalog import Claim
from hf2q.convert.scaled import ScaledCheckpoint
from hf2q.errors import ContractError, TensorMismatchError, listing
from hf2q.formats.safetensors import Checkpoint
from hf2q.types import HParams, Rows, Shape, TensorInfo, TensorSpec, resolve

INTERMEDIATES = ("f16", "bf16", "f32")

INDEX_LIMIT = 1 << 20
"""Values up to which a tensor's size is not compared with that of its inputs: nothing made for it takes much memory."""


def build_rows(claim: Claim, checkpoint: Checkpoint | ScaledCheckpoint, hparams: HParams) -> Rows:
    """The tensor as lazy rows. Errors: TensorMismatchError naming tensors and shapes."""
    spec = claim.spec
    inputs = [checkpoint.rows(name) for name in claim.inputs]
    try:
        if spec.rule.transform:
            _check_size(spec, inputs)
            made: Rows = resolve(spec.rule.transform)(inputs, spec, hparams)
        elif len(inputs) == 1:
            made = inputs[0]
        else:
            raise ContractError(f"rule {spec.rule.name!r} has {len(inputs)} inputs and no transform")
        if made.shape != spec.shape:
            hint = _vocabulary_hint(spec, made.shape)
            raise TensorMismatchError(f"shape {made.shape}, expected {spec.shape}", hint=hint)
    except TensorMismatchError as error:
        raise TensorMismatchError(
            f"{spec.name}, made from {listing(claim.inputs, 3)}: {error.message}",
            hint=error.hint or "config.json and the weights do not belong together, or the checkpoint is damaged",
        ) from error
    return made


def _check_size(spec: TensorSpec, inputs: Sequence[Rows]) -> None:
    """Refuse a tensor that would hold more than its inputs do, before a transform makes an index for it.

    A size in config.json may say anything, and the smaller contradictions are put better by the transforms.
    """
    values, there = prod(spec.shape), sum(prod(one.shape) for one in inputs)
    if values > max(there, INDEX_LIMIT):
        found = f"{there} values of shape {listing({str(one.shape) for one in inputs}, 3)}" if inputs else "config.json"
        hint = _vocabulary_hint(spec, inputs[0].shape) if len(inputs) == 1 else None
        raise TensorMismatchError(f"shape {spec.shape} is too large for {found}", hint=hint)


def _vocabulary_hint(spec: TensorSpec, found: Shape) -> str | None:
    """What to do when a table has not the rows that config.json says; None when that is not what is wrong."""
    if spec.rule.shape[:1] != ("n_vocab",) or len(found) < 2 or found[1:] != spec.shape[1:]:
        return None
    return (
        f"the vocabulary was resized: set vocab_size in config.json to {found[0]}, the rows of the table, in "
        "text_config if there is one; or take the config.json that was saved with these weights"
    )


def in_converter_order(claims: Iterable[Claim], names: Iterable[str]) -> list[Claim]:
    """Claims as the converter writes them; `names` are the checkpoint's tensors in the order they are visited.

    A tensor is written when the last of its inputs is met, and before all others when it has none. Experts that come
    one by one are collected for a whole block, and its stacks are written together, in catalog order. What
    the converter makes before it looks at the rest, a rule says with `TensorRule.early`.
    """
    order = {name: index for index, name in enumerate(names)}
    claims = list(claims)
    last = [max((order[name] for name in claim.inputs), default=-1) for claim in claims]
    block_last: dict[int | None, int] = {}
    for claim, index in zip(claims, last, strict=True):
        if claim.stacked:
            block_last[claim.spec.block] = max(index, block_last.get(claim.spec.block, 0))
    keys = [
        (0, c.spec.rule.early) if c.spec.rule.early else (1, block_last[c.spec.block] if c.stacked else index)
        for c, index in zip(claims, last, strict=True)
    ]
    return [claim for _, claim in sorted(zip(keys, claims, strict=True), key=lambda pair: pair[0])]


def quantize_order(name: str) -> tuple[int, bytes]:
    """Sort key of llama-quantize: tensors outside blocks, then by block number; names in byte order."""
    block = re.match(r"blk\.(\d+)\.", name)
    return int(block[1]) if block else -1, name.encode()


def squeezed(shape: Shape) -> Shape:
    """A shape without outer sizes of 1, which ggml does not count as dimensions."""
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape


def automatic(tensors: Sequence[TensorInfo]) -> str:
    """What ``--outtype auto`` picks: the first 16-bit float type among matrices, f16 when there is none."""
    for tensor in tensors:
        if len(tensor.shape) >= 2 and tensor.dtype in ("BF16", "F16"):
            return tensor.dtype.lower()
    return "f16"


def kept(claim: Claim) -> tuple[str, str]:
    """The type that the converter stores this tensor as whatever is asked for, and why; ("", "") when there is none."""
    rule, name, shape = claim.spec.rule, claim.spec.name, claim.spec.shape
    if rule.stored_as and rule.stored_as != "F32":
        return rule.stored_as, f"always {rule.stored_as}"
    if len(shape) <= 1:
        return "F32", "one-dimensional"
    if name.endswith("_norm.weight"):
        return "F32", "a norm"
    if rule.stored_as:
        return "F32", "always F32"
    return ("", "") if name.endswith(".weight") else ("F32", "not a weight matrix")
