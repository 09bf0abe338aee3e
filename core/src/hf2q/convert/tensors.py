"""For each output tensor: its place in the converter's order, the type it has before quantization, and its rows.

Source of order and types: llama.cpp, conversion/base.py, `ModelBase.__init__` (``--outtype auto``) and
`prepare_tensors`; src/llama-model-loader.h, `weight_name_comparer` (the order of llama-quantize).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hf2q.catalog import Claim
from hf2q.errors import ContractError, TensorMismatchError, listing
from hf2q.formats.safetensors import Checkpoint
from hf2q.types import HParams, Rows, Shape, TensorInfo, resolve

INTERMEDIATES = ("f16", "bf16", "f32")


def build_rows(claim: Claim, checkpoint: Checkpoint, hparams: HParams) -> Rows:
    """The tensor as lazy rows. Errors: TensorMismatchError naming tensors and shapes."""
    spec = claim.spec
    inputs = [checkpoint.rows(name) for name in claim.inputs]
    try:
        if spec.rule.transform:
            made: Rows = resolve(spec.rule.transform)(inputs, spec, hparams)
        elif len(inputs) == 1:
            made = inputs[0]
        else:
            raise ContractError(f"rule {spec.rule.name!r} has {len(inputs)} inputs and no transform")
        if made.shape != spec.shape:
            raise TensorMismatchError(f"shape {made.shape}, expected {spec.shape}")
    except TensorMismatchError as error:
        raise TensorMismatchError(
            f"{spec.name}, made from {listing(claim.inputs, 3)}: {error.message}",
            hint=error.hint or "config.json and the weights do not belong together, or the checkpoint is damaged",
        ) from error
    return made


def in_converter_order(claims: Iterable[Claim], names: Iterable[str]) -> list[Claim]:
    """Claims as the converter writes them; `names` are the checkpoint's tensors in the order they are visited.

    A tensor is written when the last of its inputs is met. Experts that come one by one are collected for a whole
    block, and its stacks are written together, in catalog order.
    """
    order = {name: index for index, name in enumerate(names)}
    claims = list(claims)
    last = [max(order[name] for name in claim.inputs) for claim in claims]
    block_last: dict[int | None, int] = {}
    for claim, index in zip(claims, last, strict=True):
        if claim.stacked:
            block_last[claim.spec.block] = max(index, block_last.get(claim.spec.block, 0))
    keys = [block_last[c.spec.block] if c.stacked else index for c, index in zip(claims, last, strict=True)]
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


def kept_because(claim: Claim) -> str:
    """Why the converter stores this tensor as F32 whatever is asked for; "" when it does not."""
    name, shape = claim.spec.name, claim.spec.shape
    if len(shape) <= 1:
        return "one-dimensional"
    if name.endswith("_norm.weight"):
        return "a norm"
    if claim.spec.rule.keep_f32:
        return "always F32"
    return "" if name.endswith(".weight") else "not a weight matrix"
