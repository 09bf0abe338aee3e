"""Conversions that are killed, or that find the disk full, in processes of their own; a script.

    python interrupted_conversions.py kill  FOLDER OUT STEP    killed at file operation 0, then at STEP, 2 * STEP …
    python interrupted_conversions.py limit FOLDER OUT BYTES   no file may grow beyond BYTES

Between two conversions it prints a line of JSON and waits for one on stdin, so that the test can look at OUT.
"""

import json
import os
import resource
import signal
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from hf2q.convert import convert, pipeline
from hf2q.errors import Hf2qError
from hf2q.formats.gguf import shards  # noqa: F401 - imported before the first fork, so that children are quick
from hf2q.plugins import Plugins

OPERATIONS = ("open", "write", "fsync", "replace", "unlink")


def killing(after):
    """Let this process end by SIGKILL at operation number `after`: in the middle of it when it writes, else before."""
    count = 0
    me = os.getpid()

    def wrapped(real, name):
        def call(*arguments, **more):
            nonlocal count
            if os.getpid() == me and (name != "open" or arguments[1] & os.O_CREAT):
                count += 1
                if count > after:
                    if name == "write":
                        real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                    os.kill(me, signal.SIGKILL)
            return real(*arguments, **more)

        return call

    for name in OPERATIONS:
        setattr(os, name, wrapped(getattr(os, name), name))


def child(work):
    """Run `work` in a process of its own: its exit code, or minus the signal that ended it."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            work()
            code = 0
        except Hf2qError as error:
            told = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
            sys.stdout.write(json.dumps(told | {"code": error.exit_code}) + "\n")
            sys.stdout.flush()
            code = error.exit_code
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(mode, folder, out, number):
    points = [EntryPoint(n, v, "hf2q") for n, v in (("builtin", "hf2q.builtin"), ("fake", "fake_family"))]
    plugins = Plugins.load(strict=True, entry_points=points)
    pipeline.PIECE = 10_000

    def run():
        convert(folder, "f16", f"{out}/m.gguf", plugins=plugins, force=True, threads=2, split_max_tensors=3)

    def ended(**told):
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
        sys.stdin.readline()

    if mode == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(number), int(number)))
        ended(status=child(run))
        return
    ended(status=child(run))
    after, status = 0, -signal.SIGKILL
    while status == -signal.SIGKILL:
        status = child(lambda after=after: (killing(after), run()))
        ended(status=status, after=after)
        ended(status=child(run))
        after += int(number)


main(*sys.argv[1:])
