"""One line of the log for each request that is over, with what the engine told about it. Never any content."""

from __future__ import annotations

import asyncio
import logging
import time
from contextvars import ContextVar
from typing import Any

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from hf2q.serve.api.disconnect import NOBODY
from hf2q.serve.api.errors import noted_refusal, printable
from hf2q.serve.api.request_id import request_id
from hf2q.serve.observe import Observer, RequestEvent

log = logging.getLogger(__name__)

QUIET = frozenset({"/health", "/readyz", "/metrics", "/hf2q/v1/status"})
"""Paths that somebody asks for every few seconds: their lines are for level debug."""

CHOICE = "/"
"""What separates a request's id from the number of one of its answers, in ids that engines get."""

_CURRENT: ContextVar[Account | None] = ContextVar("hf2q_account", default=None)
_LATE_S = 1.0
_ENDS = frozenset({"finished", "cancelled", "failed"})


class Account:
    """What one request has come to so far; an answer of several choices adds up, its rates are those of the last."""

    def __init__(self) -> None:
        self.model: str | None = None
        self.running = 0
        self.fields: dict[str, Any] = {}

    def on(self, event: RequestEvent, model: str) -> None:
        """Take note of what an engine says; in the engine's thread."""
        self.model = model
        if event.kind == "queued":
            self.running += 1
        if event.kind not in _ENDS:
            return
        before = self.fields
        first = event.first_token_seconds if event.generated else None
        self.fields = {
            "prompt_tokens": before.get("prompt_tokens", 0) + event.prompt_tokens,
            "cached_tokens": before.get("cached_tokens", 0) + event.cached_tokens,
            "new_tokens": before.get("new_tokens", 0) + event.new_tokens,
            "generated_tokens": before.get("generated_tokens", 0) + event.generated,
            "queue_seconds": round(event.queue_seconds, 4),
            "first_token_seconds": None if first is None else round(first, 4),
            "prefill_rate": _rate(event.new_tokens, event.prefill_seconds),
            "decode_rate": _rate(event.generated - 1, event.decode_seconds),
            "finish_reason": event.finish_reason or event.kind,
        }
        self.running -= 1


def note_model(model_id: str) -> None:
    """Say which model the request of this task, or of the thread that works for it, has got."""
    account = _CURRENT.get()
    if account is not None:
        account.model = model_id


def note_prompt(tokens: int) -> None:
    """Say how many tokens this request has, where no engine tells of it."""
    account = _CURRENT.get()
    if account is not None:
        account.fields = {"prompt_tokens": tokens, "cached_tokens": 0, "new_tokens": tokens}


class Accounts:
    """Wraps an ASGI app, inside `RequestId`. Its `observer` is to hear what the engines say, see `Watchers.add`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open: dict[str, Account] = {}

    def observer(self, model_id: str) -> Observer:
        """For the engine of that model."""
        return _Listener(self._open, model_id)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        id, account, started = request_id(scope), Account(), time.perf_counter()
        response = _Response(send, scope["method"])
        self._open[id] = account
        before = _CURRENT.set(account)
        try:
            await self._app(scope, receive, response)
        finally:
            _CURRENT.reset(before)
            seconds = time.perf_counter() - started
            if account.running:  # its client has gone, and the engine has not noticed yet
                later = asyncio.get_running_loop()
                later.call_later(_LATE_S, self._close, scope, id, account, response, seconds)
            else:
                self._close(scope, id, account, response, seconds)

    def _close(self, scope: Scope, id: str, account: Account, response: _Response, seconds: float) -> None:
        if self._open.get(id) is account:
            del self._open[id]
        level = logging.DEBUG if scope["path"] in QUIET else logging.INFO
        if not log.isEnabledFor(level):
            return
        refused = noted_refusal(scope)
        fields = {
            "id": id,
            "method": response.method,
            "path": printable(scope["path"][:200]),
            "status": response.status if response.begun else NOBODY,
            "model": account.model,
            "stream": response.stream,
            "complete": response.complete,
            "seconds": round(seconds, 4),
            **account.fields,
        }
        if refused is not None:
            fields["code"] = refused.body.error.code
            fields["error"] = printable(refused.body.error.message)
        log.log(level, "%s", _line(fields), extra={"event": "request", "fields": fields})


class _Listener:
    def __init__(self, accounts: dict[str, Account], model_id: str) -> None:
        self._accounts = accounts
        self._model_id = model_id

    def on(self, event: RequestEvent) -> None:
        account = self._accounts.get(event.request_id.partition(CHOICE)[0])
        if account is not None:
            account.on(event, self._model_id)


class _Response:
    """Looks at a response on its way."""

    def __init__(self, send: Send, method: str) -> None:
        self._send = send
        self.method = method  # that of the scope changes on the way in
        self.begun = False
        self.status = 0
        self.stream = False
        self.complete = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            self.status = message["status"]
            kinds = [value for name, value in message["headers"] if name == b"content-type"]
            self.stream = any(kind.startswith(b"text/event-stream") for kind in kinds)
        await self._send(message)
        if message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)


def _rate(count: int, seconds: float) -> float | None:
    return round(count / seconds, 2) if count > 0 and seconds > 0 else None


def _line(fields: dict[str, Any]) -> str:
    parts = [f"request {fields['id']}: {fields['status']} {fields['method']} {fields['path']}"]
    if "finish_reason" in fields:
        parts.append(
            f"{fields['model']}: {fields['prompt_tokens']} prompt tokens ({fields['cached_tokens']} cached, "
            f"{fields['new_tokens']} new), {fields['generated_tokens']} generated, {fields['finish_reason']}"
        )
        if fields["first_token_seconds"] is not None:
            parts.append(f"first token after {fields['first_token_seconds']:.3f} s")
        rates = [f"{rate:.1f}" for rate in (fields["prefill_rate"], fields["decode_rate"]) if rate is not None]
        if rates:
            parts.append(f"{' and '.join(rates)} tokens/s")
    elif fields["model"] is not None:
        tokens = f": {fields['prompt_tokens']} prompt tokens" if "prompt_tokens" in fields else ""
        parts.append(f"{fields['model']}{tokens}")
    if "error" in fields:
        parts.append(fields["error"])
    if fields["stream"]:
        parts.append("stream" if fields["complete"] else "stream, not read to its end")
    return f"{'; '.join(parts)}; {fields['seconds']:.3f} s"
