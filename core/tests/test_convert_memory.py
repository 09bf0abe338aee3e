"""Memory of the stream against the bounds told beforehand, for shapes that no real model has."""

import tracemalloc

import numpy as np
import pytest

from hf2q import rows
from hf2q.convert.bounds import COPIES, chunk_bounds
from hf2q.convert.pipeline import PIECE, stream
from hf2q.plugins import Plugins
from hf2q.types import Plan, TensorPlan

SLACK = 1 << 20
"""What the machinery itself allocates: threads, futures, a few objects for each piece."""


class Nowhere:
    """A writer that counts."""

    def __init__(self):
        self.nbytes = 0

    def write(self, name, data):
        self.nbytes += data.nbytes

    def close(self):
        pass

    def abort(self):
        pass


def virtual(shape, dtype="F32"):
    """Rows of zeros that are made when they are read."""
    return rows.View(shape, dtype, lambda start, stop: np.zeros((stop - start, shape[-1]), np.float32))


def stacked(shape):
    return rows.stack([virtual(shape[1:])] * shape[0])


def halves(shape):
    experts, width, columns = shape
    index = np.arange(experts * 2 * width).reshape(experts, 2, width)[:, 0].reshape(-1)
    return rows.take_rows(virtual((experts, 2 * width, columns)), index, shape)


def doubled(shape):
    return rows.elementwise(virtual(shape), lambda x: x * np.float32(2) + np.float32(1))


def reordered(shape):
    return rows.gather_columns(virtual(shape), np.arange(shape[-1])[::-1].copy())


CASES = {
    "rows of 300,000": ((64, 300_000), virtual),
    "rows beyond a piece": ((8, 3 * PIECE + 1), virtual),
    "one row beyond a piece": ((1, 5_000_000), doubled),
    "columns in another order": ((40, 300_000), reordered),
    "a column": ((1 << 23, 1), virtual),
    "single experts": ((512, 96, 1024), stacked),
    "packed experts": ((64, 256, 1024), halves),
    "a vector": ((4_000_000,), doubled),
}


@pytest.mark.parametrize(("shape", "make"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("threads", [1, 3])
def test_the_stream_stays_within_its_bounds(shape, make, threads):
    plugins = Plugins.load(only=["builtin"])
    nbytes = plugins.codec("F16").row_bytes(shape[-1]) * int(np.prod(shape[:-1]))
    tensor = TensorPlan(
        name="x.weight", shape=shape, qtype="F16", via="BF16", reason="", nbytes=nbytes, offset=0, inputs=()
    )
    plan = Plan(arch="a", recipe="f16", via="bf16", metadata=(), tensors=(tensor,))
    source, writer = make(shape), Nowhere()
    tracemalloc.start()
    try:
        stream(plan, lambda name: source, plugins.codec, lambda: writer, threads=threads)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    bounds = chunk_bounds(plan, None, threads)
    assert writer.nbytes == nbytes
    assert peak < bounds.peak_bytes - bounds.digest_bytes + SLACK
    assert bounds.piece_bytes == 4 * max(shape[-1], PIECE // shape[-1] * shape[-1])


def test_what_reading_holds_is_counted_for_every_worker():
    tensor = TensorPlan(name="x", shape=(4, 8), qtype="F32", via="F32", reason="", nbytes=128, offset=0, inputs=())
    plan = Plan(arch="a", recipe="f32", via="f32", metadata=(), tensors=(tensor,))
    without, held = chunk_bounds(plan, None, 3), chunk_bounds(plan, None, 3, 1000)
    assert held.peak_bytes - without.peak_bytes == 3000
    assert (without.reading_bytes, held.reading_bytes) == (0, 1000)
    assert without.peak_bytes == 3 * COPIES * 128 + 7 * 128 + without.digest_bytes
