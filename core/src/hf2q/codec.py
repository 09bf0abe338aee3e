"""`QuantCodec`: the descriptor of one storage type, and the checked way into its kernels.

Plugins give two plain functions; everything that must be right for all of them (shapes, finiteness, threads) is here,
once. Nothing heavy is imported before the first call.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from hf2q.errors import EncodeError, FormatError, UsageError
from hf2q.types import Record, resolve

if TYPE_CHECKING:
    from hf2q.types import Bytes, Float32

PARALLEL_FROM = 1 << 21
"""Weights below which threads cost more than they save."""
MAX_THREADS = 1024
"""More than any machine makes use of; each costs memory for the rows it works on."""
LARGE = 65504.0
"""The largest float16: blocks keep their scales in one, which smaller weights cannot overflow."""
BEYOND = 2.0**32
"""More than any type with a float16 scale holds."""


def thread_count(threads: int | None = None) -> int:
    """How many threads to use: the argument, else ``HF2Q_THREADS``, else the CPUs this process may run on.

    Errors: UsageError for what is no number from 1 to 1024.
    """
    if threads is None:
        text = os.environ.get("HF2Q_THREADS", "").strip()
        if text:
            if not (text.isascii() and text.isdecimal() and len(text) < 10):
                raise UsageError(f"HF2Q_THREADS is {text!r}, expected a number from 1 to {MAX_THREADS}")
            threads = int(text)
        elif hasattr(os, "sched_getaffinity"):
            threads = min(len(os.sched_getaffinity(0)), MAX_THREADS)
        else:
            threads = min(os.cpu_count() or 1, MAX_THREADS)
    if not (isinstance(threads, int) and not isinstance(threads, bool) and 1 <= threads <= MAX_THREADS):
        raise UsageError(f"{threads!r:.60} threads asked for, expected a whole number from 1 to {MAX_THREADS}")
    return threads


class QuantCodec(Record, frozen=True, kw_only=True):
    """One storage type of GGUF.

    name        ggml's spelling, in capitals (``Q4_K``)
    ggml_type   its number in a GGUF tensor table
    block_size  weights in a block; rows must be a multiple of it
    type_size   bytes of a block
    encoder     ``"module:function"``: (x float32 (rows, columns), out uint8 (rows, bytes), importance float32
                (columns,) or None) -> None; both arrays C-contiguous, x finite. Pure for each row
    decoder     ``"module:function"``: (data uint8 (rows, bytes), out float32 (rows, columns)) -> None
    affine      ``"module:function"`` that repacks losslessly to scale * code + bias in groups of 32, or "" where no
                such form exists: data uint8 (rows, bytes) -> (codes uint8 (rows, columns), scales float32, biases
                float32 (rows, columns // 32), bits)
    source      where the layout is defined
    integers    it holds whole numbers, for tables, and refuses others
    needs_importance
                there is no search without importance, so `encode` refuses to do without
    """

    name: str
    ggml_type: int
    block_size: int
    type_size: int
    encoder: str
    decoder: str
    affine: str = ""
    source: str = ""
    integers: bool = False
    needs_importance: bool = False

    def row_bytes(self, columns: int) -> int:
        """Bytes of an encoded row. Errors: EncodeError when `columns` is no multiple of the block size."""
        if columns % self.block_size:
            raise EncodeError(
                f"{self.name} stores blocks of {self.block_size} weights; a row of {columns} is not a multiple of that",
                hint="choose a type with smaller blocks for this tensor, e.g. Q8_0 or F16",
            )
        return columns // self.block_size * self.type_size

    def encode(
        self,
        x: Float32,
        importance: Float32 | None = None,
        *,
        threads: int | None = None,
        name: str = "",
        first_row: int = 0,
    ) -> Bytes:
        """Encode rows of weights.

        Shapes: x float32 (rows, columns); importance float32 (columns,), a mean squared activation for each column;
            result uint8 (rows, `row_bytes(columns)`). The bytes do not depend on `threads` (default `thread_count`).
        Errors: EncodeError for another dtype or number of dimensions, a bad width, NaN or infinity, importance that
            is missing though needed, and weights so large that the type cannot hold them; `name` and `first_row` (the
            index of x[0] in the whole tensor) are used in its message.
        """
        import numpy as np

        what = f"tensor {name!r}" if name else "the array"
        if not isinstance(x, np.ndarray) or x.dtype != np.float32 or x.ndim != 2:
            found = f"{x.dtype} with {x.ndim} dimensions" if isinstance(x, np.ndarray) else type(x).__name__
            raise EncodeError(f"{self.name} encodes float32 (rows, columns); {what} is {found}")
        rows, columns = x.shape
        out = np.empty((rows, self.row_bytes(columns)), np.uint8)
        if importance is None and self.needs_importance:
            raise EncodeError(
                f"{self.name} cannot be encoded without importance, and none is known for {what}",
                hint="give an importance matrix that covers this tensor, or choose another type for it, e.g. IQ3_XXS",
            )
        if importance is not None:
            importance = np.ascontiguousarray(importance)
            if importance.dtype != np.float32 or importance.shape != (columns,):
                raise EncodeError(
                    f"importance of {what} is {importance.dtype} {importance.shape}, expected float32 ({columns},)"
                )
            if not np.isfinite(importance).all() or (importance < 0).any():
                raise EncodeError(f"importance of {what} holds a negative or non-finite value")
        # sums of a weighted search may overflow even where the weights are ordinary
        strange = importance is not None and importance.size > 0 and float(importance.max()) > LARGE**2
        x = np.ascontiguousarray(x)
        kernel = cast("Callable[..., None]", resolve(self.encoder))

        def run(start: int, stop: int) -> None:
            part = x[start:stop]
            largest = check_finite(part, self.name, what, first_row + start)
            kernel(part, out[start:stop], importance)
            if largest > LARGE or strange:
                self._check_held(part, out[start:stop], what, first_row + start)

        # a single long row is cut into blocks: without importance every codec is pure for each block
        if rows == 1 and importance is None and columns >= 2 * PARALLEL_FROM:
            largest = check_finite(x, self.name, what, first_row)
            pieces, outs = x.reshape(-1, self.block_size), out.reshape(-1, self.type_size)
            _in_parts(lambda a, b: kernel(pieces[a:b], outs[a:b], None), len(pieces), x.size, threads)
            if largest > LARGE:
                self._check_held(x, out, what, first_row)
        else:
            _in_parts(run, rows, x.size, threads)
        return out

    def _check_held(self, x: Float32, out: Bytes, what: str, first_row: int) -> None:
        """Raise EncodeError when a block's scale overflowed, so that `out` would be read as infinite, NaN or zero."""
        import numpy as np

        decoded = self.decode(out, threads=1)
        lost = ~np.isfinite(decoded).all(axis=1)
        # beyond what any float16 scale reaches, sums of a search overflow, and ggml's leave a block of zeros
        size = np.abs(x).max(axis=1)
        lost |= (size > BEYOND) & (np.abs(decoded).max(axis=1) < size / 4)
        if not lost.any():
            return
        row = int(lost.argmax())
        column = int(np.abs(x[row]).argmax())
        where = f"at row {first_row + row}, column {column}"
        raise EncodeError(
            f"{what} holds {x[row, column]:.6g} {where}; {self.name} cannot hold that",
            hint="choose a type with a wider range for this tensor, e.g. BF16 or F32",
        )

    def decode(self, data: Bytes, *, threads: int | None = None) -> Float32:
        """Decode rows: uint8 (rows, bytes) -> float32 (rows, columns).

        Errors: FormatError when the row size is no multiple of the block's bytes.
        """
        import numpy as np

        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2:
            found = f"{data.dtype} with {data.ndim} dimensions" if isinstance(data, np.ndarray) else type(data).__name__
            raise FormatError(f"{self.name} decodes uint8 (rows, bytes), found {found}")
        rows, size = data.shape
        if size % self.type_size:
            raise FormatError(f"{self.name} blocks have {self.type_size} bytes; a row of {size} is not a multiple")
        out = np.empty((rows, size // self.type_size * self.block_size), np.float32)
        data = np.ascontiguousarray(data)
        kernel = cast("Callable[..., None]", resolve(self.decoder))
        _in_parts(lambda start, stop: kernel(data[start:stop], out[start:stop]), rows, out.size, threads)
        return out


def check_finite(x: Float32, codec: str, what: str, first_row: int) -> float:
    """The largest magnitude in x (rows, columns). Errors: EncodeError naming the first NaN or infinity."""
    import numpy as np

    if x.size == 0:
        return 0.0
    # extremes carry NaN and infinity, and cost two vectorised passes without a temporary
    low, high = float(x.min()), float(x.max())
    if np.isfinite(low) and np.isfinite(high):
        return max(-low, high)
    row, column = (int(index) for index in np.argwhere(~np.isfinite(x))[0])
    raise EncodeError(
        f"{what} holds {x[row, column]} at row {first_row + row}, column {column}; {codec} encodes finite values only",
        hint="the checkpoint is damaged, or a value overflowed before it was saved",
    )


def _in_parts(work: Callable[[int, int], None], count: int, size: int, threads: int | None) -> None:
    """Call `work(start, stop)` so that 0 to `count` is covered, on several threads when `size` weights are worth it."""
    workers = min(thread_count(threads), count, max(1, size // PARALLEL_FROM))
    if workers <= 1:
        if count:
            work(0, count)
        return
    from concurrent.futures import ThreadPoolExecutor

    bounds = [count * part // workers for part in range(workers + 1)]
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work, *pair) for pair in pairwise(bounds)]:
            done.result()
