"""The matrix of eight conversions against peers: measures the cells that can be, and says of the others why not.

    python bench/peer_matrix.py [--dense CHECKPOINT] [--moe CHECKPOINT] [--imatrix-dense FILE] [--imatrix-moe FILE]
        [--peer-convert PATH/convert_hf_to_gguf.py] [--peer-quantize PATH/llama-quantize] [--peer-python PYTHON]
        [--corpus TEXT] [--chunks N] [--pause 60] [--runs 3] [--folder PLACE] [--write DOCS] [--json]

The cells and their tolerances are those of `hf2q.quality.matrix`. Each side runs as processes of its own, whose time
and largest resident set the operating system counts: once unmeasured, then, after a pause in which the machine cools,
so many times; the medians count. The peer's two steps are `convert_hf_to_gguf.py --outtype f16` and `llama-quantize`:
their times are added, of their memory the larger counts. Both files' perplexity is `hf2q ppl` on the same text.

Prints the Markdown document; --write puts it into a folder, as peer-parity-results-DATE.md. Exit code 1 when a cell
fails; one that was not measured fails nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import msgspec

from convert import Failed, hf2q, measured
from hf2q.quality.matrix import Cell, Figures, Result, cells, markdown

# A child begins as a copy of this process, and its peak memory counts from there: nothing large is imported here.

DWQ = "hf2q has no DWQ: it refuses dwq-4-6"
MODELS = {"27B dense": "dense", "apex MoE": "moe"}


def side(commands: Sequence[Sequence[str]], options: argparse.Namespace, clean: Callable[[], None]) -> Figures:
    """Medians of one side. `clean` removes what a run wrote. Errors: Failed."""

    def once() -> tuple[float, float]:
        clean()
        steps = [measured(command) for command in commands]
        return sum(step["wall_s"] for step in steps), max(step["peak_bytes"] for step in steps)

    once()
    time.sleep(options.pause)
    found = [once() for _ in range(options.runs)]
    return Figures(wall=median(wall for wall, _ in found), rss=median(rss for _, rss in found))


def perplexity(file: Path, options: argparse.Namespace) -> float | None:
    """Of a file on the text that was named; None without one. Errors: Failed."""
    if options.corpus is None:
        return None
    words = ["ppl", str(file), "--corpus", str(options.corpus), "--json"]
    words += [] if options.chunks is None else ["--chunks", str(options.chunks)]
    done = subprocess.run([sys.executable, "-m", "hf2q", *words], capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"hf2q ppl {file} ended with {done.returncode}:\n{done.stderr}")
    return float(json.loads(done.stdout)["perplexity"])


def missing(cell: Cell, options: argparse.Namespace) -> str:
    """Why a cell cannot be measured here, or ""."""
    if cell.calibrator == "DWQ":
        return DWQ
    kind = MODELS[cell.model]
    needs = [(f"--{kind}", getattr(options, kind), "checkpoint")]
    if cell.calibrator == "Imatrix":
        needs.append((f"--imatrix-{kind}", getattr(options, f"imatrix_{kind}"), "importance matrix"))
    needs += [("--peer-convert", options.peer_convert, "peer"), ("--peer-quantize", options.peer_quantize, "peer")]
    for flag, path, what in needs:
        if path is None:
            return f"no {what}: {flag} names one"
        if not path.exists():
            return f"no {what}: there is no {path}"
    return ""


def measure(cell: Cell, options: argparse.Namespace, folder: Path) -> Result:
    """One cell. Errors: Failed with the last words of a program that did not succeed."""
    reason = missing(cell, options)
    if reason:
        return Result(cell=cell, not_measured=reason)
    kind = MODELS[cell.model]
    source = getattr(options, kind)
    own, whole, theirs = folder / "own" / "model.gguf", folder / "f16.gguf", folder / "theirs.gguf"
    matrix = ["--imatrix", str(getattr(options, f"imatrix_{kind}"))] if cell.calibrator == "Imatrix" else []

    def clean() -> None:
        shutil.rmtree(own.parent, ignore_errors=True)
        own.parent.mkdir()
        for path in (whole, theirs):
            path.unlink(missing_ok=True)

    ours = side([[*hf2q(source, own, "q4_k_m", None), *matrix]], options, clean)
    ours = msgspec.structs.replace(ours, ppl=perplexity(own, options))
    steps = [
        [options.peer_python, str(options.peer_convert), str(source), "--outtype", "f16", "--outfile", str(whole)],
        [str(options.peer_quantize), *matrix, str(whole), str(theirs), "Q4_K_M"],
    ]
    peer = side(steps, options, clean)
    peer = msgspec.structs.replace(peer, ppl=perplexity(theirs, options))
    return Result(cell=cell, own=ours, peer=peer)


def commit() -> str:
    """The commit that is measured, marked when files differ from it."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    for name in ("dense", "moe", "imatrix-dense", "imatrix-moe", "peer-convert", "peer-quantize", "corpus"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--chunks", type=int)
    parser.add_argument("--pause", type=float, default=60.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.runs < 1 or options.pause < 0:
        parser.error("--runs takes at least 1, --pause at least 0")
    return options


def main() -> int:
    options = parsed()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        try:
            results = [measure(cell, options, Path(folder)) for cell in cells()]
        except Failed as error:
            print(error, file=sys.stderr)
            return 1
    hardware = (
        f"{platform.machine()}, {platform.system()} {platform.release()}, {platform.processor() or 'CPU unknown'}"
    )
    text = markdown(results, hardware, commit())
    if options.write is not None:
        path = options.write / f"peer-parity-results-{datetime.datetime.now(datetime.UTC).date()}.md"
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}", file=sys.stderr)
    if options.json:
        rows = [{**msgspec.to_builtins(one), "outcome": msgspec.to_builtins(one.outcome)} for one in results]
        print(json.dumps(rows, indent=2))
    else:
        print(text, end="")
    return 1 if any(one.outcome.verdict == "Fail" for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())
