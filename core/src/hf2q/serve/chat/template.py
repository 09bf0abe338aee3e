"""`ChatTemplate`: a chat template of unknown origin, rendered in a process of its own within limits.

Renders exactly what transformers' `apply_chat_template` gives. What a template may do is decided in
`hf2q.serve.chat.render_process`; this side starts that process, asks it, and turns every way to fail into a
`RequestError`, so that a hostile template costs the request and nothing else.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hf2q.errors import LoadError, RequestError
from hf2q.types import Record

log = logging.getLogger(__name__)

_SCRIPT = Path(__file__).with_name("render_process.py")
_GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class TemplateLimits(Record, frozen=True, kw_only=True):
    """What one render may take: CPU time in seconds, address space in bytes, and characters of output."""

    seconds: float = 5.0
    memory: int = 1 << 30
    characters: int = 1 << 26


class ChatTemplate:
    """One compiled chat template.

    Parameters: `source` is the template's text; `tokens` the special tokens it may name (``bos_token``, ``eos_token``
    …), as text; `limits` what one render may take.

    Errors: LoadError when the template cannot be compiled, or jinja2 is not installed.
    Thread-safe: renders take turns. `close` ends the process behind it; so does garbage collection.
    """

    def __init__(
        self, source: str, *, tokens: Mapping[str, str] | None = None, limits: TemplateLimits | None = None
    ) -> None:
        if find_spec("jinja2") is None:
            raise LoadError("chat templates need the package 'jinja2'", hint="pip install 'hf2q[serve]'")
        self.source = source
        self.tokens = dict(tokens or {})
        self.limits = limits or TemplateLimits()
        self._lock = threading.Lock()
        self._process: _Process | None = None
        with self._lock:
            self.variables = self._start() - _GIVEN - self.tokens.keys()
            """Names that the template reads besides those it is always given: what a request may set."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt for `messages`, each a mapping in transformers' form (``role``, ``content`` …).

        Errors: RequestError when the template raises (with its message), is refused by the sandbox, or takes more
        than its limits allow.
        """
        answer = self._answer(messages, {**variables, "add_generation_prompt": add_generation_prompt})
        if "ok" not in answer:
            raise RequestError(
                f"the model's chat template refuses these messages: {answer['error']}",
                param="messages",
                code="chat_template_error",
            )
        return str(answer["ok"])

    def refusal(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str | None:
        """Why `render` would raise; None where it would not."""
        answer = self._answer(messages, {"add_generation_prompt": True, **variables})
        return None if "ok" in answer else str(answer["error"])

    def _answer(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> dict[str, Any]:
        given = {**self.tokens, "tools": None, "documents": None, **variables, "messages": list(messages)}
        with self._lock:
            if self._process is None:
                self._start()
            return self._ask(given)

    def close(self) -> None:
        """End the process; the next render would start it again."""
        with self._lock:
            self._drop()

    def _start(self) -> frozenset[str]:
        self._process = _Process()
        limits = self.limits
        answer = self._ask(
            {
                "source": self.source,
                "seconds": limits.seconds,
                "memory": limits.memory,
                "characters": limits.characters,
            }
        )
        if "ok" not in answer:
            self._drop()
            raise LoadError(
                f"the chat template cannot be used: {answer['error']}",
                hint="give another one with --chat-template-file",
            )
        return frozenset(answer["ok"])

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process is not None
        try:
            line = json.dumps(question).encode("ascii") + b"\n"
        except (RecursionError, TypeError, ValueError) as error:
            return {"error": f"the variables cannot be passed to it: {error}"}
        reply = self._process.ask(line)
        if reply:
            return dict(json.loads(reply))
        code = self._process.stop()
        self._process = None
        if code == -signal.SIGPROF:
            return {"error": f"it ran for more than {self.limits.seconds:g} s"}
        log.warning("the chat template's process ended with %d while rendering", code)
        return {"error": f"its process ended early (code {code})"}

    def _drop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None


class _Process:
    """The child process; ends when `stop` is called or the object is dropped."""

    def __init__(self) -> None:
        # -P: the script's folder is not a place to import from
        self._popen = subprocess.Popen(
            [sys.executable, "-P", str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._stop = weakref.finalize(self, _end, self._popen)

    def ask(self, line: bytes) -> bytes:
        """Send one line and read one; empty when the process has ended."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        try:
            self._popen.stdin.write(line)
            self._popen.stdin.flush()
        except BrokenPipeError:
            return b""
        reply = self._popen.stdout.readline()
        return reply if reply.endswith(b"\n") else b""

    def stop(self) -> int:
        """End the process and return its exit code."""
        self._stop()
        return self._popen.wait()


def _end(popen: subprocess.Popen[bytes]) -> None:
    for pipe in (popen.stdin, popen.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                continue
    try:
        popen.wait(timeout=1)
    except subprocess.TimeoutExpired:
        popen.kill()
        popen.wait()
