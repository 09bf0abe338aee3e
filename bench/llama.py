"""Whole models end to end on the cpu backend, side by side with llama-bench, alternating in the same run.

    python bench/llama.py [--types q4_k_m,q8_0,f16] [--size 0.6] [--threads 2] [-p 512] [-n 64] [--slots 8] [--runs 3]
                          [--peer PATH] [--program PATH] [--folder FOLDER] [--json]

A Qwen3.5 checkpoint with random weights is made and converted to each type. Then, run by run, the peer and `hf2q bench`
take turns as processes of their own on the same file, each test three times; the figure is the best of all of each, as
tokens per second, and their ratio (above 1 we are faster). Beside it: decoding of several sequences together, as many
tokens each, over one; the seconds from the start of a process to its first token (the file in the system's cache,
kernels compiled before); and the peak of resident memory over the size of the file.

The peer is llama.cpp's llama-bench: --peer PATH, else the environment variable HF2Q_LLAMA_BENCH. Without it ours is
measured alone. llama-bench neither reads a tokenizer nor writes text; --program, else HF2Q_LLAMA_COMPLETION, names
llama-completion, whose first token is timed too. HF2Q_CPU_ISA forces a way on our side; the peer's is fixed when it is
built. --folder keeps the files.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import checkpoint

NOT_MEASURED = "NotMeasured"
EACH = "3"
"""Repetitions of a test in a process, after one that does not count."""
HF2Q = [sys.executable, "-m", "hf2q"]


def run(command: list[str]) -> tuple[Any, float]:
    """What a process prints as JSON, and its seconds."""
    started = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout), time.perf_counter() - started


def ours(file: Path, wanted: argparse.Namespace, *, prompt: int, generate: int, slots: int = 1) -> dict[str, Any]:
    """What `hf2q bench` tells of one process."""
    counts = ["-p", str(prompt), "-n", str(generate), "-t", str(wanted.threads), "-r", EACH, "--slots", str(slots)]
    found: dict[str, Any] = run([*HF2Q, "bench", str(file), *counts, "--backend", "cpu", "--json"])[0]
    return found


def peer(file: Path, wanted: argparse.Namespace) -> dict[str, float]:
    """Tokens per second of both tests."""
    counts = ["-p", str(wanted.prompt), "-n", str(wanted.generate), "-t", str(wanted.threads), "-r", EACH, "-ngl", "0"]
    tests, _ = run([wanted.peer, "-m", str(file), *counts, "-o", "json"])
    return {"decode" if test["n_gen"] else "prefill": max(test["samples_ts"]) for test in tests}


def first_token(file: Path, wanted: argparse.Namespace) -> dict[str, float]:
    """Seconds of whole processes that read eight tokens and tell what comes next: ours, and the peer's two."""
    threads = str(wanted.threads)
    one = ["--prompt", "12345678", "--max-tokens", "1", "--threads", threads, "--backend", "cpu", "--json"]
    commands = {"first": [*HF2Q, "generate", "--model", str(file), *one]}
    if wanted.peer:
        commands["peer first"] = [wanted.peer, "-m", str(file), "-p", "8", "-n", "0", "-t", threads, "-r", "1"]
        commands["peer first"] += ["--no-warmup", "-ngl", "0", "-o", "json"]
    if wanted.program:
        commands["program first"] = [wanted.program, "-m", str(file), "-p", "12345678", "-n", "1", "-t", threads]
        commands["program first"] += ["-no-cnv", "--no-warmup"]
    waits = {}
    for name, command in commands.items():
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
        waits[name] = time.perf_counter() - started
    return waits


def measure(file: Path, wanted: argparse.Namespace) -> dict[str, Any]:
    """The best of all runs of one file."""
    best: dict[str, float] = {}

    def keep(name: str, rate: float) -> None:
        best[name] = max(best.get(name, 0.0), rate)

    waits: dict[str, float] = {}
    size, peak = file.stat().st_size, 0
    ours(file, wanted, prompt=4, generate=1)  # compiles kernels
    for _ in range(wanted.runs):
        if wanted.peer:
            for name, rate in peer(file, wanted).items():
                keep(f"peer {name}", rate)
        one = ours(file, wanted, prompt=wanted.prompt, generate=wanted.generate)
        peak = max(peak, one["peak_memory"] or 0)
        for name in ("prefill", "decode"):
            keep(name, max(one[name]["samples"]))
        many = ours(file, wanted, prompt=0, generate=wanted.generate, slots=wanted.slots)
        keep("slots", max(many["decode"]["samples"]))
        for name, seconds in first_token(file, wanted).items():
            waits[name] = min(waits.get(name, seconds), seconds)

    def over(a: float | None, b: float | None) -> float | str:
        return NOT_MEASURED if a is None or b is None else round(a / b, 2)

    return {
        "decode": round(best["decode"], 1),
        "peer_decode": round(best["peer decode"], 1) if wanted.peer else NOT_MEASURED,
        "decode_ratio": over(best["decode"], best.get("peer decode")),
        "prefill": round(best["prefill"], 1),
        "peer_prefill": round(best["peer prefill"], 1) if wanted.peer else NOT_MEASURED,
        "prefill_ratio": over(best["prefill"], best.get("peer prefill")),
        "slots_over_one": over(best["slots"], best["decode"]),
        "first_token_s": round(waits["first"], 2),
        "peer_first_token_s": round(waits["peer first"], 2) if wanted.peer else NOT_MEASURED,
        "program_first_token_s": round(waits["program first"], 2) if wanted.program else NOT_MEASURED,
        "peak_over_file": over(peak or None, size),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--types", default="q4_k_m,q8_0,f16")
    parser.add_argument("--size", default="0.6", choices=sorted(checkpoint.MODELS))
    parser.add_argument("--threads", "-t", type=int, default=2)
    parser.add_argument("--prompt", "-p", type=int, default=512)
    parser.add_argument("--generate", "-n", type=int, default=64)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--peer", default=os.environ.get("HF2Q_LLAMA_BENCH"))
    parser.add_argument("--program", default=os.environ.get("HF2Q_LLAMA_COMPLETION"))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = wanted.folder or Path(temporary)
        source = folder / f"checkpoint-{wanted.size}"
        if not (source / "model.safetensors").exists():
            checkpoint.make(source, wanted.size)
        for qtype in wanted.types.split(","):
            file = folder / f"{wanted.size}-{qtype}.gguf"
            if not file.exists():
                convert = [*HF2Q, "convert", str(source), "--quant", qtype, "-o", str(file)]
                subprocess.run(convert, check=True, capture_output=True)
            found = {"type": qtype, **measure(file, wanted)}
            print(json.dumps(found) if wanted.json else "  ".join(f"{k} {v}" for k, v in found.items()), flush=True)
    if not wanted.peer:
        print("no peer: name llama-bench with --peer or HF2Q_LLAMA_BENCH", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
