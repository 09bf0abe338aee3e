"""Questions whose answer needs heavy or native code, asked in a child process: ``hf2q doctor`` outlives the answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SECONDS = 60.0


def ask(question: str, *, disable: Iterable[str] = (), seconds: float = SECONDS) -> tuple[Any, str]:
    """Answer ``simd``, ``backends`` or ``auto`` in a child process. `disable` names plugins that it must not load.

    Returns: the answer and "", or None and what went wrong.
    """
    disabled = [name for name in (os.environ.get("HF2Q_DISABLE_PLUGINS"), *disable) if name]
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "hf2q.cli.examine", question, str(answer)],
                env={**os.environ, "HF2Q_DISABLE_PLUGINS": ",".join(disabled)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, f"no answer within {seconds:g} s"
        if not answer.is_file():
            return None, f"the process that asked ended with code {done.returncode}"
        found = json.loads(answer.read_text(encoding="utf-8"))
    return found.get("answer"), found.get("error", "")


def simd() -> dict[str, Any]:
    """Lanes, CPU, features and cache folder of the SIMD layer, and the way of the cpu backend's kernels."""
    from hf2q.backends.cpu.isa import isa
    from hf2q.simd.folder import cache_folder
    from hf2q.simd.host import host
    from hf2q.simd.machine import MACHINE

    shown = ("avx512f", "avx512bw", "avx512vnni", "avx512bf16", "amx-int8", "amx-bf16", "avx2", "fma", "f16c", "neon")
    return {
        "lanes": MACHINE.lanes,
        "cpu": MACHINE.cpu or host().cpu,
        "isa": isa(),
        "features": [name for name in shown if name in MACHINE.features],
        "cache": str(cache_folder()),
    }


def backends() -> list[dict[str, Any]]:
    """Every backend: name, why it cannot run here ("" when it can), what to install."""
    from hf2q.plugins import Plugins
    from hf2q.types import resolve

    found = []
    for entry in Plugins.load(strict=False).backends:
        try:
            reason = resolve(entry.available)() or ""
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        found.append({"name": entry.name, "reason": reason, "requires": entry.requires})
    return found


def auto() -> list[dict[str, str]]:
    """The backends that can run here, the one that "auto" takes first: name, and what each computes with."""
    from hf2q.backends.select import ranking
    from hf2q.plugins import Plugins
    from hf2q.types import resolve

    found = []
    for entry in ranking(Plugins.load(strict=False))[0]:
        try:
            instructions = str(resolve(entry.backend)(threads=1).instructions)
        except Exception as error:
            instructions = f"{type(error).__name__}: {error}"
        found.append({"name": entry.name, "instructions": instructions})
    return found


def main(question: str, answer: Path) -> None:
    """Write the answer, or the error, as JSON to the file `answer`."""
    try:
        told = {"answer": {"simd": simd, "backends": backends, "auto": auto}[question]()}
    except Exception as error:
        told = {"error": str(error) or type(error).__name__}
    answer.write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
    os._exit(0)
