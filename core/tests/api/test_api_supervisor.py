"""The supervisor alone, over children that are a line of Python."""

import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from hf2q.serve.api import supervisor
from hf2q.serve.api.listening import listen
from hf2q.serve.api.supervisor import LIMIT, POISONED, VARIABLE, Supervisor, inherited

TELL = "from hf2q.serve.api.supervisor import inherited; sock, line = inherited(); line.ready(); "
"""In a child: be ready."""


@pytest.fixture
def run():
    """Supervise a program until it ends for good: the exit code and what was noted."""

    def run(program, *arguments):
        notes = []
        command = [sys.executable, "-c", program, *map(str, arguments)]
        return Supervisor(command, listen("127.0.0.1", 0), note=notes.append, first_s=0.001).run(), notes

    return run


@pytest.mark.parametrize("code", [0, 1, 3])
def test_a_child_that_was_never_ready_is_not_started_again(run, code):
    assert run(f"raise SystemExit({code})") == (code, [])


def test_a_clean_end(run):
    assert run(TELL + "raise SystemExit(0)") == (0, [])


@pytest.mark.parametrize(
    ("program", "how"),
    [
        ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        (f"raise SystemExit({POISONED})", "has a broken engine"),
        (TELL + "raise SystemExit(1)", "ended with code 1"),
    ],
)
def test_too_many_crashes_are_given_up(run, program, how):
    code, notes = run(program)
    assert code == 1
    assert len(notes) == LIMIT + 1
    assert all(how in note for note in notes)
    assert [note.rpartition(" in ")[2] for note in notes[:3]] == ["0.001 s", "0.002 s", "0.004 s"]
    assert "giving up" in notes[-1]


def test_old_crashes_are_forgotten(run, monkeypatch, tmp_path):
    monkeypatch.setattr(supervisor, "WINDOW_S", 0.0)
    count = tmp_path / "count"
    count.write_text("")
    program = "import os,sys; f=open(sys.argv[1],'a+'); f.write('x'); f.flush(); f.seek(0); n=len(f.read())\n"
    program += f"if n <= {LIMIT + 2}: os.kill(os.getpid(), 9)"
    code, notes = run(program, count)
    assert (code, len(notes)) == (0, LIMIT + 2)


def test_a_child_that_does_not_move_is_replaced(run, monkeypatch, tmp_path):
    monkeypatch.setattr(supervisor, "STILL_S", 0.3)
    flag = tmp_path / "flag"
    program = (
        TELL + "import sys, time, pathlib; f = pathlib.Path(sys.argv[1])\nif not f.exists(): f.touch(); time.sleep(60)"
    )
    code, notes = run(program, flag)
    assert code == 0
    assert "has not moved" in notes[0]
    assert "was ended by SIGKILL" in notes[1]


def test_the_child_has_the_socket():
    sock = listen("127.0.0.1", 0)
    port = sock.getsockname()[1]
    program = "from hf2q.serve.api.supervisor import inherited; import os; s, _ = inherited()\n"
    program += f"assert '{VARIABLE}' not in os.environ and inherited() is None\n"
    program += "assert not s.get_inheritable(); c, _ = s.accept(); c.sendall(b'here'); c.close()"
    thread = threading.Thread(target=_first_line, args=(port, found := []))
    thread.start()
    assert Supervisor([sys.executable, "-c", program], sock, note=found.append).run() == 0
    thread.join()
    assert found == [b"here"]


def _first_line(port, found):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        found.append(sock.recv(10))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_it_waits_to_start_again(number):
    program = """
import sys
from hf2q.serve.api.listening import listen
from hf2q.serve.api.supervisor import Supervisor
child = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
note = lambda text: print(text, flush=True)
sys.exit(Supervisor(child, listen("127.0.0.1", 0), note=note, first_s=30).run())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert "starting it again" in process.stdout.readline()
        process.send_signal(number)
        assert process.wait(timeout=60) == 0


@pytest.mark.parametrize("value", ["", "3", "x:y", "3:", ":4"])
def test_no_child(monkeypatch, value):
    monkeypatch.setenv(VARIABLE, value)
    assert inherited() is None
    assert VARIABLE not in os.environ
