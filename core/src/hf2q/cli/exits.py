"""How a run ends: the exit code, and what stderr says about it.

A refusal (`Hf2qError`) is two short lines and no traceback; what the machine refuses (no space, no memory, no
permission) is one; anything else is a bug and keeps its traceback. With ``--json`` among the arguments the refusal is
a JSON object, still on stderr: stdout carries the product only.
"""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence

from hf2q.cli.output import printable
from hf2q.errors import Hf2qError

INTERRUPTED = 130
READER_GONE = 141


def guarded(work: Callable[[], int], words: Sequence[str]) -> int:
    """Run `work`; return its exit code, or say on stderr why it ended early and return the code for that.

    `words` are the program's arguments; they decide about ``--json`` and tracebacks.
    """
    try:
        code = work()
        if sys.stdout is not None:  # it was closed before the program began
            sys.stdout.flush()  # here, where a reader that went away can still be handled
    except Hf2qError as error:
        return _refusal(error, error.message, error.hint, error.exit_code, words)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # what is still buffered must not raise a second time when the interpreter flushes it at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    except MemoryError as error:
        return _refusal(
            error, "out of memory", "close other programs, or use a smaller model or fewer threads", 1, words
        )
    except OSError as error:
        if error.errno is None:
            return _bug()
        place = f": {error.filename}" if error.filename is not None else ""
        return _refusal(error, f"{error.strerror}{place}", None, 1, words)
    except Exception:
        return _bug()
    return code


def usable_streams() -> None:
    """See that this process can print: for its own stdout and stderr, once, before anything else.

    A stream that the caller closed would be None, and its number would go to the next file that is opened: here to
    `os.devnull`. A character that the terminal's encoding lacks is escaped.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        continue
    os.close(number)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - for the whole process
        else:
            stream.reconfigure(errors="backslashreplace")


def wants_json(words: Sequence[str]) -> bool:
    """Whether ``--json`` is among the arguments."""
    return "--json" in _options(words)


def wants_traceback(words: Sequence[str]) -> bool:
    """Whether refusals should show where they were raised: ``-vvv`` or ``HF2Q_TRACEBACK=1``."""
    loud = sum(len(word) - 1 for word in _options(words) if re.fullmatch("-v+", word))
    return loud >= 3 or os.environ.get("HF2Q_TRACEBACK") == "1"


def _options(words: Sequence[str]) -> Sequence[str]:
    return words[: words.index("--")] if "--" in words else words


def _refusal(error: BaseException, message: str, hint: str | None, code: int, words: Sequence[str]) -> int:
    if wants_traceback(words):
        traceback.print_exception(error)
    if wants_json(words):
        told = {"type": type(error).__name__, "message": message, "hint": hint, "exit_code": code}
        print(json.dumps({"error": told}, ensure_ascii=False), file=sys.stderr)
        return code
    for label, text in (("error", message), ("hint", hint)):
        if text:
            lines = "\n".join(printable(line) for line in text.split("\n"))  # it may quote a file nobody vouches for
            print(f"{label}: {lines}", file=sys.stderr)
    return code


def _bug() -> int:
    traceback.print_exc()
    print("error: this is a bug in hf2q or in a plugin; please report it with the lines above", file=sys.stderr)
    return 1
