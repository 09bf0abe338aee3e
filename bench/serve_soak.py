"""A server under many clients that come and go: nothing may leak, memory, slots or text, and tokens must stay cheap.

    python bench/serve_soak.py [--streams 64] [--seconds 300] [--slots 8] [--no-prefix-cache] [--seed 1] [--json]

A server over a scripted model, which answers with what it was asked, runs in a process of its own. Each client asks
with a marker of its own, streamed or not, alone or as the next turn of a conversation, and reads to the end, leaves in
the middle, leaves at once, or never finishes its request. Any text that is not its own is an error.

At the end: everything free again, memory of the server before and after, and what a token costs the server: CPU time of
its process less that of the scripted model, over all tokens sent. Exit code 1 when something leaked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ALLOWED_GROWTH = 32 << 20
"""Bytes that the server may have grown by between the first third of the time and the end."""


# --------------------------------------------------------------------------------------------------------- the server


def serve(slots: int, prefix_budget: int | None) -> None:
    """A server on a free port, which it prints; ends when its stdin does."""
    import threading

    from hf2q.serve.api import server
    from hf2q.serve.api.lease import Loaded
    from hf2q.serve.api.listening import listen, url
    from hf2q.serve.api.pool import Pool
    from hf2q.serve.api.registered import ModelFile
    from hf2q.serve.api.service import Service
    from hf2q.serve.chat import open_chat
    from hf2q.serve.engine import Engine
    from hf2q.testing.scripted import ScriptedGraph, scripted_model

    def load(file: ModelFile) -> Loaded:
        model = scripted_model(script=Echo(), before=lambda rows, tokens: forget(graph))
        graph = model._graph
        assert isinstance(graph, ScriptedGraph)
        timed(graph)
        options: dict[str, Any] = {} if prefix_budget is None else {"prefix_budget": prefix_budget}
        engine = Engine(model, slots=slots, queue_capacity=1024, observer=service.watchers.observer(file.id), **options)
        engine.wait_ready()
        return Loaded(model, engine, open_chat(model))

    service = Service(Pool([ModelFile(id="scripted", path=Path("scripted.gguf"), initial=True)], load))
    sock = listen("127.0.0.1", 0)
    say = lambda text: print(text, flush=True)  # noqa: E731
    say(url(sock))
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    server.run(sock, service, drain_s=5, note=say)


def forget(graph: Any) -> None:
    """A scripted graph remembers all that was asked of it, which a test wants and a soak does not."""
    graph.calls.clear()
    graph._places.clear()


def timed(graph: Any) -> None:
    """Have the graph's own CPU time in a file that the client reads: the thread clock around each call."""
    spent = Path(os.environ["SOAK_GRAPH_SECONDS"])
    total, told = [0.0], [0.0]

    def around(work: Any) -> Any:
        def call(*arguments: Any) -> Any:
            start = time.thread_time()
            try:
                return work(*arguments)
            finally:
                total[0] += time.thread_time() - start
                if total[0] - told[0] > 0.02:
                    told[0] = total[0]
                    spent.write_text(str(total[0]))

        return call

    graph.hidden, graph.head = around(graph.hidden), around(graph.head)


class Echo:
    """A script: after ``<|im_start|>assistant``, what the last user said, then the end of the turn."""

    def __init__(self) -> None:
        from hf2q.testing.scripted import ASSISTANT, scripted_tokenizer

        tokenizer = scripted_tokenizer()
        self._marker = tuple(tokenizer.encode(ASSISTANT))
        self._user = len(tokenizer.encode("user\n"))
        (self._start,), (self._end,) = tokenizer.encode("<|im_start|>"), tokenizer.encode("<|im_end|>")

    def __call__(self, ids: tuple[int, ...]) -> int:
        last = len(ids) - 1 - ids[::-1].index(self._start) if self._start in ids else 0
        said = len(ids) - last - len(self._marker)
        if said < 0 or ids[last : last + len(self._marker)] != self._marker:
            return self._end
        user = last - 1 - ids[:last][::-1].index(self._start)
        end = ids.index(self._end, user)
        at = user + 1 + self._user + said
        return ids[at] if at < end else self._end


# --------------------------------------------------------------------------------------------------------- the clients


@dataclass
class Found:
    """What the clients saw."""

    requests: int = 0
    tokens: int = 0
    left: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)


class Client:
    """One client that asks again and again until `end`."""

    def __init__(self, port: int, found: Found, end: float, chance: random.Random) -> None:
        self._port, self._found, self._end, self._chance = port, found, end, chance
        self._turns: list[dict[str, str]] = []

    async def run(self) -> None:
        """Until the end."""
        while time.monotonic() < self._end:
            try:
                await asyncio.wait_for(self._ask(), 60)
            except TimeoutError:
                self._found.wrong.append("a request took a minute")
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                self._found.wrong.append(f"{type(error).__name__}: {error}")

    async def _ask(self) -> None:
        chance, found = self._chance, self._found
        marker = f"{chance.getrandbits(64):016x}-" * chance.randint(1, 12)
        if len(self._turns) > 6 or chance.random() < 0.3:
            self._turns = []
        messages = [*self._turns, {"role": "user", "content": marker}]
        stream = chance.random() < 0.7
        way = chance.choices(("read", "leave", "at once", "half"), (70, 20, 5, 5))[0]
        body = json.dumps({"model": "scripted", "messages": messages, "stream": stream, "temperature": 0}).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            found.requests += 1
            writer.write(head.encode() + (body[: len(body) // 2] if way == "half" else body))
            await writer.drain()
            if way in ("half", "at once"):
                found.left += 1
                return
            answer = await self._read(reader, chance.randint(1, len(marker)) if way == "leave" else None)
        finally:
            writer.transport.abort()
        status, text, done = answer
        found.tokens += len(text)
        if status == 429:
            found.refused += 1
        elif status != 200:
            found.wrong.append(f"status {status}")
        elif way == "leave":
            found.left += 1
            if not marker.startswith(text):
                found.wrong.append(f"{text!r} is not of {marker!r}")
        elif text != marker or not done:
            found.wrong.append(f"asked {marker!r}, got {text!r}")
        else:
            self._turns = [*messages, {"role": "assistant", "content": text}]

    @staticmethod
    async def _read(reader: asyncio.StreamReader, limit: int | None) -> tuple[int, str, bool]:
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if b"text/event-stream" not in head:
            body = await reader.read() if limit is None else b""
            if not body or status != 200:
                return status, "", False
            return status, json.loads(body)["choices"][0]["message"]["content"], True
        text, done = "", False
        while line := await reader.readline():
            if line.startswith(b"data: [DONE]"):
                done = True
            elif line.startswith(b"data: "):
                chunk = json.loads(line[6:])
                for choice in chunk.get("choices", ()):
                    text += choice["delta"].get("content") or ""
            if limit is not None and len(text) >= limit:
                break
        return status, text, done


# ------------------------------------------------------------------------------------------------------------ the soak


def soak(*, streams: int, seconds: float, slots: int, prefix_budget: int | None, seed: int) -> dict[str, Any]:
    """Run it; what came of it, with `leaks` listing what is wrong."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        spent = Path(folder, "seconds")
        spent.write_text("0")
        command = [
            sys.executable,
            __file__,
            "--as-server",
            str(slots),
            str(-1 if prefix_budget is None else prefix_budget),
        ]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "SOAK_GRAPH_SECONDS": str(spent)},
        )
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().rpartition(":")[2])
            assert process.stdout.readline() == "ready\n"
            return asyncio.run(_soak(process.pid, port, spent, streams, seconds, seed))
        finally:
            process.kill()
            process.communicate()


async def _soak(pid: int, port: int, spent: Path, streams: int, seconds: float, seed: int) -> dict[str, Any]:
    found, start = Found(), time.monotonic()
    cpu, graph = _cpu(pid), float(spent.read_text())
    end = start + seconds
    clients = [Client(port, found, end, random.Random(seed * 1000 + n)).run() for n in range(streams)]
    running = asyncio.gather(*clients)
    await asyncio.sleep(seconds / 3)
    early = _memory(pid)
    await running
    used = _cpu(pid) - cpu - (float(spent.read_text()) - graph)
    took = time.monotonic() - start
    status: dict[str, Any] = {}
    for _ in range(100):  # those who have left are noticed within a step
        status = await _get(port, "/hf2q/v1/status")
        runtime = await _get(port, "/hf2q/v1/runtime")
        engine = status["models"][0]["engine"]
        leases = runtime["models"][0]["leases"]
        open_files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        busy = sum(slot["phase"] != "idle" for slot in engine["slots"])
        if not (leases or busy or engine["queued"]):
            break
        await asyncio.sleep(0.05)
    late = _memory(pid)
    leaks = list(found.wrong[:20])
    leaks += [f"{leases} leases"] if leases else []
    leaks += [f"{busy} slots, {engine['queued']} queued"] if busy or engine["queued"] else []
    leaks += [f"{(late - early) / 1e6:.1f} MB"] if late - early > ALLOWED_GROWTH else []
    leaks += [f"{open_files} open files"] if open_files > 64 else []
    tokens = engine["generated_tokens"]
    return {
        "seconds": round(took, 1),
        "streams": streams,
        "requests": found.requests,
        "left": found.left,
        "refused": found.refused,
        "tokens": tokens,
        "cached_tokens": engine["cached_tokens"],
        "tokens_per_second": round(tokens / took, 1),
        "server_cpu_us_per_token": round(used / max(1, tokens) * 1e6, 1),
        "memory_mb": [round(early / 1e6, 1), round(late / 1e6, 1)],
        "open_files": open_files,
        "leaks": leaks,
    }


async def _get(port: int, path: str) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert b" 200 " in head, head
    return json.loads(body)


def _memory(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS")


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """The program."""
    if sys.argv[1:2] == ["--as-server"]:
        serve(int(sys.argv[2]), None if sys.argv[3] == "-1" else int(sys.argv[3]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--no-prefix-cache", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = soak(
        streams=asked.streams,
        seconds=asked.seconds,
        slots=asked.slots,
        prefix_budget=0 if asked.no_prefix_cache else None,
        seed=asked.seed,
    )
    if asked.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:24} {value}")
    return 1 if found["leaks"] else 0


if __name__ == "__main__":
    sys.exit(main())
