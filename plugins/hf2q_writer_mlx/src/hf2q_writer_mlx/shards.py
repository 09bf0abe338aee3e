"""Which tensor goes where: the safetensors files of a plan, each with its header.

A quantized tensor is three in the file: ``X.weight`` (codes as U32), ``X.scales`` and ``X.biases``. Files are cut as
mlx_lm/utils.py, `make_shards`, cuts them: at 5 GiB, but for a tensor that is larger.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod

from hf2q.types import Plan, Record, Shape, TensorPlan
from hf2q_writer_mlx.affine import SIZES
from hf2q_writer_mlx.codec import affine_codec

LIMIT = 5 << 30
INDEX = "model.safetensors.index.json"


class Stored(Record, frozen=True, kw_only=True):
    """One tensor of a file: `begin` counts bytes from the beginning of the file."""

    name: str
    dtype: str
    shape: Shape
    nbytes: int
    begin: int


class Shard(Record, frozen=True, kw_only=True):
    """One file: by the name in the plan, the one or three tensors that it becomes; `size` in bytes, header included."""

    file: str
    header: bytes
    tensors: Mapping[str, tuple[Stored, ...]]
    size: int


def forms(tensor: TensorPlan) -> tuple[tuple[str, str, Shape, int], ...]:
    """Names, dtypes, shapes and bytes of what a planned tensor becomes in a file."""
    codec = affine_codec(tensor.qtype)
    if codec is None:
        return ((tensor.name, tensor.qtype, tensor.shape, tensor.nbytes),)
    path = tensor.name.removesuffix(".weight")
    *lead, columns = tensor.shape
    words, groups = columns * codec.bits // 32, columns // codec.group
    each = prod(lead) * groups * SIZES[codec.scales]
    return (
        (f"{path}.weight", "U32", (*lead, words), prod(lead) * words * 4),
        (f"{path}.scales", codec.scales, (*lead, groups), each),
        (f"{path}.biases", codec.scales, (*lead, groups), each),
    )


def shards_of(plan: Plan, limit: int = LIMIT) -> tuple[Shard, ...]:
    """The files, in order. Names: ``model.safetensors``, or ``model-00001-of-00002.safetensors`` of several."""
    groups = list(_grouped(plan, limit))
    if len(groups) == 1:
        return (_shard("model.safetensors", groups[0]),)
    return tuple(
        _shard(f"model-{number:05d}-of-{len(groups):05d}.safetensors", group)
        for number, group in enumerate(groups, start=1)
    )


def index_of(plan: Plan, shards: tuple[Shard, ...]) -> str:
    """The text of the index. Source: mlx_lm/utils.py, `save_model`."""
    places = {one.name: shard.file for shard in shards for group in shard.tensors.values() for one in group}
    told = {
        "metadata": {"total_size": plan.nbytes, "total_parameters": plan.parameters},
        "weight_map": dict(sorted(places.items())),
    }
    return json.dumps(told, indent=4)


def _grouped(plan: Plan, limit: int) -> Iterator[list[TensorPlan]]:
    group: list[TensorPlan] = []
    size = 0
    for tensor in plan.tensors:
        if group and size + tensor.nbytes > limit:
            yield group
            group, size = [], 0
        group.append(tensor)
        size += tensor.nbytes
    yield group


def _shard(file: str, tensors: list[TensorPlan]) -> Shard:
    """Wide elements first, so that every tensor begins at a multiple of its element."""
    parts = [(tensor.name, form) for tensor in tensors for form in forms(tensor)]
    parts.sort(key=lambda part: part[1][1] not in ("U32", "F32"))
    told: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    at = 0
    begins = {}
    for _, (name, dtype, shape, nbytes) in parts:
        told[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + nbytes]}
        begins[name] = at
        at += nbytes
    text = json.dumps(told, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return Shard(
        file=file,
        header=header,
        tensors={
            tensor.name: tuple(
                Stored(name=name, dtype=dtype, shape=shape, nbytes=nbytes, begin=len(header) + begins[name])
                for name, dtype, shape, nbytes in forms(tensor)
            )
            for tensor in tensors
        },
        size=len(header) + at,
    )
