"""`Reporter`: counts what happens to requests, tells an observer, and writes a line of the log (debug) for each."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from hf2q.serve.observe import DECODING_EVERY, EngineStats, RequestEvent, SlotStatus

if TYPE_CHECKING:
    from hf2q.serve.events import TokenEvent
    from hf2q.serve.job import Job
    from hf2q.serve.memory_plan import MemoryPlan
    from hf2q.serve.observe import EventKind, Observer
    from hf2q.serve.prefix_store import PrefixStore
    from hf2q.serve.scheduler import Scheduler

log = logging.getLogger("hf2q.serve.engine")


class Reporter:
    """Totals as in `hf2q.serve.observe.EngineStats`."""

    def __init__(self, observer: Observer | None) -> None:
        self._observer = observer
        self.accepted = self.finished = self.cancelled = self.failed = self.refused = 0
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = 0
        self.decode_steps = self.decode_rows = 0

    def happened(
        self, kind: EventKind, job: Job, *, finish_reason: str | None = None, error: str | None = None
    ) -> None:
        """Tell the observer."""
        if self._observer is None:
            return
        generation, timings = job.generation, job.generation.timings()
        event = RequestEvent(
            kind=kind,
            request_id=generation.request.id,
            slot=job.slot,
            time=time.time(),
            prompt_tokens=len(generation.prompt),
            cached_tokens=generation.cached,
            done_tokens=done_tokens(job),
            generated=len(generation.tokens),
            rate=job.rate,
            eta_seconds=job.eta,
            finish_reason=finish_reason,
            error=error,
            queue_seconds=timings.queue_seconds,
            prefill_seconds=timings.prefill_seconds,
            decode_seconds=timings.decode_seconds,
        )
        try:
            self._observer.on(event)
        except Exception:
            log.warning("the observer failed on a %s event", kind, exc_info=True)

    def began(self, job: Job) -> None:
        """It is first worked on."""
        self.prompt_tokens += len(job.generation.prompt)
        self.cached_tokens += job.generation.cached

    def generated(self, job: Job) -> None:
        """It has one more token."""
        self.generated_tokens += 1
        if len(job.generation.tokens) == 1:
            self.happened("first_token", job)
            job.told = time.perf_counter()
        elif self._observer is not None and time.perf_counter() - job.told >= DECODING_EVERY:
            job.told = time.perf_counter()
            self.happened("decoding", job)

    def ended(self, job: Job, last: TokenEvent) -> None:
        """It ended by itself, or was cancelled."""
        if last.finish_reason == "cancelled":
            self.cancelled += 1
            self.happened("cancelled", job, finish_reason="cancelled")
        else:
            self.finished += 1
            self.happened("finished", job, finish_reason=last.finish_reason)
        usage, timings = last.usage, last.timings
        if usage is None or timings is None:
            return
        log.debug(
            "request %s: %d prompt tokens (%d cached), %d generated, %s; queued %.2f s, first token after %.2f s, "
            "%.1f tokens/s",
            job.generation.request.id or "-",
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
            last.finish_reason,
            timings.queue_seconds,
            timings.prefill_seconds,
            timings.decode_rate,
        )

    def broke(self, job: Job, error: str) -> None:
        """It ended with an error."""
        self.failed += 1
        self.happened("failed", job, error=error)
        log.debug("request %s failed: %s", job.generation.request.id or "-", error)


def done_tokens(job: Job) -> int:
    """Prompt tokens that are fed, or were, when it ended."""
    generation = job.generation
    return len(generation.prompt) if generation.tokens else max(generation.position, job.reached)


def status(index: int, job: Job | None) -> SlotStatus:
    """A slot, as it is now."""
    if job is None:
        return SlotStatus(index=index)
    generation = job.generation
    return SlotStatus(
        index=index,
        request_id=generation.request.id,
        phase=job.phase,
        prompt_tokens=len(generation.prompt),
        cached_tokens=generation.cached,
        done_tokens=done_tokens(job),
        generated=len(generation.tokens),
        rate=job.rate,
        eta_seconds=job.eta,
        kv_bytes=job.kv,
    )


def snapshot(
    reporter: Reporter,
    scheduler: Scheduler[Job],
    store: PrefixStore,
    memory: MemoryPlan,
    *,
    ready: bool,
    failure: str | None,
) -> EngineStats:
    """An engine, as it is now."""
    return EngineStats(
        ready=ready,
        failure=failure,
        slots=tuple(status(index, job) for index, job in enumerate(list(scheduler.slots))),
        queued=len(scheduler.queue),
        queue_capacity=scheduler.capacity,
        accepted=reporter.accepted,
        finished=reporter.finished,
        cancelled=reporter.cancelled,
        failed=reporter.failed,
        refused=reporter.refused,
        prompt_tokens=reporter.prompt_tokens,
        cached_tokens=reporter.cached_tokens,
        generated_tokens=reporter.generated_tokens,
        decode_steps=reporter.decode_steps,
        decode_rows=reporter.decode_rows,
        prefix_lookups=store.lookups,
        prefix_hits=store.hits,
        prefix_entries=len(store),
        prefix_bytes=store.nbytes,
        prefix_budget=store.budget,
        prefix_evictions=store.evictions,
        kv_bytes=memory.used,
        kv_budget=memory.limit,
    )
