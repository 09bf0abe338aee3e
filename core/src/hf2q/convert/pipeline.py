"""Streaming a plan into a writer: read → transform → encode on worker threads, written in plan order.

Tensors are cut into pieces of rows. A few pieces for each worker are under way at any time, so memory does not grow
with the model; reading and encoding release the GIL. The bytes depend neither on the number of threads nor on where
the cuts are.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import numpy as np

from hf2q.codec import QuantCodec
from hf2q.convert.importance import Importance
from hf2q.errors import EncodeError, listing
from hf2q.formats.floats import bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16
from hf2q.rows import n_rows
from hf2q.types import Plan, Rows, TensorPlan, Writer, resolve

if TYPE_CHECKING:
    from hf2q.types import Bytes, Float32

log = logging.getLogger(__name__)

PIECE = 1 << 20
"""Weights of a piece: 4 MiB as float32, large against the cost of handing it over, small against memory."""

AHEAD = 2
"""Pieces under way for each worker: one at work, one waiting, so that nobody waits for the writer."""

F16_OVERFLOW = 65520.0
"""The smallest magnitude that rounds to infinity in float16."""

Progress = Callable[[TensorPlan, int], None]
"""Called after each write with the tensor and the number of bytes of tensor data written so far."""


class StoredRows(Rows, Protocol):
    """Rows of a source that holds them encoded; what `TensorPlan.copied` relies on."""

    def stored(self, start: int, stop: int) -> Bytes:
        """Rows `start` to `stop` as they are in the source: uint8 (stop - start, bytes). Thread-safe."""
        ...


class Piece(NamedTuple):
    """Rows `start` to `stop` of one tensor, within one matrix when there is `importance`, float32 (columns,)."""

    tensor: TensorPlan
    source: Rows
    start: int
    stop: int
    importance: Float32 | None


def stream(
    plan: Plan,
    rows: Callable[[str], Rows],
    codecs: Callable[[str], QuantCodec],
    open_writer: Callable[[], Writer],
    *,
    threads: int,
    importance: Importance | None = None,
    progress: Progress | None = None,
    ready: Callable[[], None] | None = None,
) -> None:
    """Write every tensor of `plan`. `rows` and `codecs` look up by tensor name and by type; `ready` is called
    when all is written, before the writer is closed.

    On any failure and on an interrupt the unfinished file is gone when this returns.
    Errors: EncodeError naming tensor and row; SourceError and WriteError from both ends.
    """
    used = {tensor.qtype: codecs(tensor.qtype) for tensor in plan.tensors if not tensor.copied}
    for codec in used.values():
        resolve(codec.encoder)  # imports and compilers run here, once, and not in a worker
    pool = ThreadPoolExecutor(threads, thread_name_prefix="convert")
    writer: Writer | None = None
    try:
        writer = open_writer()
        _pump(_pieces(plan, rows, importance), used, writer, pool, threads, progress)
        if ready is not None:
            ready()
        writer.close()
    except BaseException:
        try:
            pool.shutdown(cancel_futures=True)
        finally:
            if writer is not None:
                writer.abort()
        raise
    pool.shutdown()


def _pump(
    pieces: Iterator[Piece],
    codecs: dict[str, QuantCodec],
    writer: Writer,
    pool: ThreadPoolExecutor,
    threads: int,
    progress: Progress | None,
) -> None:
    under_way: deque[tuple[TensorPlan, Future[Bytes]]] = deque()
    written = 0

    def write_one() -> None:
        nonlocal written
        tensor, future = under_way.popleft()
        data = future.result()
        writer.write(tensor.name, data)
        written += data.nbytes
        if progress is not None:
            progress(tensor, written)

    for piece in pieces:
        if len(under_way) >= AHEAD * threads:
            write_one()
        under_way.append((piece.tensor, pool.submit(_encoded, piece, codecs.get(piece.tensor.qtype))))
    while under_way:
        write_one()


def _pieces(plan: Plan, rows: Callable[[str], Rows], importance: Importance | None) -> Iterator[Piece]:
    """Every tensor in pieces. With importance, of which each matrix of a stack has its own, none spans two."""
    for tensor in plan.tensors:
        source = rows(tensor.name)
        count = n_rows(source)
        step = max(1, PIECE // max(1, tensor.shape[-1]))
        weights = importance.weights(tensor.name, tensor.shape) if importance and tensor.importance else None
        matrix = count if weights is None else tensor.shape[-2]
        for first in range(0, count, max(1, matrix)):
            last = min(first + matrix, count)
            own = None if weights is None else weights[first // matrix]
            for start in range(first, last, step):
                yield Piece(tensor, source, start, min(start + step, last), own)


def _encoded(piece: Piece, codec: QuantCodec | None) -> Bytes:
    try:
        return _encode(piece, codec)
    except EncodeError as error:
        if piece.tensor.inputs not in ((), (piece.tensor.name,)):
            error.message += f" (made from {listing(piece.tensor.inputs, 3)})"
        raise


def _encode(piece: Piece, codec: QuantCodec | None) -> Bytes:
    tensor, source, start, stop, importance = piece
    if codec is None or tensor.copied:
        return cast("StoredRows", source).stored(start, stop)
    x = source.read(start, stop)
    if tensor.via not in (tensor.qtype, source.dtype):
        x = _through(x, tensor, start)
    if tensor.qtype == "F16":
        refuse_overflow(x, tensor.name, start, "--quant bf16 keeps the range of the source")
    return codec.encode(x, importance, threads=1, name=tensor.name, first_row=start)


def _through(x: Float32, tensor: TensorPlan, first_row: int) -> Float32:
    """The values after a visit to the intermediate type. NaN and infinity pass, for the codec to refuse."""
    if tensor.via == "BF16":
        return bf16_to_f32(f32_to_bf16(x))
    if tensor.via == "F16":
        refuse_overflow(x, tensor.name, first_row, "--via bf16 keeps the range of the source")
        return f16_to_f32(f32_to_f16(x))
    return x


def refuse_overflow(x: Float32, name: str, first_row: int, hint: str) -> None:
    """Raise EncodeError naming the first finite value of x (rows, columns) that float16 cannot hold."""
    if x.size == 0 or max(-float(x.min()), float(x.max())) < F16_OVERFLOW:
        return
    found = np.argwhere((np.abs(x) >= F16_OVERFLOW) & np.isfinite(x))
    if len(found):
        row, column = (int(index) for index in found[0])
        raise EncodeError(
            f"tensor {name!r} holds {x[row, column]} at row {first_row + row}, column {column}, which F16 cannot hold",
            hint=hint,
        )
