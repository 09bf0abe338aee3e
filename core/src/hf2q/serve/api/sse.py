"""Server-sent events, as OpenAI's clients read them.

    data: {json}\\n\\n      one frame
    : ping\\n\\n            a comment, so that nobody on the way takes silence for death
    data: [DONE]\\n\\n      the end of a stream that succeeded, and only of such a one

A stream that fails ends in one frame ``{"error": {…}}`` and no ``[DONE]``. No ``id:``, ``event:`` or ``retry:``
lines: a client that has seen an id takes each comment after it for an empty event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from hf2q.serve.api.disconnect import ClientGone, while_connected

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
_HEADERS = {
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # proxies like nginx would collect the stream otherwise
    "connection": "close",  # so that the end of an answer, good or bad, is the end of the connection too
}


def frame(body: bytes) -> bytes:
    """One frame around JSON."""
    return b"data: " + body + b"\n\n"


class EventStream(ASGIResponse):
    """A response that sends `frames` as they come, and a ping after each `ping_s` seconds without one.

    When the client goes away, or the server ends the task, `frames` is closed at once; `on_end` is called whatever
    happens.
    """

    _should_set_content_length = False

    def __init__(self, frames: AsyncGenerator[bytes, None], *, ping_s: float, on_end: Callable[[], None]) -> None:
        super().__init__(headers=_HEADERS, media_type="text/event-stream")
        self._frames = frames
        self._ping_s = ping_s
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI: send headers, frames and the end."""
        try:
            await while_connected(self._run(send), receive)
        except ClientGone:
            return
        finally:
            self._on_end()

    async def _run(self, send: Send) -> None:
        async with aclosing(self._frames) as frames, aclosing(with_pings(frames, self._ping_s)) as paced:
            await self.start_response(send)
            async for data in paced:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def with_pings(frames: AsyncIterator[bytes], ping_s: float) -> AsyncGenerator[bytes, None]:
    """`frames`, and PING whenever none has come for `ping_s` seconds."""
    waiting: asyncio.Future[bytes] | None = None
    try:
        while True:
            waiting = asyncio.ensure_future(_next(frames))
            while not (await asyncio.wait({waiting}, timeout=ping_s))[0]:
                yield PING
            data = waiting.result()
            if not data:
                return
            yield data
    finally:
        if waiting is not None and not waiting.done():
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


async def _next(frames: AsyncIterator[bytes]) -> bytes:
    return await anext(frames, b"")
