"""The demo: a trained checkpoint becomes a Q4_K_M GGUF file, is served over HTTP, and answers a question.

    make demo

Uses the commands a user would, and the standard library for HTTP. Exits with 0 only when the answer is right.
"""

from __future__ import annotations

import json
import queue
import re
import shlex
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path("tests/data/qwen3_5")
OUTPUT = Path(".demo/qwen3_5-Q4_K_M.gguf")
SYSTEM = "You are a helpful assistant."
QUESTION = "What is the capital of Japan?"
ANSWER = "Tokyo"
START_SECONDS = 180
STOP_SECONDS = 30


def main() -> int:
    """Run the demo; the exit code."""
    (ROOT / OUTPUT.parent).mkdir(exist_ok=True)
    hf2q("convert", str(SOURCE), "--quant", "q4_k_m", "-o", str(OUTPUT), "--force")
    facts = hf2q("info", str(OUTPUT), show=False).partition("\n\n")[0]
    say(facts)
    with serving() as (base, process):
        answer = ask(base)
        process.terminate()
        if process.wait(STOP_SECONDS) != 0:
            say(f"the server ended with exit code {process.returncode}")
            return 1
    if ANSWER not in answer:
        say(f"\nThat is wrong: the answer should name {ANSWER}.")
        return 1
    say("\nRight. The whole way worked: checkpoint, GGUF, HTTP answer.")
    return 0


def hf2q(*words: str, show: bool = True) -> str:
    """Run one command to its end; what it printed, shown too unless told otherwise. Ends the demo when it fails."""
    command(words)
    pipe = None if show else subprocess.PIPE
    done = subprocess.run(program(words), cwd=ROOT, stdout=pipe, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout or ""


@contextmanager
def serving() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server on a free port that is ready; its address and process. It is gone afterwards in any case."""
    words = ("serve", "--model", str(OUTPUT), "--port", "0")
    command(words)
    process = subprocess.Popen(program(words), cwd=ROOT, stderr=subprocess.PIPE, text=True)
    lines: queue.Queue[str] = queue.Queue()
    reader = threading.Thread(target=show_lines, args=(process, lines), daemon=True)
    reader.start()
    try:
        base = address(lines, process)
        wait_ready(base, process)
        yield base, process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join(5)


def show_lines(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    """Copy what the server says."""
    for line in process.stderr or ():
        sys.stderr.write(f"  {line}")
        lines.put(line)


def address(lines: queue.Queue[str], process: subprocess.Popen[str]) -> str:
    """The address that the server says it listens on."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        try:
            found = re.search(r"http://\S+", lines.get(timeout=0.2))
        except queue.Empty:
            if process.poll() is not None:
                break
            continue
        if found:
            return found[0]
    raise failure("the server did not start")


def wait_ready(base: str, process: subprocess.Popen[str]) -> None:
    """Wait until the model is loaded."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{base}/readyz", timeout=5):
                return
        except urllib.error.HTTPError:
            time.sleep(0.1)  # 503: still loading
        except OSError:
            time.sleep(0.1)
    raise failure("the server did not get ready")


def ask(base: str) -> str:
    """Ask the question as a chat, print the answer while it comes, and return it."""
    body = {
        "model": OUTPUT.stem,
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 64,
        "stream": True,
    }
    request = urllib.request.Request(
        f"{base}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    say(f"\nQ: {QUESTION}\nA: ", end="")
    pieces = []
    with urllib.request.urlopen(request, timeout=120) as response:
        for line in response:
            text = piece(line.decode())
            pieces.append(text)
            say(text, end="")
    say("")
    return "".join(pieces)


def piece(line: str) -> str:
    """The text that one line of the stream adds to the answer."""
    data = line.removeprefix("data: ").strip()
    if not line.startswith("data: ") or data == "[DONE]":
        return ""
    chunk = json.loads(data)
    if "error" in chunk:
        raise failure(f"the stream ended in an error: {chunk['error']['message']}")
    return str(chunk["choices"][0]["delta"].get("content") or "")


def program(words: tuple[str, ...]) -> list[str]:
    """`hf2q WORDS` in this environment."""
    return [sys.executable, "-m", "hf2q", *words]


def command(words: tuple[str, ...]) -> None:
    """Show the command that comes next."""
    say(f"\n$ hf2q {shlex.join(words)}")


def say(text: str, end: str = "\n") -> None:
    """Print at once."""
    sys.stdout.write(text + end)
    sys.stdout.flush()


def failure(why: str) -> SystemExit:
    """What ends the demo with exit code 1."""
    return SystemExit(f"demo: {why}")


if __name__ == "__main__":
    sys.exit(main())
