"""One plan cut into several files."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import msgspec

from hf2q.errors import UsageError, listing
from hf2q.formats.gguf.encode import alignment_of
from hf2q.formats.gguf.layout import padded, plan_offsets
from hf2q.formats.gguf.shards import MAX_SHARDS, shard_path, split_fields
from hf2q.types import Plan, TensorPlan

log = logging.getLogger(__name__)


def group_tensors(plan: Plan, max_size: int | None, max_tensors: int | None) -> tuple[int, ...]:
    """How many tensors go into each shard, so that none has more of them or more bytes of them than wanted.

    Sizes are those of the tensors, without the header; a tensor that is larger alone gets a shard of its own. What
    llama.cpp's converter writes it counts without the padding between tensors; gguf-split, which divides finished
    files, with it. Source: llama.cpp, gguf-py/gguf/gguf_writer.py, `add_tensor_info`; tools/gguf-split/gguf-split.cpp,
    `split_strategy`. Errors: UsageError for less than one tensor.
    """
    if max_tensors is not None and max_tensors < 1:
        raise UsageError(f"--split-max-tensors is {max_tensors}, expected at least 1")
    converter = plan.via == plan.recipe  # the file is an intermediate of llama.cpp's pipeline itself
    alignment = 1 if converter else alignment_of(plan.metadata)
    counts, size = [0], 0
    larger = []
    for tensor in plan.tensors:
        own = padded(tensor.nbytes, alignment)
        if max_size is not None and own > max_size:
            larger.append(f"{tensor.name} ({own:,})")
        full = counts[-1] == max_tensors or (max_size is not None and size + own > max_size)
        if counts[-1] and full:
            counts.append(0)
            size = 0
        counts[-1] += 1
        size += own
    if larger:
        log.warning(
            "--split-max-size is %s bytes, and %d tensors are larger and get files of their own: %s",
            f"{max_size:,}",
            len(larger),
            listing(larger, 3),
        )
    return tuple(counts)


def cut_plan(plan: Plan, counts: Sequence[int]) -> tuple[Plan, ...]:
    """A plan for each shard: the first with all metadata, each with `counts` of the tensors in order."""
    total = len(plan.tensors)
    if len(counts) > MAX_SHARDS:
        raise UsageError(f"the model would have {len(counts)} shards, expected at most {MAX_SHARDS}")
    plans = []
    for index, (count, stop) in enumerate(zip(counts, accumulate(counts), strict=True)):
        own = split_fields(index, len(counts), total)
        metadata = (*plan.metadata, *own) if index == 0 else own
        tensors = _moved(plan.tensors[stop - count : stop], alignment_of(metadata))
        plans.append(msgspec.structs.replace(plan, metadata=metadata, tensors=tensors))
    return tuple(plans)


def shard_paths(path: Path, count: int, suffix: str) -> tuple[Path, ...]:
    """``model.gguf`` → ``model-00001-of-00002.gguf`` and so on."""
    stem = str(path)
    stem = stem.removesuffix(suffix)
    return tuple(Path(shard_path(stem, index, count)) for index in range(count))


def _moved(tensors: Sequence[TensorPlan], alignment: int) -> tuple[TensorPlan, ...]:
    offsets = plan_offsets((tensor.nbytes for tensor in tensors), alignment)
    return tuple(
        msgspec.structs.replace(tensor, offset=offset) for tensor, offset in zip(tensors, offsets, strict=True)
    )
