"""`Job`: one request on its way through the engine, as scheduler and worker see it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from hf2q.serve.prefix import LEAST, Line, checkpoint_bytes, needs_checkpoints, pictures, thinned
from hf2q.serve.sequence import Sequence

if TYPE_CHECKING:
    from hf2q.backends.cache import Cache, Checkpoint
    from hf2q.serve.generation import Generation
    from hf2q.serve.handle import Handle
    from hf2q.serve.observe import SlotPhase
    from hf2q.types import Float32


class Job:
    """handle, generation  the two ends of the request
    slot, phase   see `hf2q.serve.scheduler.Schedulable`
    scope         who shares its prompt's state; None: nobody
    images        those of its prompt, by what they show
    stable        where the part of its prompt begins that no other conversation shares, see `Line`
    kv            bytes that its caches take or may grow to;  assured  the position up to which they may, in decoding
    checkpoints   of its sequence
    cuts          positions at which to take further checkpoints
    leader, lead  the job that computes a common beginning, and the position that it must reach
    alone         keep it out of batches
    reached       the position at which it ended
    logits, since from which to choose a token once its constraint has told what is allowed, and since when
    told          when its last "decoding" event was given
    """

    def __init__(self, handle: Handle, generation: Generation, end_ids: frozenset[int], *, share: bool) -> None:
        self.handle, self.generation = handle, generation
        self.slot: int | None = None
        self.phase: SlotPhase = "idle"
        request = generation.request
        self.scope = request.scope if share else None
        self.images = () if self.scope is None else pictures(request.images)
        self.stable = 0 if self.scope is None else _stable(generation, end_ids)
        self.kv = self.assured = 0
        self.checkpoints: list[Checkpoint] = []
        self.cuts: set[int] = set()
        self.leader: Job | None = None
        self.lead = 0
        self.alone = False
        self.reached = 0
        self.logits: Float32 | None = None
        self.since = 0.0
        self.told = 0.0

    @property
    def unwanted(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.handle.cancelled or self.handle.ended

    @property
    def cache(self) -> Cache | None:
        """What its sequence remembers, where that is known."""
        sequence = self.generation.sequence
        return None if sequence is None else sequence.cache

    @property
    def shares(self) -> bool:
        """Whether it has a `line`."""
        sequence = self.generation.sequence
        return self.scope is not None and isinstance(sequence, Sequence) and sequence.position >= LEAST

    @property
    def line(self) -> Line | None:
        """What others may go on from: of a job that shares, has fed enough, and does not compute ahead."""
        sequence = self.generation.sequence
        if not self.shares or not isinstance(sequence, Sequence):
            return None
        return Line(self.generation.fed(), self.images, sequence.cache, self.checkpoints, stable=self.stable)

    def note_checkpoint(self) -> None:
        """After a piece of the prompt: take a checkpoint if others may need one to come back here."""
        cache = self.cache
        if self.shares and cache is not None and needs_checkpoints(cache) and cache.unfinished is None:
            self.checkpoints = thinned([*self.checkpoints, cache.checkpoint()], (self.stable, *self.cuts))

    def places(self) -> list[int]:
        """Where to stop in the prompt for a checkpoint."""
        cache = self.cache
        if self.scope is None or cache is None or not needs_checkpoints(cache):
            return []
        return [self.stable, *self.cuts]

    @property
    def checkpoint_bytes(self) -> int:
        """Of all."""
        return sum(map(checkpoint_bytes, self.checkpoints))

    def forget(self) -> None:
        """Give all memory back."""
        self.generation.forget()
        self.checkpoints = []
        self.kv = self.assured = 0

    @property
    def rate(self) -> float:
        """Tokens per second: new ones of the prompt, or once there are any, generated ones."""
        generation, now = self.generation, time.perf_counter()
        if generation.tokens:
            return _quotient(len(generation.tokens) - 1, now - generation.first)
        return _quotient(generation.position - generation.cached, now - generation.started)

    @property
    def eta(self) -> float | None:
        """Seconds until the prompt is done; None where that cannot be told."""
        if self.generation.tokens:
            return 0.0
        rate = self.rate
        return self.generation.left / rate if rate > 0 and self.phase == "prefill" else None


def _quotient(tokens: int, seconds: float) -> float:
    return tokens / seconds if tokens > 0 and seconds > 0 else 0.0


def _stable(generation: Generation, end_ids: frozenset[int]) -> int:
    """After the last turn that has ended; in a prompt without turns, before its last token.

    What follows that turn is how the template opens the next one, and a template may open it in another way once it is
    a turn of the past (reasoning is left out of it).
    """
    ends = np.flatnonzero(np.isin(generation.prompt, list(end_ids)))
    last = len(generation.prompt) - 1
    return min(int(ends[-1]) + 1, last) if len(ends) else last
