"""What a tensor loses in a type, measured on a sample of its rows.

The loss is a share: the sum of squared differences, each weighted by the importance of its column, over the same sum
of the weights themselves. With an importance matrix, whose values are mean squared activations, it is the expected
squared error of the product with the tensor over the product's own expected square, for inputs whose columns are
uncorrelated. Being a share, it can be compared between tensors of any size and scale: to first order the divergence of
a model's predictions is a sum of such shares, one for each product (Malinovskii et al., Pushing the Limits of Large
Language Model Quantization via the Linearity Theorem, 2024).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from hf2q.codec import QuantCodec
from hf2q.convert.importance import UNWEIGHTED
from hf2q.types import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hf2q.types import Float32

SAMPLE = 1 << 17
"""Most weights of a tensor that are looked at, but for a row of more."""
RUNS = 16
"""Places in a tensor that they are taken from."""


def sample_places(rows: int, columns: int, matrices: int = 1, *, most: int = SAMPLE) -> Iterator[tuple[int, int, int]]:
    """Runs of rows spread evenly over a tensor: (matrix, first row, last row + 1), rows counted over all matrices.

    `rows` of all matrices together, each of `rows` / `matrices`; a run never leaves its matrix. A tensor of at most
    `most` weights is taken whole.
    """
    each = rows // matrices
    if rows * columns <= most:
        yield from ((matrix, matrix * each, (matrix + 1) * each) for matrix in range(matrices))
        return
    wanted = max(1, most // columns)
    runs = min(wanted, RUNS)
    length = max(1, wanted // runs)
    last = -1
    for run in range(runs):
        middle = rows * (2 * run + 1) // (2 * runs)
        matrix = middle // each
        start = max(matrix * each, last, min(middle - length // 2, (matrix + 1) * each - length))
        stop = min(start + length, (matrix + 1) * each)
        if start < stop:
            last = stop
            yield matrix, start, stop


def losses(
    rows: Rows, importance: Float32 | None, codecs: Sequence[QuantCodec], *, name: str, threads: int
) -> tuple[float, ...]:
    """The loss of a tensor in the type of each codec, as a share; 0 for a tensor of zeros.

    importance  float32 (matrices, columns) of a tensor whose outer sizes are as many matrices, or None
    Errors: EncodeError naming the tensor, for values that cannot be encoded; what reading raises.
    """
    shape = rows.shape
    columns, count = shape[-1], prod(shape[:-1])
    lost = np.zeros(len(codecs), np.float64)
    whole = 0.0
    for matrix, start, stop in sample_places(count, columns, 1 if importance is None else len(importance)):
        x = rows.read(start, stop)
        weights = None if importance is None else importance[matrix]
        scale = 1.0 if weights is None else weights.astype(np.float64)
        whole += float((np.square(x, dtype=np.float64) * scale).sum())
        for place, codec in enumerate(codecs):
            known = None if codec.name in UNWEIGHTED else weights
            coded = codec.encode(x, known, threads=threads, name=name, first_row=start)
            difference = np.subtract(codec.decode(coded, threads=threads), x, dtype=np.float64)
            lost[place] += float((np.square(difference) * scale).sum())
    return tuple(float(value) for value in (lost / whole if whole else np.zeros_like(lost)))
