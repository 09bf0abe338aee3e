"""The ``hf2q`` program: one module for each command, which parses, calls what lies below, and prints.

A command is a function ``command(...)`` in its module, annotated for cyclopts, its docstring the help page. It prints
its product on stdout (`hf2q.cli.output`), raises `hf2q.errors.Hf2qError` for what it refuses, and returns None or an
exit code. Heavy modules are imported inside the function. Flags have no ``--no-`` twin unless named so.

    0    done                       3    usage or input error
    1    failure, or a bug          130  interrupted (129, 143: convert, by SIGHUP or SIGTERM)
    2    quality threshold missed   141  the reader of stdout went away
    4-8  smoke: see `hf2q smoke --help`, for 2 and 3 too

This module imports next to nothing, so that ``--version`` answers at once.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

__all__ = ["main"]

OBJECTS = 100_000
"""New objects between two rounds of the garbage collector. Python's 700 make a tenth of the start of a command go into
looking through modules and vocabularies, which are no garbage."""


SPIN = "20"
"""Clock cycles, as a power of two, for which a thread of OpenBLAS that has nothing to do looks for work before it
sleeps. OpenBLAS's own 26 let every one of them burn tens of milliseconds when numpy is imported."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program with `arguments` (default: those of the process) and return its exit code."""
    from hf2q.cli.exits import guarded, usable_streams

    if arguments is None:
        usable_streams()
        gc.set_threshold(OBJECTS)
        os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", SPIN)
    words = list(sys.argv[1:] if arguments is None else arguments)
    code = guarded(lambda: _run(words), words)
    if arguments is None:
        gc.freeze()  # the end of the process frees everything; nobody has to look for garbage first
    return code


def _run(words: list[str]) -> int:
    if words == ["--version"]:
        from hf2q import __version__

        print(f"hf2q {__version__}")
        return 0
    from hf2q.cli.app import run

    return run(words)
