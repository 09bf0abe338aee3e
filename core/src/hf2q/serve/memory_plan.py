"""`MemoryPlan`: who may grow, who waits, who gives back, so that all caches together stay within the budget.

Before a piece of work a job makes sure that its caches may grow by it (`grow`). States that nobody works on go first.
When that is not enough the job is parked: it keeps what it has, and goes on when others have ended. If all are parked,
the youngest gives its state back and computes it again later, so the oldest always gets on. What cannot fit even alone
is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hf2q.errors import Hf2qError, RequestError
from hf2q.serve.budget import CacheSizes, bytes_of, size

if TYPE_CHECKING:
    from hf2q.serve.job import Job
    from hf2q.serve.prefix import Line
    from hf2q.serve.prefix_store import PrefixStore
    from hf2q.serve.reporting import Reporter
    from hf2q.serve.scheduler import Scheduler

AHEAD = 32
"""Tokens of decoding that are assured at once: asking costs more than a token."""


class MemoryPlan:
    """limit  most bytes of all caches, None for no limit;  chunk  most tokens of a piece of a prompt"""

    def __init__(
        self, scheduler: Scheduler[Job], store: PrefixStore, reporter: Reporter, *, limit: int | None, chunk: int
    ) -> None:
        self.limit = limit
        self._scheduler, self._store, self._reporter = scheduler, store, reporter
        self._chunk = chunk
        self._sizes = CacheSizes()

    @property
    def used(self) -> int:
        """Bytes of all caches."""
        return self._store.nbytes + sum(job.kv for job in self._scheduler.slots if job is not None)

    def check(self, tokens: int) -> None:
        """Errors: RequestError for a prompt whose caches cannot fit, even alone."""
        needed = self._sizes.of(tokens)
        if self.limit is not None and needed > self.limit:
            raise RequestError(
                f"the caches of a prompt of {tokens} tokens take {size(needed)}; all caches together may take "
                f"{size(self.limit)}",
                hint="shorten the prompt, or give the server a larger KV budget",
                param="prompt",
                code="kv_budget_exceeded",
            )

    def measure(self, job: Job) -> None:
        """After a piece of work: take note of what the job's caches take."""
        if (cache := job.cache) is not None:
            self._sizes.learn(cache)
            if job.generation.position >= job.assured:  # else it counts with what it may still grow to
                job.kv = bytes_of(cache) + job.checkpoint_bytes

    def fed(self, job: Job) -> None:
        """After a piece of its prompt: take a checkpoint, if one is of use and there is room for it."""
        job.note_checkpoint()
        self.measure(job)
        if job.checkpoints and not self.make_room(0):
            job.checkpoints = []
            self.measure(job)

    def grow(self, job: Job) -> bool:
        """Whether its next piece of work may be done; else it is parked.

        Errors: Hf2qError when that cannot fit even alone.
        """
        if job.generation.position < job.assured:
            return True
        if job.generation.begun and not job.generation.prefilling:
            self.measure(job)
        if self._may_grow(job):
            return True
        job.phase = "parked"
        self._reporter.happened("parked", job)
        return False

    def _may_grow(self, job: Job) -> bool:
        generation = job.generation
        left = generation.left
        sizes = (min(left, self._chunk),) if left > 1 else (min(AHEAD, max(1, generation.remaining)), 1)
        for tokens in sizes:
            needed = self._sizes.after(job.cache, tokens)
            if self.limit is not None and needed > self.limit:
                if tokens > 1 and left <= 1:
                    continue
                raise Hf2qError(
                    f"the caches of this request take {size(needed)} with {generation.position + tokens} tokens; all "
                    f"caches together may take {size(self.limit)}",
                    hint="shorten the prompt or the answer (max_tokens), or give the server a larger KV budget",
                )
            if job.checkpoints and not self.make_room(needed + job.checkpoint_bytes - job.kv):
                job.checkpoints = []  # others could do with them; this one needs the room
                job.kv = 0 if job.cache is None else bytes_of(job.cache)
            needed += job.checkpoint_bytes
            if self.make_room(needed - job.kv):
                job.kv = max(job.kv, needed)
                job.assured = generation.position + tokens if left <= 1 else 0
                return True
        return False

    def make_room(self, count: int, keep: Line | None = None) -> bool:
        """Whether `count` bytes more fit; states of the store go for them, but for `keep`."""
        if self.limit is None:
            return True
        missing = self.used + max(0, count) - self.limit
        if missing > 0:
            self._store.shrink(max(0, self._store.nbytes - missing), keep)
        return self.used + max(0, count) <= self.limit

    def resume(self, fail: Callable[[Job, Hf2qError], None]) -> None:
        """Let parked jobs go on where there is room now, the oldest first; `fail` ends those that never can."""
        for job in self._scheduler.parked:
            if not self._try(job, fail):
                break
        if any(job.phase != "parked" for job in self._scheduler.active):
            return
        while parked := self._scheduler.parked:
            youngest = next((job for job in reversed(parked[1:]) if job.kv), None)
            if youngest is not None:
                youngest.forget()
            if self._try(parked[0], fail) or youngest is None:
                return

    def _try(self, job: Job, fail: Callable[[Job, Hf2qError], None]) -> bool:
        try:
            if not self._may_grow(job):
                return False
        except Hf2qError as error:
            fail(job, error)
            return True
        job.phase = "prefill" if job.generation.prefilling else "decode"
        self._reporter.happened("resumed", job)
        return True
