"""Encoders side by side with llama.cpp's, one thread each, on the same core, alternating in the same run.

    python bench/quantize.py [--types Q4_K,Q6_K] [--importance both] [--runs 11] [--peer PATH] [--json]

Each run times the peer's `quantize_*` and then ours on the same weights; the figure is the median of the runs' ratios
(peer's time over ours: above 1 we are faster). Time is the thread's CPU time where the system counts it finely enough,
so that other work on the machine disturbs less. The bytes of both are compared, and a difference fails the benchmark.

The peer is llama.cpp's ggml-base library: `--peer PATH`, else the environment variable HF2Q_GGML_BASE, else the one
inside the installed package llama_cpp (`make bench-peer`). Without it ours are timed alone.
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

from hf2q.formats.ggml_types import GGML_TYPES
from hf2q_quant_kquant import NEED_IMPORTANCE

NOT_MEASURED = "NotMeasured"
HOW_TO_INSTALL = "`make bench-peer` or pip install 'hf2q[bench]'; or name a libggml-base with --peer or HF2Q_GGML_BASE"

# qtype: weights per block, bytes per block, the peer's function
TYPES = {
    "Q8_0": (32, 34, "quantize_q8_0"),
    "Q4_0": (32, 18, "quantize_q4_0"),
    "Q4_1": (32, 20, "quantize_q4_1"),
    "Q5_0": (32, 22, "quantize_q5_0"),
    "Q5_1": (32, 24, "quantize_q5_1"),
    "Q2_K": (256, 84, "quantize_q2_K"),
    "Q3_K": (256, 110, "quantize_q3_K"),
    "Q4_K": (256, 144, "quantize_q4_K"),
    "Q5_K": (256, 176, "quantize_q5_K"),
    "Q6_K": (256, 210, "quantize_q6_K"),
    "IQ4_NL": (32, 18, "quantize_iq4_nl"),
    "IQ4_XS": (256, 136, "quantize_iq4_xs"),
    "IQ3_XXS": (256, 98, "quantize_iq3_xxs"),
    "IQ3_S": (256, 110, "quantize_iq3_s"),
    "IQ2_XS": (256, 74, "quantize_iq2_xs"),
    "IQ2_S": (256, 82, "quantize_iq2_s"),
    "TQ1_0": (256, 54, "quantize_tq1_0"),
    "TQ2_0": (256, 66, "quantize_tq2_0"),
    "MXFP4": (32, 17, "quantize_mxfp4"),
}
IGNORE_IMPORTANCE = ("Q8_0", "TQ1_0", "TQ2_0", "MXFP4")
ENOUGH = 0.01
"""Seconds that a timing should last at least: shorter ones measure how fast a core changes over to other code."""
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


def peer_encoder(library: ctypes.CDLL, qtype: str, importance: np.ndarray | None) -> Callable[..., Any]:
    library.ggml_quantize_init(GGML_TYPES[qtype].id)  # makes the tables of IQ2 and IQ3 types
    function = getattr(library, TYPES[qtype][2])
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    weights = None if importance is None else importance.ctypes.data
    return lambda x, out: function(x.ctypes.data, out.ctypes.data, *x.shape, weights)


def seconds(encode: Callable[[np.ndarray, np.ndarray], Any], x: np.ndarray, out: np.ndarray, times: int) -> float:
    start = CLOCK()
    for _ in range(times):
        encode(x, out)
    return (CLOCK() - start) / times


def repetitions(encode: Callable[[np.ndarray, np.ndarray], Any], x: np.ndarray, out: np.ndarray) -> int:
    """How often to call `encode` in one timing."""
    return max(1, round(ENOUGH / max(seconds(encode, x, out, 1), 1e-6)))


def measure(
    qtype: str, x: np.ndarray, importance: np.ndarray | None, library: ctypes.CDLL | None, runs: int
) -> dict[str, Any]:
    size, bytes_, _ = TYPES[qtype]
    module = importlib.import_module(f"hf2q_quant_kquant.{qtype.lower()}")
    ours = np.empty((len(x), x.shape[1] // size * bytes_), np.uint8)
    theirs = np.empty_like(ours)

    def encode(values: np.ndarray, out: np.ndarray) -> None:
        module.encode(values, out, importance)

    encode(x, ours)  # compiles
    times = repetitions(encode, x, ours)
    row: dict[str, Any] = {
        "qtype": qtype,
        "importance": importance is not None,
        "peer_mweights_per_s": NOT_MEASURED,
        "ratio": NOT_MEASURED,
    }
    if library is None:
        spent = statistics.median(seconds(encode, x, ours, times) for _ in range(runs))
        return row | {"mweights_per_s": x.size / spent / 1e6, "identical": NOT_MEASURED}
    peer = peer_encoder(library, qtype, importance)
    peer_times = repetitions(peer, x, theirs)
    pairs = [(seconds(peer, x, theirs, peer_times), seconds(encode, x, ours, times)) for _ in range(runs)]
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
        f"{'type':14}{'ours Mw/s':>12}{'peer Mw/s':>13}{'ratio':>13}{'range':>16}  identical",
    ]
    for row in report["types"]:
        low_high = "{:.2f}-{:.2f}".format(*row["ratio_range"]) if "ratio_range" in row else ""
        name = row["qtype"] + " imatrix" * row["importance"]
        lines.append(
            f"{name:14}{shown(row['mweights_per_s'], '.1f'):>12}{shown(row['peer_mweights_per_s'], '.1f'):>13}"
            f"{shown(row['ratio'], '.2f'):>13}{low_high:>16}  {row['identical']}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default=",".join(TYPES), help="comma-separated qtypes")
    parser.add_argument("--importance", choices=("without", "with", "both"), default="both", help="searches to time")
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
    random = np.random.default_rng(1)
    x = (random.standard_normal((options.rows, COLUMNS)) * 0.02).astype(np.float32)
    importance = (random.random(COLUMNS) ** 4 + 1e-3).astype(np.float32)
    rows = []
    for name in wanted:
        if options.importance != "with" and name not in NEED_IMPORTANCE:
            rows.append(measure(name, x, None, library, options.runs))
        if options.importance != "without" and name not in IGNORE_IMPORTANCE:
            rows.append(measure(name, x, importance, library, options.runs))
    report = {
        "cpu": platform.processor() or platform.machine(),
        "lanes": lanes,
        "pinned": pinned,
        "runs": options.runs,
        "peer": str(found) if found else f"{NOT_MEASURED} ({HOW_TO_INSTALL})",
        "types": rows,
    }
    print(json.dumps(report, indent=2) if options.json else table(report))
    different = sorted({row["qtype"] for row in rows if row["identical"] is False})
    if different:
        print(
            f"bytes differ from the peer's: {', '.join(different)} (a peer compiled with fused "
            "multiply-add, as for ARM or with -march, is not the reference)",
            file=sys.stderr,
        )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
