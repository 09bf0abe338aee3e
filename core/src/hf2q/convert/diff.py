"""Two GGUF models side by side: keys, tensors, types, and by how much the values differ."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from hf2q.errors import UnknownNameError
from hf2q.formats.gguf import GgufModel, open_model
from hf2q.plugins import Plugins
from hf2q.types import Record, Shape

if TYPE_CHECKING:
    from hf2q.codec import QuantCodec
    from hf2q.types import Bytes

PIECE = 1 << 21
"""Weights decoded at a time from each file."""


class KeyDifference(Record, frozen=True, kw_only=True):
    """A key that only one file has, or that differs: (type, value) on each side, None where it is absent."""

    key: str
    a: tuple[str, Any] | None
    b: tuple[str, Any] | None


class TensorDifference(Record, frozen=True, kw_only=True):
    """A tensor that differs. `qtypes` and `shapes` of both sides, None where it is absent.

    same_bytes   the stored bytes are equal, so that only the shape's spelling differs
    max_error    largest, mean_error mean absolute difference of decoded values; None where they cannot be compared
    rms_error    root of the mean squared difference;  rms  of the values of A
    differing    number of values that differ
    note         why values were not compared, or what is odd
    """

    name: str
    qtypes: tuple[str | None, str | None]
    shapes: tuple[Shape | None, Shape | None]
    same_bytes: bool = False
    max_error: float | None = None
    mean_error: float | None = None
    rms_error: float | None = None
    rms: float | None = None
    differing: int | None = None
    note: str = ""


class Differences(Record, frozen=True, kw_only=True):
    """All that differs. `equal_tensors` are the same byte for byte; `order` says whether the common ones come in the
    same order."""

    a: str
    b: str
    keys: tuple[KeyDifference, ...]
    tensors: tuple[TensorDifference, ...]
    equal_keys: int
    equal_tensors: int
    order: bool

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not self.keys and not self.tensors and self.order


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    plugins: Plugins | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Differences:
    """Compare two models; each may be in several files.

    `progress` gets (tensor, weights compared so far, weights in all).
    Errors: what opening a file raises. A type that no plugin decodes is compared by its bytes, and noted.
    """
    plugins = Plugins.load() if plugins is None else plugins
    with open_model(a) as first, open_model(b) as second:
        keys = tuple(_keys(first, second))
        total = sum(tensor.elements for tensor in first.tensors.values())
        found, done = [], 0
        for name in dict.fromkeys((*first.tensors, *second.tensors)):
            one = _tensor(name, first, second, plugins)
            if one is not None:
                found.append(one)
            if name in first.tensors:
                done += first.tensors[name].elements
                if progress is not None:
                    progress(name, done, total)
        common_a = [name for name in first.tensors if name in second.tensors]
        return Differences(
            a=first.path,
            b=second.path,
            keys=keys,
            tensors=tuple(found),
            equal_keys=len(dict.fromkeys((*first.metadata, *second.metadata))) - len(keys),
            equal_tensors=len(common_a) - sum(None not in one.qtypes for one in found),
            order=common_a == [name for name in second.tensors if name in first.tensors],
        )


def _keys(a: GgufModel, b: GgufModel) -> Iterator[KeyDifference]:
    for key in dict.fromkeys((*a.metadata, *b.metadata)):
        ours, theirs = (_typed(model, key) for model in (a, b))
        if repr(ours) != repr(theirs):  # by spelling, for which a NaN equals itself
            yield KeyDifference(key=key, a=ours, b=theirs)


def _typed(model: GgufModel, key: str) -> tuple[str, Any] | None:
    if key not in model.metadata:
        return None
    field = model.metadata.field(key)
    return (field.type.name if field.element is None else f"{field.element.name}[]"), field.value


def _tensor(name: str, a: GgufModel, b: GgufModel, plugins: Plugins) -> TensorDifference | None:
    import numpy as np

    ours, theirs = a.tensors.get(name), b.tensors.get(name)
    qtypes = (ours.qtype if ours else None, theirs.qtype if theirs else None)
    shapes = (ours.shape if ours else None, theirs.shape if theirs else None)
    if ours is None or theirs is None:
        return TensorDifference(name=name, qtypes=qtypes, shapes=shapes)
    same = ours.qtype == theirs.qtype and ours.nbytes == theirs.nbytes
    same = same and bool(np.array_equal(a.rows(name).reshape(-1), b.rows(name).reshape(-1)))
    if same and ours.shape == theirs.shape:
        return None
    if same or ours.elements != theirs.elements or ours.columns != theirs.columns:
        note = "" if same else "values of different shapes are not compared"
        return TensorDifference(name=name, qtypes=qtypes, shapes=shapes, same_bytes=same, note=note)
    try:
        codecs = plugins.codec(ours.qtype), plugins.codec(theirs.qtype)
    except UnknownNameError as error:
        return TensorDifference(name=name, qtypes=qtypes, shapes=shapes, note=f"not decoded: {error.message}")
    errors = _errors((a.rows(name), b.rows(name)), codecs, ours.columns)
    return TensorDifference(name=name, qtypes=qtypes, shapes=shapes, **errors)


def _errors(rows: tuple[Bytes, Bytes], codecs: tuple[QuantCodec, QuantCodec], columns: int) -> dict[str, Any]:
    import numpy as np

    largest, absolute, squared, power, differing, odd = 0.0, 0.0, 0.0, 0.0, 0, 0
    step = max(1, PIECE // max(1, columns))
    for start in range(0, len(rows[0]), step):
        ours, theirs = (codec.decode(data[start : start + step]) for codec, data in zip(codecs, rows, strict=True))
        odd += int(np.count_nonzero(~(np.isfinite(ours) & np.isfinite(theirs))))
        with np.errstate(invalid="ignore", over="ignore"):
            gap = np.abs(ours.astype(np.float64) - theirs)
            differing += int(np.count_nonzero(~((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)))))
            largest = max(largest, float(gap.max(initial=0.0)))
            absolute += float(gap.sum())
            squared += float(np.square(gap).sum())
            power += float(np.square(ours, dtype=np.float64).sum())
    if odd:
        return {"differing": differing, "note": f"{odd} values are NaN or infinite in one file or both"}
    count = max(1, len(rows[0]) * columns)
    return {
        "max_error": largest,
        "mean_error": absolute / count,
        "rms_error": math.sqrt(squared / count),
        "rms": math.sqrt(power / count),
        "differing": differing,
    }
