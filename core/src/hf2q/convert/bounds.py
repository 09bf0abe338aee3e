"""How much tensor data a conversion holds at a time, told from the plan and the constants of `pipeline`.

A piece is `PIECE` weights, or one row where a row is longer. A worker holds the piece it is at; encoded pieces wait
for the writer, `AHEAD` for each worker in all.
"""

from __future__ import annotations

from math import prod

from hf2q.convert.importance import Importance
from hf2q.convert.pipeline import AHEAD, PIECE
from hf2q.convert.receipt import Bounds
from hf2q.formats.digest import CHUNK
from hf2q.types import Plan, TensorPlan

COPIES = 6
"""Arrays of a piece's size that one worker holds at a time, counted as float32: what was read, what transforms make of
it (a view reads, another joins or reorders, a third computes), the visit to the intermediate type and back, and the
scratch of an encoder."""


def chunk_bounds(plan: Plan, importance: Importance | None, threads: int, held: int = 0) -> Bounds:
    """The bounds for converting by `plan` with so many workers; `held` as in `hf2q.convert.choices.Planned`."""
    pieces = AHEAD * threads + 1  # one more is hashed after it was written
    piece = max((4 * _rows(tensor) * _columns(tensor) for tensor in plan.tensors), default=0)
    encoded = max((_rows(tensor) * (tensor.nbytes // max(1, _count(tensor))) for tensor in plan.tensors), default=0)
    weighted = [tensor for tensor in plan.tensors if tensor.importance and importance is not None]
    known = max((4 * _columns(tensor) * prod(tensor.shape[:-2]) for tensor in weighted), default=0)
    return Bounds(
        threads=threads,
        pieces=pieces,
        piece_bytes=piece,
        encoded_bytes=encoded,
        importance_bytes=known,
        reading_bytes=held,
        digest_bytes=CHUNK,
        peak_bytes=threads * (COPIES * piece + held) + pieces * encoded + known + CHUNK,
    )


def _columns(tensor: TensorPlan) -> int:
    return tensor.shape[-1] if tensor.shape else 1


def _count(tensor: TensorPlan) -> int:
    return prod(tensor.shape[:-1])


def _rows(tensor: TensorPlan) -> int:
    """Rows of its largest piece; see `pipeline._pieces`."""
    return min(_count(tensor), max(1, PIECE // max(1, _columns(tensor))))
