"""Several answers as one stream, each piece as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")


class _End(Generic[Item]):
    """One of the streams has ended, with `error` or well."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


async def merged(streams: Sequence[AsyncIterator[Item]]) -> AsyncGenerator[tuple[int, Item], None]:
    """Pieces of `streams` with the index of their stream. The first error of any of them ends all.

    A reader that is slow holds the streams back: at most one piece of each waits.
    """
    if len(streams) == 1:
        async for item in streams[0]:
            yield 0, item
        return
    queue: asyncio.Queue[tuple[int, Item | _End[Item]]] = asyncio.Queue(maxsize=len(streams))

    async def run(index: int, stream: AsyncIterator[Item]) -> None:
        error: BaseException | None = None
        try:
            async for item in stream:
                await queue.put((index, item))
        except Exception as raised:
            error = raised
        await queue.put((index, _End(error)))

    tasks = [asyncio.create_task(run(index, stream)) for index, stream in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            index, found = await queue.get()
            if not isinstance(found, _End):
                yield index, found
                continue
            if found.error is not None:
                raise found.error
            left -= 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
