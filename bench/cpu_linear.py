"""Linear layers of the cpu backend side by side with llama.cpp's, alternating in the same run.

    python bench/cpu_linear.py [--types Q4_K,Q8_0,F16] [--rows 1,8,512] [--shape 3584x1024] [--layers 24] [--threads 1]
                               [--runs 5] [--exact] [--peer FOLDER] [--json]

Each run multiplies `rows` activations by `layers` matrices of the shape (out x in), one after the other, in the peer
and then here; the figure is the ratio of the best times (above 1 we are faster), beside our GB/s of weights and our
GFLOP/s. With one thread time is the thread's CPU time, so that other work on the machine disturbs less; with more it is
wall time. Results are compared with float64 products of the decoded weights; an error above the bound fails.

The peer is llama.cpp's libggml-base and libggml-cpu in one folder: `--peer FOLDER`, else the environment variable
HF2Q_GGML, else the installed package llama_cpp. It chooses its own layout (its repacked buffers where they take the
weight). Without it ours is timed alone. HF2Q_CPU_ISA forces a way on our side; the peer's is fixed when it is built.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hf2q.backends.cpu.isa import isa
from hf2q.backends.cpu.linear import Linear
from hf2q.backends.cpu.matrix import Matrix
from hf2q.backends.cpu.team import Team
from hf2q.formats.ggml_types import GGML_TYPES
from hf2q.plugins import Plugins

NOT_MEASURED = "NotMeasured"
BOUND = 0.1
"""Largest error in standard deviations of the result: int8 activations stay below 0.03."""


class Parameters(ctypes.Structure):
    """struct ggml_init_params."""

    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class Peer:
    """`layers` products in one graph of ggml, weights in the buffer type that ggml itself would choose."""

    def __init__(self, folder: Path, qtype: str, blocks: Any, x: Any, layers: int, threads: int) -> None:
        self.base = base = ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
        cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"))
        for library, names in (
            (base, "ggml_init ggml_new_tensor_2d ggml_mul_mat ggml_new_graph ggml_backend_alloc_ctx_tensors_from_buft"),
            (cpu, "ggml_backend_cpu_init ggml_backend_cpu_buffer_type _Z35ggml_backend_cpu_repack_buffer_typev"),
        ):
            for name in names.split():
                getattr(library, name).restype = ctypes.c_void_p
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        base.ggml_new_tensor_2d.argtypes = pointer, ctypes.c_int, number, number
        base.ggml_mul_mat.argtypes = pointer, pointer, pointer
        base.ggml_backend_tensor_set.argtypes = pointer, pointer, ctypes.c_size_t, ctypes.c_size_t
        base.ggml_backend_tensor_get.argtypes = pointer, pointer, ctypes.c_size_t, ctypes.c_size_t
        base.ggml_backend_alloc_ctx_tensors_from_buft.argtypes = pointer, pointer
        base.ggml_build_forward_expand.argtypes = pointer, pointer
        base.ggml_new_graph.argtypes = (pointer,)
        base.ggml_backend_graph_compute.argtypes = pointer, pointer
        self.backend = cpu.ggml_backend_cpu_init()
        cpu.ggml_backend_cpu_set_n_threads(ctypes.c_void_p(self.backend), threads)
        rows, columns = len(blocks), x.shape[1]
        kind = GGML_TYPES[qtype].id
        weights, rest = (base.ggml_init(Parameters(1 << 24, None, True)) for _ in range(2))
        tensors = [base.ggml_new_tensor_2d(weights, kind, columns, rows) for _ in range(layers)]
        plain, repacked = cpu.ggml_backend_cpu_buffer_type(), cpu._Z35ggml_backend_cpu_repack_buffer_typev()
        # ggml's loader asks whether the repacked buffer supports the product; these are the types it takes here
        takes = qtype in ("Q4_0", "Q4_K", "IQ4_NL", "MXFP4") and rows % 8 == 0
        base.ggml_backend_alloc_ctx_tensors_from_buft(weights, repacked if takes else plain)
        for tensor in tensors:
            base.ggml_backend_tensor_set(tensor, blocks.ctypes.data, 0, blocks.nbytes)
        source = base.ggml_new_tensor_2d(rest, 0, columns, len(x))
        results = [base.ggml_mul_mat(rest, tensor, source) for tensor in tensors]
        self.graph = base.ggml_new_graph(rest)
        for result in results:
            base.ggml_build_forward_expand(self.graph, result)
        base.ggml_backend_alloc_ctx_tensors_from_buft(rest, plain)
        base.ggml_backend_tensor_set(source, x.ctypes.data, 0, x.nbytes)
        self.last, self.y = results[-1], np.empty((len(x), rows), np.float32)

    def run(self) -> None:
        self.base.ggml_backend_graph_compute(self.backend, self.graph)

    def result(self) -> Any:
        self.base.ggml_backend_tensor_get(self.last, self.y.ctypes.data, 0, self.y.nbytes)
        return self.y


def find_peer(given: str) -> Path | None:
    """The folder with the peer's libraries, if there is one."""
    spec = None if given or os.environ.get("HF2Q_GGML") else importlib.util.find_spec("llama_cpp")
    inside = Path(spec.origin).parent / "lib" if spec and spec.origin else Path("nowhere")
    folder = Path(given or os.environ.get("HF2Q_GGML", "") or inside)
    return folder if (folder / "libggml-cpu.so").exists() else None


def seconds(work: Callable[[], Any], clock: Callable[[], float]) -> float:
    start = clock()
    work()
    return clock() - start


def measure(qtype: str, rows: int, options: argparse.Namespace, folder: Path | None, linear: Linear) -> dict[str, Any]:
    """One line of the table."""
    out, columns = map(int, options.shape.split("x"))
    random = np.random.default_rng(0)
    codec = Plugins.load().codec(qtype)
    few = random.standard_normal((min(out, 64), columns)).astype(np.float32) * np.float32(0.02)
    importance = np.ones(columns, np.float32) if codec.needs_importance else None
    encoded = codec.encode(few, importance=importance)
    blocks = np.ascontiguousarray(np.resize(encoded, (out, encoded.shape[1])))
    x = random.standard_normal((rows, columns)).astype(np.float32)
    matrices = [Matrix.load(linear.team, codec, blocks, (out, columns)) for _ in range(options.layers)]
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    mine: list[Any] = []

    def ours() -> None:
        mine[:] = [linear.matmul(x, matrix)[0] for matrix in matrices]

    start = time.perf_counter()
    ours()
    first = time.perf_counter() - start
    peer = Peer(folder, qtype, blocks, x, options.layers, options.threads) if folder else None
    if peer:
        peer.run()
    best_peer = best_ours = float("inf")
    for _ in range(options.runs):
        if peer:
            best_peer = min(best_peer, seconds(peer.run, clock))
        best_ours = min(best_ours, seconds(ours, clock))
    exact = x.astype(np.float64) @ codec.decode(blocks).T.astype(np.float64)
    errors = [float(np.abs(y - exact).max() / exact.std()) for y in (mine[-1], *([peer.result()] if peer else []))]
    if max(errors) > BOUND:
        raise SystemExit(f"{qtype} with {rows} rows is wrong: errors {errors}")
    size = blocks.nbytes * options.layers
    return {
        "qtype": qtype,
        "rows": rows,
        "ratio": round(best_peer / best_ours, 3) if peer else NOT_MEASURED,
        "gigabytes_per_second": round(size / best_ours / 1e9, 2),
        "gflops": round(2 * rows * out * columns * options.layers / best_ours / 1e9, 1),
        "milliseconds": round(best_ours * 1e3, 3),
        "peer_milliseconds": round(best_peer * 1e3, 3) if peer else NOT_MEASURED,
        "first_call_seconds": round(first, 2),
        "errors": [round(error, 5) for error in errors],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default="Q4_K,Q6_K,Q8_0,F16")
    parser.add_argument("--rows", default="1,8,512")
    parser.add_argument("--shape", default="3584x1024")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--peer", default="")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = find_peer(options.peer)
    lines = []
    with Team(options.threads) as team:
        linear = Linear(team, exact=options.exact)
        for qtype in options.types.split(","):
            for rows in map(int, options.rows.split(",")):
                line = measure(qtype, rows, options, folder, linear)
                lines.append(line)
                if not options.json:
                    print("  ".join(f"{key} {value}" for key, value in line.items()), flush=True)
    if options.json:
        print(json.dumps({"isa": isa(), "threads": options.threads, "shape": options.shape, "lines": lines}, indent=1))
    elif folder is None:
        print("no peer: name a folder with libggml-base and libggml-cpu with --peer or HF2Q_GGML")


if __name__ == "__main__":
    main()
