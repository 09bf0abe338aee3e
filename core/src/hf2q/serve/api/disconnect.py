"""Doing work for a client as long as the client is there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from litestar.types import Receive

Result = TypeVar("Result")

NOBODY = 499
"""nginx's code for a client that has gone; nobody receives it."""


class ClientGone(Exception):
    """The client closed its connection before the answer was complete."""


async def while_connected(work: Coroutine[None, None, Result], receive: Receive) -> Result:
    """Run `work`; when the client disconnects first, cancel it and raise ClientGone.

    To be called when the request's body has been read: what `receive` gives from then on is the disconnect. When this
    is cancelled itself, so is `work`. In each case `work` has ended, its clean-up included, before this returns.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
