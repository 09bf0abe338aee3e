"""Memory of a conversion against what its receipt says that it may take.

    python bench/memory.py [--size 5-moe] [--recipe q4_k_m] [--threads N] [--folder PLACE] [--json]

Makes a mixture of experts with random weights (`checkpoint.py`; the default has 5 billion, 11 GB) in a temporary folder
and converts it in a process of its own. The operating system counts the largest resident set of that process, and of
another one that does all but the streaming: it loads the kernels, reads headers and vocabulary, and plans. The
difference is what streaming took, and must not be more than `bounds.peak_bytes` of the receipt, else the exit code
is 1.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from convert import Failed, hf2q, make, measured

# A child begins as a copy of this process, and its peak memory counts from there: nothing large is imported here.

PLANNED = """import sys
import numpy
from hf2q.convert import convert
from hf2q.plugins import Plugins
source, recipe, output = sys.argv[1:]
plugins = Plugins.load()
plan = convert(source, recipe, output, plugins=plugins, dry_run=True).plan
for qtype in {tensor.qtype for tensor in plan.tensors if not tensor.copied}:
    codec = plugins.codec(qtype)
    codec.encode(numpy.ones((1, codec.block_size), numpy.float32))
"""
"""Everything that a conversion does before it streams, and the kernels that it uses."""

SIZES = {"tiny-moe": 0.1, "5-moe": 16}
"""GB of disk that a size needs: the checkpoint, and its output."""


def measure(folder: Path, size: str, recipe: str, threads: int | None) -> dict[str, Any]:
    """One conversion: bytes of both processes, and the receipt's bounds."""
    source, output = folder / size, folder / "output" / "model.gguf"
    output.parent.mkdir()
    parameters = make(source, size)
    command = hf2q(source, output, recipe, threads)
    planned = [sys.executable, "-c", PLANNED, str(source), recipe, str(output)]
    measured(planned)  # compiles what no cache holds yet
    before, whole = measured(planned), measured(command)
    bounds = json.loads(Path(f"{output}.receipt.json").read_text(encoding="utf-8"))["bounds"]
    return {
        "size": size,
        "parameters": parameters,
        "recipe": recipe,
        "checkpoint_bytes": (source / "model.safetensors").stat().st_size,
        "output_bytes": output.stat().st_size,
        "wall_s": whole["wall_s"],
        "planned_bytes": before["peak_bytes"],
        "peak_bytes": whole["peak_bytes"],
        "streaming_bytes": whole["peak_bytes"] - before["peak_bytes"],
        "bounds": bounds,
        "within": whole["peak_bytes"] - before["peak_bytes"] <= bounds["peak_bytes"],
    }


def shown(found: dict[str, Any]) -> str:
    mb = {key: f"{found[key] / 1e6:,.0f} MB" for key in found if key.endswith("_bytes")}
    bounds = found["bounds"]
    return "\n".join(
        [
            f"{found['parameters']:,} parameters, {mb['checkpoint_bytes']} → {found['recipe']}, {mb['output_bytes']}, "
            f"{bounds['threads']} threads, {found['wall_s']:.1f} s",
            f"peak of the process   {mb['peak_bytes']}",
            f"without streaming     {mb['planned_bytes']}",
            f"streaming             {mb['streaming_bytes']}",
            f"bound in the receipt  {bounds['peak_bytes'] / 1e6:,.0f} MB: {'kept' if found['within'] else 'EXCEEDED'}",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), default="5-moe")
    parser.add_argument("--recipe", default="q4_k_m")
    parser.add_argument("--threads", type=int, help="default: what the program takes by itself")
    parser.add_argument("--folder", help="where the temporary folder is made (default: where the system has them)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hf2q-bench-", dir=options.folder) as name:
        folder = Path(name)
        need, free = SIZES[options.size], shutil.disk_usage(folder).free / 1e9
        if need > free:
            sys.exit(f"{folder.parent} has {free:.1f} GB free, {need} are needed; --folder names another place")
        try:
            found = measure(folder, options.size, options.recipe, options.threads)
        except Failed as problem:
            sys.exit(str(problem))
    print(json.dumps(found, indent=2) if options.json else shown(found))
    return 0 if found["within"] else 1


if __name__ == "__main__":
    sys.exit(main())
