"""Encoders side by side with llama.cpp's, one thread each, on the same core, alternating in the same run.

    python bench/quantize.py [--types Q4_K,Q6_K] [--runs 11] [--peer PATH] [--json]

Each run times the peer's `quantize_*` and then ours on the same weights; the figure is the median of the runs' ratios
(peer's time over ours: above 1 we are faster). Time is the thread's CPU time where the system counts it finely enough,
so that other work on the machine disturbs less. The bytes of both are compared, and a difference fails the benchmark.

The peer is llama.cpp's ggml-base library: `--peer PATH`, else the environment variable HF2Q_GGML_BASE, else the one
inside the installed package llama_cpp (`pip install llama-cpp-python`). Without it ours are timed alone.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.util
import json
import logging
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

NOT_MEASURED = "NotMeasured"
HOW_TO_INSTALL = "pip install llama-cpp-python, or name a libggml-base with --peer or HF2Q_GGML_BASE"

# qtype: weights per block, bytes per block, the peer's function, repetitions per timing
TYPES = {
    "Q8_0": (32, 34, "quantize_q8_0", 8),
    "Q4_0": (32, 18, "quantize_q4_0", 4),
    "Q5_0": (32, 22, "quantize_q5_0", 4),
    "Q4_K": (256, 144, "quantize_q4_K", 1),
    "Q6_K": (256, 210, "quantize_q6_K", 1),
}
COLUMNS = 4096
CLOCK = time.thread_time if time.get_clock_info("thread_time").resolution <= 1e-6 else time.perf_counter


def find_peer(given: str | None) -> Path | None:
    """The peer's library, or None; a path that was given but does not exist ends the program."""
    named = given or os.environ.get("HF2Q_GGML_BASE")
    if named:
        if not Path(named).is_file():
            sys.exit(f"no peer library at {named}")
        return Path(named)
    spec = importlib.util.find_spec("llama_cpp")
    folders = [Path(place) / "lib" for place in (spec.submodule_search_locations or [])] if spec else []
    found = [file for folder in folders for file in sorted(folder.glob("*ggml-base.*"))]
    return found[0] if found else None


def peer_encoder(library: ctypes.CDLL, qtype: str) -> Callable[[np.ndarray, np.ndarray], Any]:
    function = getattr(library, TYPES[qtype][2])
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    return lambda x, out: function(x.ctypes.data, out.ctypes.data, *x.shape, None)


def seconds(encode: Callable[[np.ndarray, np.ndarray], Any], x: np.ndarray, out: np.ndarray, times: int) -> float:
    start = CLOCK()
    for _ in range(times):
        encode(x, out)
    return (CLOCK() - start) / times


def measure(qtype: str, x: np.ndarray, library: ctypes.CDLL | None, runs: int) -> dict[str, Any]:
    size, bytes_, _, times = TYPES[qtype]
    module = importlib.import_module(f"hf2q_quant_kquant.{qtype.lower()}")
    ours = np.empty((len(x), x.shape[1] // size * bytes_), np.uint8)
    theirs = np.empty_like(ours)

    def encode(values: np.ndarray, out: np.ndarray) -> None:
        module.encode(values, out, None)

    encode(x, ours)  # compiles
    row: dict[str, Any] = {"qtype": qtype, "peer_mweights_per_s": NOT_MEASURED, "ratio": NOT_MEASURED}
    if library is None:
        spent = statistics.median(seconds(encode, x, ours, times) for _ in range(runs))
        return row | {"mweights_per_s": x.size / spent / 1e6, "identical": NOT_MEASURED}
    peer = peer_encoder(library, qtype)
    pairs = [(seconds(peer, x, theirs, times), seconds(encode, x, ours, times)) for _ in range(runs)]
    ratios = sorted(p / o for p, o in pairs)
    return row | {
        "peer_mweights_per_s": x.size / statistics.median(p for p, _ in pairs) / 1e6,
        "mweights_per_s": x.size / statistics.median(o for _, o in pairs) / 1e6,
        "ratio": statistics.median(ratios),
        "ratio_range": [ratios[0], ratios[-1]],
        "identical": bool(np.array_equal(ours, theirs)),
    }


def pin(core: int) -> str:
    """Keep this process on one core, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        return "not pinned"
    os.sched_setaffinity(0, {core})
    return f"core {core}"


def table(report: dict[str, Any]) -> str:
    def shown(value: Any, form: str) -> str:
        return value if isinstance(value, str) else format(value, form)

    lines = [
        f"{report['cpu']}, {report['lanes']} lanes, one thread on {report['pinned']}, median of {report['runs']} runs",
        f"peer: {report['peer']}",
        "",
        f"{'type':6}{'ours Mw/s':>12}{'peer Mw/s':>13}{'ratio':>13}{'range':>16}  identical",
    ]
    for row in report["types"]:
        low_high = "{:.2f}-{:.2f}".format(*row["ratio_range"]) if "ratio_range" in row else ""
        lines.append(
            f"{row['qtype']:6}{shown(row['mweights_per_s'], '.1f'):>12}{shown(row['peer_mweights_per_s'], '.1f'):>13}"
            f"{shown(row['ratio'], '.2f'):>13}{low_high:>16}  {row['identical']}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default=",".join(TYPES), help="comma-separated qtypes")
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--rows", type=int, default=128, help=f"rows of {COLUMNS} weights")
    parser.add_argument(
        "--core", type=int, default=max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    )
    parser.add_argument("--peer", help="path of the peer's ggml-base library")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    wanted = options.types.split(",")
    if unknown := [name for name in wanted if name not in TYPES]:
        parser.error(f"unknown types: {', '.join(unknown)}; known: {', '.join(TYPES)}")
    logging.basicConfig(level=logging.WARNING)
    pinned = pin(options.core)
    lanes = importlib.import_module("hf2q.simd").LANES
    found = find_peer(options.peer)
    library = ctypes.CDLL(str(found)) if found else None
    x = (np.random.default_rng(1).standard_normal((options.rows, COLUMNS)) * 0.02).astype(np.float32)
    rows = [measure(name, x, library, options.runs) for name in wanted]
    report = {
        "cpu": platform.processor() or platform.machine(),
        "lanes": lanes,
        "pinned": pinned,
        "runs": options.runs,
        "peer": str(found) if found else f"{NOT_MEASURED} ({HOW_TO_INSTALL})",
        "types": rows,
    }
    print(json.dumps(report, indent=2) if options.json else table(report))
    different = [row["qtype"] for row in rows if row["identical"] is False]
    if different:
        print(
            f"bytes differ from the peer's: {', '.join(different)} (a peer compiled with fused "
            "multiply-add, as for ARM or with -march, is not the reference)",
            file=sys.stderr,
        )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
