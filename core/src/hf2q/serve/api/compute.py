"""`Compute`: work on a model that goes past its engine (embeddings, images, prompts' log probabilities), in threads.

One piece of work at a time for each model: two would only slow each other down. Few may wait; others are told to come
back. Work that nobody waits for any more stops at its next look.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from hf2q.errors import OverloadedError

if TYPE_CHECKING:
    from hf2q.serve.model import Model

Result = TypeVar("Result")

WAITING = 16
"""Requests that may wait for a model, besides the one that is worked for."""


class Abandoned(Exception):
    """Nobody waits for the work any more."""


class Turn:
    """Given to work, which looks at it now and then."""

    def __init__(self) -> None:
        self._over = threading.Event()

    def check(self) -> None:
        """Errors: Abandoned when nobody waits for the work any more."""
        if self._over.is_set():
            raise Abandoned

    def end(self) -> None:
        """Nobody waits for it any more."""
        self._over.set()


class _Lane:
    """What waits for a model."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.here = 0


class Compute:
    """The work of one server; `waiting` requests may wait for each model. Used in one event loop."""

    def __init__(self, waiting: int = WAITING) -> None:
        self._waiting = waiting
        self._lanes: WeakKeyDictionary[Model, _Lane] = WeakKeyDictionary()

    async def run(self, model: Model, work: Callable[[Turn], Result]) -> Result:
        """The result of `work`, done in a thread when it is its turn.

        When this is cancelled, it returns as soon as the work has looked at its turn, so that nothing uses the model
        behind its lease's back. Errors: OverloadedError (``queue_full``) when too many wait; what `work` raises.
        """
        lane = self._lanes.get(model)
        if lane is None:
            lane = self._lanes[model] = _Lane()
        if lane.here > self._waiting:
            raise OverloadedError(
                f"{lane.here} requests for work besides generation are waiting",
                hint="try again later",
                code="queue_full",
            )
        lane.here += 1
        try:
            async with lane.lock:
                return await _in_thread(work)
        finally:
            lane.here -= 1


async def _in_thread(work: Callable[[Turn], Result]) -> Result:
    turn = Turn()
    job = asyncio.ensure_future(asyncio.to_thread(work, turn))
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        turn.end()
        await asyncio.wait({job})
        if not job.cancelled():
            job.exception()  # looked at, so that nobody calls it forgotten
        raise
