"""A checkpoint whose weights are stored in FP8 or FP4 beside their scales, seen as one with plain weights.

A weight and its scale, which its name tells, become one tensor with the weight's name and logical shape and the dtype
``F8_E4M3`` or ``F4_E2M1``; what is read of it is float32, the product. Scales of activations are left out.

    X.weight                    X.weight_scale_inv, X.weight_scale or X.scale
    X (packed experts)          X_scale_inv or X_scale
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from hf2q.convert.quantized import HINT, Stated
from hf2q.convert.scales import FP4, FP8, fp4_rows, fp8_rows, unpacked
from hf2q.errors import TensorMismatchError, listing
from hf2q.formats.safetensors import Checkpoint
from hf2q.formats.safetensors.checkpoint import CheckpointFile
from hf2q.types import Record, Rows, TensorInfo

ENDINGS = (("_scale_inv", ""), ("_scale", ""), (".scale", ".weight"))
"""How a scale's name ends, and what stands there in the name of its weight."""
SCALES_ONLY = ("_scale_inv", ".weight_scale")
"""Endings that nothing but scales of weights has."""
ACTIVATIONS = (".activation_scale", "_activation_scale", ".input_scale", ".k_scale", ".v_scale")
SMALL_FLOATS = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0", "F6_E2M3", "F6_E3M2", "F4")
BYTES = ("I8", "U8")
POWERS = ("F8_E8M0", "U8")
PLAIN = ("F32", "BF16", "F16")


class Pair(Record, frozen=True, kw_only=True):
    """A weight and its scale, as the files have them, and the dtype of the two together."""

    weight: TensorInfo
    scale: TensorInfo
    dtype: str


class ScaledCheckpoint:
    """The view; the same way in as `hf2q.formats.safetensors.Checkpoint`.

    pairs     by the weight's name
    left_out  tensors that are not seen, each with the reason, apart from the scales
    """

    def __init__(
        self,
        stored: Checkpoint,
        pairs: Mapping[str, Pair],
        left_out: Sequence[tuple[str, str]],
        block: tuple[int, int] | None,
    ) -> None:
        """Use `expand_scales`."""
        hidden = {pair.scale.name for pair in pairs.values()} | {name for name, _ in left_out}
        self.directory = stored.directory
        self.files: tuple[CheckpointFile, ...] = stored.files
        self.metadata = stored.metadata
        self.pairs = MappingProxyType(dict(pairs))
        self.left_out = tuple(left_out)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {name: self._seen(info) for name, info in stored.tensors.items() if name not in hidden}
        )
        self._stored = stored
        self._block = block

    def rows(self, name: str) -> Rows:
        """As `Checkpoint.rows`, scaled weights included. Errors: TensorMismatchError."""
        pair = self.pairs.get(name)
        if pair is None:
            return self._stored.rows(name)
        if pair.dtype == FP4:
            return fp4_rows(self._stored, pair.weight, pair.scale)
        return fp8_rows(self._stored, pair.weight, pair.scale, self._block)

    def _seen(self, info: TensorInfo) -> TensorInfo:
        pair = self.pairs.get(info.name)
        if pair is None:
            return info
        shape = unpacked(info.shape) if pair.dtype == FP4 else info.shape
        return msgspec.structs.replace(info, shape=shape, dtype=pair.dtype)


def expand_scales(checkpoint: Checkpoint, stated: Stated | None) -> Checkpoint | ScaledCheckpoint:
    """The view of a checkpoint with scaled weights; one without any is returned as it is.

    Errors: TensorMismatchError for scales without weights, for weights without scales, and for forms that are not
    known; each lists all such tensors.
    """
    tensors = checkpoint.tensors
    found: dict[str, str] = {}
    alone, unknown, twice = [], [], []
    pairs: dict[str, Pair] = {}
    for name, info in tensors.items():
        weight = _weight_of(name, tensors)
        if weight is None:
            if info.dtype == "F8_E8M0" or name.endswith(SCALES_ONLY):
                alone.append(name)
            continue
        if weight in found:
            twice.append(f"{weight}: {found[weight]} and {name}")
        found[weight] = name
        dtype = _together(tensors[weight], info)
        if dtype is None:
            unknown.append(f"{weight} ({tensors[weight].dtype} with a scale of {info.dtype})")
        else:
            pairs[weight] = Pair(weight=tensors[weight], scale=info, dtype=dtype)
    bare = [f"{t.name} ({t.dtype})" for t in tensors.values() if t.dtype in SMALL_FLOATS and t.name not in found]
    scales = set(found.values())
    _refuse(
        checkpoint.directory,
        {
            "scales have no weight that they belong to": alone,
            "weights have more than one scale": twice,
            "scaled weights are in a form that is not known": unknown,
            "tensors of small floats have no scales": [
                text for text in bare if text.rpartition(" ")[0] not in {*scales, *alone}
            ],
        },
    )
    left_out = [
        (name, "scale of activations, which are not quantized here")
        for name in tensors
        if (stated or pairs) and name not in scales and name.endswith(ACTIVATIONS)
    ]
    if not pairs and not left_out:
        return checkpoint
    return ScaledCheckpoint(checkpoint, pairs, left_out, stated.block if stated else None)


def is_scaled(checkpoint: Checkpoint | ScaledCheckpoint) -> bool:
    """Whether it has weights that are stored with scales."""
    return isinstance(checkpoint, ScaledCheckpoint) and bool(checkpoint.pairs)


def as_stored(checkpoint: Checkpoint | ScaledCheckpoint, names: Iterable[str]) -> list[TensorInfo]:
    """The tensors of these names as the files have them, each scale after its weight."""
    if isinstance(checkpoint, Checkpoint):
        return [checkpoint.tensors[name] for name in names]
    found = []
    for name in names:
        pair = checkpoint.pairs.get(name)
        found += [checkpoint.tensors[name]] if pair is None else [pair.weight, pair.scale]
    return found


def left_out_scales(checkpoint: Checkpoint | ScaledCheckpoint) -> tuple[tuple[str, str], ...]:
    """Tensors that the view leaves out, with reasons."""
    return () if isinstance(checkpoint, Checkpoint) else checkpoint.left_out


def _weight_of(name: str, tensors: Mapping[str, TensorInfo]) -> str | None:
    """The weight that a tensor of this name scales, or None."""
    for ending, instead in ENDINGS:
        if name.endswith(ending) and not name.endswith(ACTIVATIONS):
            weight = tensors.get(name.removesuffix(ending) + instead)
            if weight is not None and weight.dtype in (*SMALL_FLOATS, *BYTES):
                return weight.name
    return None


def _together(weight: TensorInfo, scale: TensorInfo) -> str | None:
    if weight.dtype == FP8 and scale.dtype in (*PLAIN, *POWERS):
        return FP8
    if weight.dtype in BYTES and scale.dtype in POWERS and weight.shape:
        return FP4
    return None


def _refuse(directory: str, problems: Mapping[str, list[str]]) -> None:
    lines = [f"{len(names)} {what}: {listing(names)}" for what, names in problems.items() if names]
    if lines:
        raise TensorMismatchError(
            f"{directory}: {'; '.join(lines)}",
            hint=f"the checkpoint is incomplete, or quantized in a form that is not read: {HINT}",
        )
