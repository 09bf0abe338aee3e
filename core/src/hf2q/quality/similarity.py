"""How near the weights of a file are to those of a reference: cosines and relative errors by tensor and by layer.

Definitions (docs/how-to/measure-a-file.md, "Weights"): over all values of a tensor, a of the reference and b of the
candidate, the cosine is Σab / (√Σa² √Σb²), and the relative error √Σ(a-b)² / √Σa²; sums in float64 of values in
float32. A layer has the mean and the smallest of its tensors' cosines, and √(Σn e² / Σn) over its tensors, of n weights
and the relative error e: one of large values, such as a table of numbers, does not drown the others.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hf2q.errors import QualityError, TensorMismatchError
from hf2q.formats.gguf import open_model
from hf2q.plugins import Plugins
from hf2q.quality.perplexity import Report
from hf2q.quality.weights import Weight, Weights, from_model, open_weights
from hf2q.types import Record, Shape

if TYPE_CHECKING:
    from hf2q.types import Float32

PIECE = 1 << 20
"""Weights at a time of each side: 4 MiB as float32."""

NOTHING = 1e-12
"""A norm below is that of zeros, which have no direction."""

_LAYER = re.compile(r"((?:\w+\.)*?blk\.\d+)\.")


class TensorSimilarity(Record, frozen=True, kw_only=True):
    """One tensor. `layer` is ``blk.N`` (with what stands before it), "" outside of all layers.

    cosine          None when both sides hold zeros only; 0 when one does
    relative_error  None when the reference holds zeros only and the candidate does not
    max_error       the largest absolute difference
    """

    name: str
    layer: str
    shape: Shape
    qtype: str
    reference_qtype: str
    nbytes: int
    elements: int
    cosine: float | None
    relative_error: float | None
    max_error: float


class LayerSimilarity(Record, frozen=True, kw_only=True):
    """All tensors of a layer, or of those outside (`layer` is ""). `mean` and `minimum` are of their cosines, 1 when
    none has one; `worst` is the first tensor with the minimum; `relative_error` the root mean square of those that
    there are, by number of weights."""

    layer: str
    tensors: int
    elements: int
    nbytes: int
    mean: float
    minimum: float
    worst: str
    relative_error: float


class Similarity(Record, frozen=True, kw_only=True):
    """All of it; the totals are those of `LayerSimilarity`, over all tensors."""

    candidate: str
    reference: str
    tensors: tuple[TensorSimilarity, ...]
    layers: tuple[LayerSimilarity, ...]
    total: LayerSimilarity


class _Sums(NamedTuple):
    """Of a tensor: Σab, Σa², Σb², Σ(a-b)²."""

    product: float
    reference: float
    candidate: float
    error: float


def compare(
    candidate: str | os.PathLike[str],
    reference: str | os.PathLike[str],
    *,
    threads: int | None = None,
    plugins: Plugins | None = None,
    report: Report | None = None,
) -> Similarity:
    """Compare a GGUF file with another of the same checkpoint, or with the checkpoint's directory.

    report  told the tensor at work, the weights compared so far, and their number in all
    Errors: TensorMismatchError listing every tensor that only one side has or that has another shape; QualityError for
    values that are not finite; what opening and planning raise.
    """
    plugins = Plugins.load() if plugins is None else plugins
    with (
        open_model(candidate) as model,
        open_weights(reference, plugins, like=model, threads=threads) as wanted,
    ):
        return compare_weights(from_model(model, plugins, threads), wanted, report)


def compare_weights(candidate: Weights, reference: Weights, report: Report | None = None) -> Similarity:
    """As `compare`, of weights that are open."""
    _check_same(candidate, reference)
    total, done = sum(math.prod(weight.shape) for weight in candidate.tensors.values()), 0
    found: list[TensorSimilarity] = []
    for name, weight in candidate.tensors.items():
        if report is not None:
            report(name, done, total)
        sums, largest = _summed(candidate, reference, name)
        found.append(_similarity(weight, reference.tensors[name], sums, largest))
        done += math.prod(weight.shape)
    if report is not None:
        report("", total, total)
    layers: dict[str, list[TensorSimilarity]] = {}
    for one in found:
        layers.setdefault(one.layer, []).append(one)
    return Similarity(
        candidate=candidate.path,
        reference=reference.path,
        tensors=tuple(found),
        layers=tuple(_pooled(layer, layers[layer]) for layer in sorted(layers, key=layer_order)),
        total=_pooled("", found),
    )


def layer_of(name: str) -> str:
    """The layer of a tensor, "" for none: ``blk.3`` of ``blk.3.attn_q.weight``, ``v.blk.0`` of a projector's."""
    found = _LAYER.match(name)
    return found[1] if found else ""


def layer_order(layer: str) -> tuple[str, int]:
    """A key to sort layers by: those outside first, then by number."""
    stem, _, number = layer.rpartition(".")
    return stem, int(number or 0)


def _check_same(candidate: Weights, reference: Weights) -> None:
    wrong = [f"{name} (only in the candidate)" for name in candidate.tensors if name not in reference.tensors]
    wrong += [f"{name} (only in the reference)" for name in reference.tensors if name not in candidate.tensors]
    for name, weight in candidate.tensors.items():
        other = reference.tensors.get(name)
        if other is not None and other.shape != weight.shape:
            wrong.append(f"{name} ({_shape(weight.shape)}, in the reference {_shape(other.shape)})")
    if wrong:
        raise TensorMismatchError(
            f"{candidate.path} and {reference.path} do not hold the same tensors; {len(wrong)} differ: "
            + ", ".join(wrong),
            hint="compare a file with the checkpoint that it was made from, or with another file of that",
        )
    if not candidate.tensors:
        raise QualityError(f"{candidate.path} holds no tensors", hint="give the file that holds the model's weights")


def _shape(shape: Shape) -> str:
    return " x ".join(map(str, shape))


def _summed(candidate: Weights, reference: Weights, name: str) -> tuple[_Sums, float]:
    shape = candidate.tensors[name].shape
    rows, step = math.prod(shape[:-1]), max(1, PIECE // max(1, shape[-1]))
    pieces: list[tuple[float, ...]] = []
    largest = 0.0
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        a, b = (
            _finite(weights.read(name, start, stop), weights.path, name, start).astype(np.float64).ravel()
            for weights in (reference, candidate)
        )
        gap = a - b
        pieces.append((float(a @ b), float(a @ a), float(b @ b), float(gap @ gap)))
        largest = max(largest, float(np.abs(gap, out=gap).max(initial=0.0)))
    return _Sums(*map(math.fsum, zip(*pieces, strict=True))) if pieces else _Sums(0, 0, 0, 0), largest


def _finite(values: Float32, path: str, name: str, start: int) -> Float32:
    if not np.isfinite(values).all():
        row, column = (int(place) for place in np.argwhere(~np.isfinite(values))[0])
        raise QualityError(
            f"{path}: tensor {name!r} holds {values[row, column]} at row {start + row}, column {column}; expected "
            "finite numbers",
            hint="the file is damaged, or its numbers overflow: convert or download it again",
        )
    return values


def _similarity(weight: Weight, other: Weight, sums: _Sums, largest: float) -> TensorSimilarity:
    a, b = math.sqrt(sums.reference), math.sqrt(sums.candidate)
    nothing = [norm < NOTHING for norm in (a, b)]
    cosine = None if all(nothing) else 0.0 if any(nothing) else max(-1.0, min(1.0, sums.product / (a * b)))
    return TensorSimilarity(
        name=weight.name,
        layer=layer_of(weight.name),
        shape=weight.shape,
        qtype=weight.qtype,
        reference_qtype=other.qtype,
        nbytes=weight.nbytes,
        elements=math.prod(weight.shape),
        cosine=cosine,
        relative_error=_relative(sums.error, sums.reference),
        max_error=largest,
    )


def _relative(error: float, reference: float) -> float | None:
    if error == 0.0:
        return 0.0
    return math.sqrt(error / reference) if math.sqrt(reference) >= NOTHING else None


def _pooled(layer: str, tensors: Sequence[TensorSimilarity]) -> LayerSimilarity:
    known = [(one.cosine, one.name) for one in tensors if one.cosine is not None]
    least = min(known, key=lambda pair: pair[0], default=(1.0, ""))
    errors = [(one.elements, one.relative_error) for one in tensors if one.relative_error is not None]
    weighted = math.fsum(count * error * error for count, error in errors)
    return LayerSimilarity(
        layer=layer,
        tensors=len(tensors),
        elements=sum(one.elements for one in tensors),
        nbytes=sum(one.nbytes for one in tensors),
        mean=math.fsum(value for value, _ in known) / len(known) if known else 1.0,
        minimum=least[0],
        worst=least[1],
        relative_error=math.sqrt(weighted / max(1, sum(count for count, _ in errors))),
    )
