"""Conversion end to end: time, memory and how they grow, side by side with llama.cpp's two steps.

    python bench/convert.py [--sizes 0.1,0.6] [--large] [--runs 3] [--json]
    python bench/convert.py --peer-convert PATH/convert_hf_to_gguf.py --peer-quantize PATH/llama-quantize \\
        [--peer-python PYTHON]

Makes Qwen3.5 checkpoints with random weights (`checkpoint.py`) in a temporary folder and runs `hf2q convert` on them as
a process of its own, whose time and memory the operating system counts: peak memory is the largest resident set, mapped
files included. Of several runs the fastest is shown. The checkpoint was just written, so it is read from memory where
that is large enough: what is measured is the converter, not the disk.

Before that, kernels: how long the first use of all of them takes with an empty cache, where they are compiled, and a
later one, both beside a process that only starts up.

The peer's two steps are `convert_hf_to_gguf.py --outtype f16`, run by a Python that has what it needs (torch,
transformers, gguf), and `llama-quantize`. Its check of the tokenizer is answered for it: the checkpoint has a small
one that it does not know. Ratios are the peer's sum (of memory: the larger step) over ours: above 1 we need less.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

# A child begins as a copy of this process, and its peak memory counts from there: nothing large is imported here.

NOT_MEASURED = "NotMeasured"
HINT = "--peer-convert and --peer-quantize name llama.cpp's convert_hf_to_gguf.py and llama-quantize"
MAKER = Path(__file__).with_name("checkpoint.py")
SIZES, LARGE = ("0.1", "0.6"), "5"
BYTES_PER_WEIGHT = {False: 2.8, True: 5.5}
"""Disk that a size needs, without the peer and with it: checkpoint and Q4_K_M, the peer's F16 and its Q4_K_M."""

START = "import numpy; from hf2q.plugins import Plugins; Plugins.load().codecs"
KERNELS = f"""{START}
import sys
for codec in Plugins.load().codecs:
    if codec.name in sys.argv[1:] or not sys.argv[1:]:
        x = numpy.ones((1, codec.block_size), numpy.float32)
        codec.decode(codec.encode(x, x[0]))
"""
"""Uses the kernels of the types named, else of all."""
Q4_K_M = ("Q4_K", "Q6_K")
PEER = """import runpy, sys
from pathlib import Path
script, sys.argv = sys.argv[1], sys.argv[1:]
folder = Path(script).resolve().parent
sys.path[:0] = [str(folder / "gguf-py"), str(folder)]
from conversion.base import TextModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen35"
runpy.run_path(script, run_name="__main__")
"""
"""Runs convert_hf_to_gguf.py with its check of the tokenizer answered."""


class Failed(Exception):
    """A child ended with another exit code than 0."""


def measured(command: Sequence[str], env: Mapping[str, str] | None = None) -> dict[str, float]:
    """Run a command to its end: wall and CPU seconds, peak memory in bytes. Errors: Failed with its last words."""
    with tempfile.TemporaryFile() as said:
        started = time.perf_counter()
        child = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            said.seek(0)
            last = said.read().decode(errors="replace").strip().splitlines()[-12:]
            raise Failed(f"{' '.join(command[:4])} … ended with {child.returncode}:\n" + "\n".join(last))
    unit = 1 if sys.platform == "darwin" else 1024
    return {"wall_s": wall, "cpu_s": usage.ru_utime + usage.ru_stime, "peak_bytes": usage.ru_maxrss * unit}


def fastest(runs: int, run: Callable[[], dict[str, float]]) -> dict[str, float]:
    """The run with the least wall time."""
    return min((run() for _ in range(runs)), key=lambda found: found["wall_s"])


def measure_kernels(folder: Path) -> dict[str, Any]:
    """First and later use of every codec, and of a small conversion, as seconds of wall and CPU time."""
    python, source = [sys.executable, "-c"], folder / "tiny"
    make(source, "tiny")
    start = fastest(3, lambda: measured([*python, START]))
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        env = os.environ | {"HF2Q_CACHE_DIR": cache}
        first = measured([*python, KERNELS], env)
        later = fastest(3, lambda: measured([*python, KERNELS], env))
        few = fastest(3, lambda: measured([*python, KERNELS, *Q4_K_M], env))
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        env = os.environ | {"HF2Q_CACHE_DIR": cache}
        command = hf2q(source, folder / "tiny.gguf", "q4_k_m", None)
        first_small = measured(command, env)
        small = fastest(3, lambda: measured(command, env))
    return {
        "start": start,
        "all_kernels_first": first,
        "all_kernels_later": later,
        "q4_k_m_kernels_later": few,
        "compile_s": first["wall_s"] - later["wall_s"],
        "later_overhead_s": later["wall_s"] - start["wall_s"],
        "q4_k_m_overhead_s": few["wall_s"] - start["wall_s"],
        "small_conversion_first": first_small,
        "small_conversion_later": small,
    }


def make(folder: Path, size: str) -> int:
    """Make a checkpoint; the number of its parameters."""
    command = [sys.executable, str(MAKER), str(folder), "--size", size]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def hf2q(source: Path, output: Path, recipe: str, threads: int | None) -> list[str]:
    words = ["convert", str(source), "--quant", recipe, "-o", str(output), "--force"]
    words += [] if threads is None else ["--threads", str(threads)]
    return [sys.executable, "-m", "hf2q", *words]


def measure_size(folder: Path, size: str, options: argparse.Namespace) -> dict[str, Any]:
    source, output = folder / size, folder / f"{size}.gguf"
    parameters = make(source, size)
    read = (source / "model.safetensors").stat().st_size
    ours = fastest(options.runs, lambda: measured(hf2q(source, output, options.recipe, options.threads)))
    row = {
        "size": size,
        "parameters": parameters,
        "read_bytes": read,
        "written_bytes": output.stat().st_size,
        "ours": ours,
        "read_bytes_per_s": read / ours["wall_s"],
        "ns_per_parameter": 1e9 * ours["wall_s"] / parameters,
        "cpu_ns_per_parameter": 1e9 * ours["cpu_s"] / parameters,
        "peer": measure_peer(source, folder, options),
    }
    shutil.rmtree(source)
    output.unlink()
    return row | {"ratios": ratios(row)}


def measure_peer(source: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The peer's two steps, or why they were not measured."""
    if not options.peer_convert:
        return {"status": NOT_MEASURED, "reason": HINT}
    between, output = folder / "peer-f16.gguf", folder / "peer.gguf"
    threads = [] if options.threads is None else [str(options.threads)]
    convert = [options.peer_python, "-c", PEER, options.peer_convert, str(source), "--outfile", str(between)]
    quantize = [options.peer_quantize, str(between), str(output), options.recipe.upper(), *threads]
    try:
        return {
            "convert": fastest(options.peer_runs, lambda: measured([*convert, "--outtype", "f16"])),
            "quantize": fastest(options.peer_runs, lambda: measured(quantize)),
        }
    except (Failed, OSError) as problem:
        return {"status": NOT_MEASURED, "reason": str(problem)}
    finally:
        between.unlink(missing_ok=True)
        output.unlink(missing_ok=True)


def ratios(row: Mapping[str, Any]) -> dict[str, float] | str:
    ours, peer = row["ours"], row["peer"]
    if "status" in peer:
        return NOT_MEASURED
    steps = (peer["convert"], peer["quantize"])
    return {
        "wall": sum(step["wall_s"] for step in steps) / ours["wall_s"],
        "cpu": sum(step["cpu_s"] for step in steps) / ours["cpu_s"],
        "peak": max(step["peak_bytes"] for step in steps) / ours["peak_bytes"],
    }


def growth(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """From one size to the next: nanoseconds for each further parameter. Linear growth keeps them equal."""
    return [
        {
            "from": small["size"],
            "to": large["size"],
            "ns_per_further_parameter": 1e9 * (large["ours"]["wall_s"] - small["ours"]["wall_s"]) / more,
            "cpu_ns_per_further_parameter": 1e9 * (large["ours"]["cpu_s"] - small["ours"]["cpu_s"]) / more,
        }
        for small, large in pairwise(rows)
        for more in (large["parameters"] - small["parameters"],)
    ]


def table(report: Mapping[str, Any]) -> str:
    kernels = report["kernels"]
    lines = [
        f"{report['cpu']}, {report['cpus']} CPUs, load {report['load']}; {report['recipe']}, fastest of "
        f"{report['runs']} runs",
        "",
        f"all kernels: compiled in {kernels['compile_s']:.1f} s at first use, later loaded in "
        f"{kernels['later_overhead_s']:.2f} s (those of q4_k_m: {kernels['q4_k_m_overhead_s']:.2f} s); "
        f"start-up without them {kernels['start']['wall_s']:.2f} s",
        f"a small conversion: {kernels['small_conversion_first']['wall_s']:.2f} s at first, then "
        f"{kernels['small_conversion_later']['wall_s']:.2f} s",
        "",
        f"{'parameters':>14}"
        + "".join(f"{name:>9}" for name in ("wall s", "CPU s", "peak MB", "MB/s", "ns/par.", "CPU ns")),
    ]
    for row in report["sizes"]:
        lines.append(
            f"{row['parameters']:14,}{shown(row['ours'])}{row['read_bytes_per_s'] / 1e6:9.0f}"
            f"{row['ns_per_parameter']:9.2f}{row['cpu_ns_per_parameter']:9.2f}"
        )
        peer = row["peer"]
        if "status" in peer:
            lines.append(f"{'peer':>14}  {peer['status']} ({peer['reason']})")
            continue
        lines += [f"{f'peer {step}':>14}{shown(peer[step])}" for step in ("convert", "quantize")]
        lines.append(f"{'ratio':>14}" + "".join(f"{row['ratios'][what]:9.2f}" for what in ("wall", "cpu", "peak")))
    for step in report["growth"]:
        lines.append(
            f"from {step['from']} to {step['to']} billion: {step['ns_per_further_parameter']:.2f} ns for each further "
            f"parameter, CPU {step['cpu_ns_per_further_parameter']:.2f} ns"
        )
    return "\n".join(lines)


def shown(found: Mapping[str, float]) -> str:
    return f"{found['wall_s']:9.2f}{found['cpu_s']:9.2f}{found['peak_bytes'] / 1e6:9.0f}"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(SIZES), help="billions of parameters: 0.1, 0.6, 5")
    parser.add_argument("--large", action="store_true", help=f"also {LARGE} (14 GB of disk, with the peer 28)")
    parser.add_argument("--recipe", default="q4_k_m")
    parser.add_argument("--threads", type=int, help="default: what each program takes by itself")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--peer-runs", type=int, default=1)
    parser.add_argument("--folder", help="where the temporary folder is made (default: where the system has them)")
    parser.add_argument("--peer-convert", help="path of llama.cpp's convert_hf_to_gguf.py")
    parser.add_argument("--peer-python", default=sys.executable, help="the Python that runs it")
    parser.add_argument("--peer-quantize", help="path of llama-quantize")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.sizes = [*options.sizes.split(","), *([LARGE] if options.large else [])]
    if unknown := sorted(set(options.sizes) - {*SIZES, LARGE}):
        parser.error(f"unknown sizes: {', '.join(unknown)}; known: {', '.join((*SIZES, LARGE))}")
    if options.runs < 1 or options.peer_runs < 1:
        parser.error("--runs and --peer-runs are 1 or more")
    if bool(options.peer_convert) != bool(options.peer_quantize):
        parser.error("the peer's two steps go together: give both --peer-convert and --peer-quantize, or neither")
    if not hasattr(os, "wait4"):
        parser.error("this system does not count a child's memory (os.wait4)")
    return options


def main() -> int:
    options = parsed()
    load = "{:.1f}".format(*os.getloadavg())
    with tempfile.TemporaryDirectory(prefix="hf2q-bench-", dir=options.folder) as name:
        folder = Path(name)
        largest = max(float(size) for size in options.sizes) * 1e9
        need, free = int(BYTES_PER_WEIGHT[bool(options.peer_convert)] * largest), shutil.disk_usage(folder).free
        if need > free:
            sys.exit(
                f"{folder.parent} has {free / 1e9:.1f} GB free, {need / 1e9:.1f} are needed; --folder names another"
            )
        try:
            kernels = measure_kernels(folder)
            rows = [measure_size(folder, size, options) for size in options.sizes]
        except Failed as problem:
            sys.exit(str(problem))
    report = {
        "cpu": platform.processor() or platform.machine(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": load,
        "recipe": options.recipe,
        "runs": options.runs,
        "kernels": kernels,
        "sizes": rows,
        "growth": growth(rows),
    }
    print(json.dumps(report, indent=2) if options.json else table(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
