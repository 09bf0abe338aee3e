"""From GGUF to MLX: blocks become groups without loss where MLX has a form for them, and everything goes back to the
order and the values that mlx-lm wants.

A family's transforms say how a checkpoint's tensor became GGUF's. Those that only reorder are undone by asking them: a
tensor that holds its own row numbers, or column numbers, comes out in the order that was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hf2q import rows
from hf2q.errors import ContractError
from hf2q.types import GgufView, HParams, Rows, Shape, TensorSpec, resolve
from hf2q_writer_mlx.affine import pack
from hf2q_writer_mlx.codec import affine_codec

if TYPE_CHECKING:
    from hf2q.types import Bytes, Float32

Index = npt.NDArray[np.intp]


def orders(reference: str, spec: TensorSpec, hparams: HParams) -> tuple[Index | None, Index | None]:
    """Where in the GGUF tensor each row and each column of the checkpoint's is; None for those in place.

    Errors: ContractError for a transform that does more than reorder.
    """
    return tuple(_order(reference, spec, hparams, rows_=which) for which in (True, False))  # type: ignore[return-value]


def _order(reference: str, spec: TensorSpec, hparams: HParams, *, rows_: bool) -> Index | None:
    columns = spec.shape[-1]
    count = int(np.prod(spec.shape[:-1]))

    def numbers(start: int, stop: int) -> Float32:
        if rows_:
            return np.repeat(np.arange(start, stop, dtype=np.float32)[:, None], columns, axis=1)
        return np.tile(np.arange(columns, dtype=np.float32), (stop - start, 1))

    made: Rows = resolve(reference)([rows.View(spec.shape, "F32", numbers)], spec, hparams)
    step = max(1, (1 << 20) // columns)
    pieces = [made.read(at, min(at + step, count)) for at in range(0, count if rows_ else 1, step)]
    found = np.concatenate([piece[:, 0] for piece in pieces]) if rows_ else pieces[0][0]
    forward = found.astype(np.intp)
    size = count if rows_ else columns
    if not np.array_equal(np.sort(forward), np.arange(size)) or not (found == forward).all():
        raise ContractError(f"{reference} does more to {spec.name} than to reorder it")
    if np.array_equal(forward, np.arange(size)):
        return None
    back = np.empty(size, np.intp)
    back[forward] = np.arange(size)
    return back


def whole_groups(columns: Index | None, group: int) -> Index | None:
    """The order of groups, where columns move in whole groups; else ContractError."""
    if columns is None:
        return None
    blocks = columns.reshape(-1, group)
    if (blocks[:, :1] % group != 0).any() or not (blocks == blocks[:, :1] + np.arange(group)).all():
        raise ContractError("columns do not move in whole groups")
    return blocks[:, 0] // group


def plain_rows(
    source: Rows, shape: Shape, order: Index | None, columns: Index | None, change: Callable[[Float32], Float32] | None
) -> Rows:
    """Decoded values as a tensor of `shape`. Its rows may be shorter than those of the source."""
    made = source
    if order is not None:
        made = rows.take_rows(source, order, source.shape if len(order) == rows.n_rows(source) else shape)
    if columns is not None:
        made = rows.gather_columns(made, columns)
    if change is not None:
        made = rows.elementwise(made, change)
    return made if shape == made.shape else rows.reshape(made, shape)


def repacked_rows(
    source: GgufView, name: str, qtype: str, kind: str, shape: Shape, order: Index | None, columns: Index | None
) -> Rows:
    """Rows whose `stored` gives groups of the MLX type `kind`, whatever the GGUF type `qtype` of `name` is."""
    codec, blocks = affine_codec(kind), source.codec(qtype)
    if codec is None or blocks is None or not blocks.affine:
        raise ContractError(f"{qtype} has no form as {kind}")
    affine = resolve(blocks.affine)
    groups = whole_groups(columns, codec.group)

    def stored(start: int, stop: int) -> Bytes:
        data = _taken(lambda a, b: source.stored(name, a, b), order, start, stop)
        codes, scales, biases, bits = affine(data)
        if bits != codec.bits:
            raise ContractError(f"{name}: {qtype} was repacked to {bits} bits, expected {codec.bits}")
        codes = codes.reshape(len(data), -1, codec.group)
        if groups is not None:
            codes, scales, biases = codes[:, groups], scales[:, groups], biases[:, groups]
        out = np.empty((codes.shape[0] * codes.shape[1], codec.type_size), np.uint8)
        flat: Any = codes.reshape(-1, codec.group)
        pack(flat, scales.reshape(-1), biases.reshape(-1), bits, codec.scales, out)
        return out.reshape(len(data), -1)

    return rows.View(shape, qtype, source.rows(name).read, packed=kind, stored=stored)


def _taken(read: Callable[[int, int], Bytes], order: Index | None, start: int, stop: int) -> Bytes:
    if order is None:
        return read(start, stop)
    return np.concatenate([read(first, last) for first, last in _runs(order[start:stop])])


def _runs(wanted: Index) -> Iterator[tuple[int, int]]:
    """Consecutive numbers together: first, and one after the last."""
    breaks = np.flatnonzero(np.diff(wanted) != 1) + 1
    at = 0
    for end in (*breaks.tolist(), len(wanted)):
        yield int(wanted[at]), int(wanted[at]) + end - at
        at = end
