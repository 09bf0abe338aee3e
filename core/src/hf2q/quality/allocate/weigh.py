"""How much a share that is lost counts in one tensor, and how much in another.

In a residual network of n blocks the stream that becomes the prediction is a sum of about 2 n products, of attention
and of the FFN in each block, or 3 n where blocks have inputs of their own (``per_layer_token_embd``). A share lost in
one of them is as large a part of what is lost in the prediction. What is lost in the output matrix or in the embeddings
is lost in whole, and twice where one matrix serves as both: a tensor counts as often as it is used. So do keys that are
values too, and keys and values that later blocks attend to; those of the later blocks nothing reads, and they count
nothing. Blocks for multi-token prediction draft tokens, and what the model says is decided without them.
docs/how-to/choose-types-by-evidence.md has measurements.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set

from hf2q.types import Plan

OUTPUT, EMBEDDINGS = "output.weight", "token_embd.weight"
LAYER_EMBEDDINGS = "per_layer_token_embd.weight"
DRAFTS = 0.1
"""Of what a loss counts elsewhere; not 0, for drafts that are wrong cost time."""


def tensor_weights(plan: Plan) -> tuple[float, ...]:
    """What a loss counts in each tensor of a plan, in its order."""
    drafting = drafting_blocks(plan)
    blocks = max(1, _number(plan, "block_count") - len(drafting))
    names = {tensor.name for tensor in plan.tensors}
    readers = _readers(plan, blocks)
    products = (3 if _number(plan, "embedding_length_per_layer_input") else 2) * blocks
    return tuple(_weight(tensor.name, blocks, products, drafting, names, readers) for tensor in plan.tensors)


def drafting_blocks(plan: Plan) -> tuple[str, ...]:
    """How the names of tensors begin that are in blocks for multi-token prediction."""
    blocks, drafts = _number(plan, "block_count"), _number(plan, "nextn_predict_layers")
    return tuple(f"blk.{number}." for number in range(blocks - drafts, blocks))


def _value(plan: Plan, key: str) -> object:
    return next((field.value for field in plan.metadata if field.key == f"{plan.arch}.{key}"), None)


def _number(plan: Plan, key: str) -> int:
    found = _value(plan, key)
    return found if isinstance(found, int) else 0


def _readers(plan: Plan, blocks: int) -> list[int]:
    """How many blocks attend to the keys and values of each: the last ``shared_kv_layers`` to those of the last block
    of their kind (of sliding attention, or not) that has some, and not to their own.
    """
    own = blocks - _number(plan, "attention.shared_kv_layers")
    pattern = _value(plan, "attention.sliding_window_pattern")
    sliding = pattern if isinstance(pattern, Sequence) and len(pattern) >= blocks else (False,) * blocks
    readers = [1] * blocks
    for block in range(own, blocks):
        readers[block] = 0
        readers[max((earlier for earlier in range(own) if sliding[earlier] == sliding[block]), default=block)] += 1
    return readers


def _weight(
    name: str, blocks: int, products: int, drafting: tuple[str, ...], names: Set[str], readers: Sequence[int]
) -> float:
    if name == LAYER_EMBEDDINGS:
        return blocks / products  # an input of one product in each block
    if not name.startswith("blk."):
        return 2.0 if name == EMBEDDINGS and OUTPUT not in names else 1.0
    share = 1 / products
    if name.startswith(drafting):
        return DRAFTS * share
    if found := re.fullmatch(r"blk\.(\d+)\.attn_([kv])\.weight", name):
        both = found[2] == "k" and f"blk.{found[1]}.attn_v.weight" not in names
        share *= readers[int(found[1])] * (2 if both else 1)
    return share
