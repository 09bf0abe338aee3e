"""Transposed experts: their rows are columns of the source; memory still stays within the bounds told beforehand."""

import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hf2q.convert.bounds import chunk_bounds
from hf2q.convert.pipeline import stream
from hf2q.plugins import Plugins
from hf2q.rows import View, held_by
from hf2q.types import Plan, TensorPlan
from hf2q_arch_qwen3vl.transposed import transposed

COUNT, HEIGHT, WIDTH = 6, 2048, 1536
SLACK = 1 << 20


class Nowhere:
    def write(self, name, data):
        pass

    def close(self):
        pass

    def abort(self):
        pass


def zeros(start, stop):
    return np.zeros((stop - start, 2 * WIDTH), np.float32)


@pytest.mark.parametrize("threads", [1, 4])
def test_packed_experts_stay_within_the_bounds(threads):
    source = View((COUNT, HEIGHT, 2 * WIDTH), "F32", zeros)
    parts = {"gate": transposed(source, 0, WIDTH), "up": transposed(source, WIDTH, 2 * WIDTH)}
    plan = Plan(
        arch="a",
        recipe="f16",
        via="f16",
        metadata=(),
        tensors=tuple(
            TensorPlan(
                name=name,
                shape=part.shape,
                qtype="F16",
                via="F16",
                reason="",
                nbytes=2 * COUNT * HEIGHT * WIDTH,
                offset=0,
                inputs=(),
            )
            for name, part in parts.items()
        ),
    )
    tracemalloc.start()
    try:
        stream(plan, parts.__getitem__, Plugins.load(only=["builtin"]).codec, Nowhere, threads=threads)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    held = max(held_by(part) for part in parts.values())
    bounds = chunk_bounds(plan, None, threads, held)
    assert held > 4 * HEIGHT * WIDTH
    assert peak < bounds.peak_bytes - bounds.digest_bytes + SLACK


def test_a_matrix_is_made_once_however_many_want_it():
    started, reads, lock = threading.Barrier(4), 0, threading.Lock()

    def counted(start, stop):
        nonlocal reads
        with lock:
            reads += stop - start
        return np.ones((stop - start, 8), np.float32)

    view = transposed(View((1, 512, 8), "F32", counted), 0, 8)

    def read(row):
        started.wait()
        return view.read(row, row + 1)

    with ThreadPoolExecutor(4) as pool:
        assert all(block.shape == (1, 512) for block in pool.map(read, range(4)))
    assert reads == 512


def test_a_read_that_fails_fails_for_all_who_wait():
    def broken(start, stop):
        raise OSError("gone")

    view = transposed(View((1, 16, 8), "F32", broken), 0, 8)
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(view.read, 0, 1) for _ in range(4)]:
            with pytest.raises(OSError, match="gone"):
                done.result()
