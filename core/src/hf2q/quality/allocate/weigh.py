"""How much a share that is lost counts in one tensor, and how much in another.

In a residual network of n blocks the stream that becomes the prediction is a sum of about 2 n products, two for each
block, so a share lost in one of them is about a 2 n-th of it lost in the prediction. What is lost in the output matrix
or in the embeddings is lost in whole, and twice where one matrix serves as both. Blocks for multi-token prediction
draft tokens, and what the model says is decided without them. docs/how-to/choose-types-by-evidence.md has measurements.
"""

from __future__ import annotations

from collections.abc import Sequence

from hf2q.types import Plan

OUTPUT, EMBEDDINGS = "output.weight", "token_embd.weight"
DRAFTS = 0.1
"""Of what a loss counts elsewhere; not 0, for drafts that are wrong cost time."""


def tensor_weights(plan: Plan) -> tuple[float, ...]:
    """What a loss counts in each tensor of a plan, in its order."""
    drafting = drafting_blocks(plan)
    blocks = max(1, _number(plan, "block_count") - len(drafting))
    names = [tensor.name for tensor in plan.tensors]
    return tuple(_weight(name, blocks, drafting, names) for name in names)


def drafting_blocks(plan: Plan) -> tuple[str, ...]:
    """How the names of tensors begin that are in blocks for multi-token prediction."""
    blocks, drafts = _number(plan, "block_count"), _number(plan, "nextn_predict_layers")
    return tuple(f"blk.{number}." for number in range(blocks - drafts, blocks))


def _number(plan: Plan, key: str) -> int:
    return next((int(field.value) for field in plan.metadata if field.key == f"{plan.arch}.{key}"), 0)


def _weight(name: str, blocks: int, drafting: tuple[str, ...], names: Sequence[str]) -> float:
    if name.startswith("blk."):
        return (DRAFTS if name.startswith(drafting) else 1.0) / (2 * blocks)
    return 2.0 if name == EMBEDDINGS and OUTPUT not in names else 1.0
