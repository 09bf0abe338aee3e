"""`Engine`: token ids in, token ids and text out; many callers, one worker, several requests at once.

The engine knows neither HTTP nor chat. A request is refused at `submit` or ends exactly once: with a last event, or
with an error. What hf2q refuses (`Hf2qError`: a request that cannot be honoured, logits that are no numbers) ends that
request alone. After any other failure, or when a piece of work does not return in time, the state of the backend is
unknown: every request ends with the error, and nothing is accepted any more.

Who does what: `scheduler` says whose turn it is, `memory_plan` who may grow, `reuse` where a prompt need not be
computed; `worker` does it, `reporting` tells of it, `watchdog` looks whether it is stuck.
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from hf2q.errors import Hf2qError, OverloadedError, UsageError
from hf2q.serve.budget import default_kv_budget, default_prefix_budget, size
from hf2q.serve.events import GenerateRequest
from hf2q.serve.generation import PREFILL_CHUNK, Generation
from hf2q.serve.handle import Handle
from hf2q.serve.job import Job
from hf2q.serve.masks import MaskPool
from hf2q.serve.memory_plan import MemoryPlan
from hf2q.serve.prefix_store import PrefixStore
from hf2q.serve.reporting import Reporter, snapshot
from hf2q.serve.reuse import Reuse
from hf2q.serve.scheduler import Scheduler
from hf2q.serve.watchdog import Watchdog
from hf2q.serve.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hf2q.serve.model import Model
    from hf2q.serve.observe import EngineStats, Observer

log = logging.getLogger(__name__)

SLOTS = 4
"""Requests that are worked on at once."""

MOST_SLOTS = 64

QUEUE_CAPACITY = 32
"""Requests that may wait, besides those being worked on."""

DEADLINE = 300.0
"""Seconds that one piece of work may take: a piece of a prompt, or one step of all."""


class Engine:
    """A worker thread for one model. Use it in a `with` statement, or call `close`.

    slots           requests worked on at once, 1 to 64; each has the model's full context
    queue_capacity  requests that may wait
    prefill_chunk   prompt tokens between two looks at cancellations, and at other requests
    kv_budget       most bytes of all caches together; default: a part of what is free now, None where that is not known
    prefix_budget   of these, most bytes for beginnings of prompts that are kept for later requests; 0 turns reuse off;
                    default: a smaller part of what is free
    deadline        seconds that one piece of work may take before the engine counts as stuck
    warm_up         run the model once before being ready
    observer        is told what happens to requests

    ready    the worker has warmed up and is well
    failure  what broke it, or None
    waiting  number of requests in the queue
    active   whether any is being worked on

    Errors: UsageError for numbers out of these bounds.
    """

    def __init__(
        self,
        model: Model,
        *,
        slots: int = SLOTS,
        queue_capacity: int = QUEUE_CAPACITY,
        prefill_chunk: int = PREFILL_CHUNK,
        kv_budget: int | None = None,
        prefix_budget: int | None = None,
        deadline: float = DEADLINE,
        warm_up: bool = True,
        observer: Observer | None = None,
    ) -> None:
        _check("slots", slots, 1, MOST_SLOTS)
        _check("queue_capacity", queue_capacity, 0)
        _check("prefill_chunk", prefill_chunk, 1)
        _check("deadline", deadline, 0.001)
        for name, given in (("kv_budget", kv_budget), ("prefix_budget", prefix_budget)):
            if given is not None:
                _check(name, given, 0)
        free = model.free_memory() if kv_budget is None or prefix_budget is None else None
        self.model = model
        self.capacity = queue_capacity
        self.failure: Hf2qError | None = None
        self._chunk = prefill_chunk
        self._condition = threading.Condition()
        self._scheduler: Scheduler[Job] = Scheduler(slots, queue_capacity)
        self._reporter = Reporter(observer)
        self._store = PrefixStore(default_prefix_budget(free) if prefix_budget is None else prefix_budget)
        limit = default_kv_budget(free) if kv_budget is None else kv_budget
        self._memory = MemoryPlan(self._scheduler, self._store, self._reporter, limit=limit, chunk=prefill_chunk)
        self._warm = not warm_up
        self._closing = self._over = False
        self._stuck_in = ""
        self._watchdog = Watchdog(deadline, self._stuck)
        self._masks = MaskPool()
        self._work = Worker(
            model,
            self._scheduler,
            self._memory,
            Reuse(self._scheduler, self._store, self._memory),
            self._reporter,
            self._masks,
            self._condition,
            self._watchdog.watch,
        )
        self._worker = threading.Thread(target=self._run, name="hf2q-engine", daemon=True)
        self._worker.start()

    # --------------------------------------------------------------------------------------------------- the callers

    @property
    def ready(self) -> bool:
        """Whether requests are accepted and worked on."""
        return self._warm and self.failure is None and not self._closing

    @property
    def waiting(self) -> int:
        """Number of requests in the queue."""
        return len(self._scheduler.queue)

    @property
    def active(self) -> bool:
        """Whether any request is being worked on."""
        return any(self._scheduler.slots)

    @property
    def handles(self) -> list[Handle]:
        """Those of all requests in slots, then of those that wait, each in order."""
        with self._condition:
            return [job.handle for job in [*self._scheduler.active, *self._scheduler.queue]]

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait for the warm-up; whether the engine is ready. With `timeout`, at most that many seconds."""
        with self._condition:
            self._condition.wait_for(lambda: self._warm or self.failure is not None or self._closing, timeout)
            return self.ready

    def submit(self, request: GenerateRequest) -> Handle:
        """Queue a request.

        Errors, all before it is queued: ContextLengthError with both numbers; RequestError for tokens outside the
        vocabulary, and for a prompt that the KV budget cannot hold (code ``kv_budget_exceeded``); OverloadedError when
        the queue is full (code ``queue_full``), or when the engine has failed or is closing (code ``not_ready``).
        """
        return self.submit_many([request])[0]

    def submit_many(self, requests: Sequence[GenerateRequest]) -> list[Handle]:
        """Queue several requests, all of them or none. Errors: as `submit`, of the first that is refused."""
        jobs = [self._job(request) for request in requests]
        with self._condition:
            try:
                if self.failure is not None or self._closing:
                    why = "has failed" if self.failure is not None else "is shutting down"
                    raise OverloadedError(f"the engine {why} and accepts no requests", code="not_ready")
                self._scheduler.enqueue(*jobs)
            except OverloadedError:
                self._reporter.refused += len(jobs)
                raise
            self._reporter.accepted += len(jobs)
            for job in jobs:  # before the worker can tell more of it
                self._reporter.happened("queued", job)
            self._condition.notify_all()
        return [job.handle for job in jobs]

    def _job(self, request: GenerateRequest) -> Job:
        generation = Generation(self.model, request, chunk=self._chunk)
        self._memory.check(len(generation.prompt))
        return Job(Handle(request), generation, self.model.end_ids, share=self._store.budget > 0)

    def stats(self) -> EngineStats:
        """How it stands; cheap, from any thread at any time."""
        failure = None if self.failure is None else self.failure.message
        return snapshot(self._reporter, self._scheduler, self._store, self._memory, ready=self.ready, failure=failure)

    def close(self, *, drain: bool = True, timeout: float | None = None) -> bool:
        """Stop: accept nothing more, finish what was accepted (or, without `drain`, cancel it), end the worker.

        Returns whether the worker ended within `timeout` seconds; one that is stuck is not waited for. May be called
        again, for example without `drain`.
        """
        with self._condition:
            self._closing = True
            if not drain:
                for job in [*self._scheduler.active, *self._scheduler.queue]:
                    job.handle.cancel()
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._over, timeout)
            stuck = self.failure is not None and self._stuck_in
        if self._over and not stuck:
            self._worker.join(timeout)
        return not self._worker.is_alive()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=error is None)

    # --------------------------------------------------------------------------------------------------- the worker

    def _run(self) -> None:
        try:
            if not self._warm:
                with self._watchdog.watch("the warm-up"):
                    self.model.warm_up()  # Hf2qError when its logits are no numbers: such a model can answer nobody
                with self._condition:
                    self._warm = True
                    self._condition.notify_all()
            if self._memory.limit is not None:
                log.info("caches may take %s", size(self._memory.limit))
            while self._wait():
                self._work.round()
        except BaseException as error:  # whatever it was, nobody may wait for this thread any more
            self._fail(error)
        finally:
            self._end()

    def _wait(self) -> bool:
        """Whether there is work; waits for it. False when there will be none."""
        with self._condition:
            self._condition.wait_for(lambda: self._scheduler.busy or self._closing or self.failure is not None)
            return self._scheduler.busy and self.failure is None

    def _stuck(self, what: str, seconds: float) -> None:
        """Called by the watchdog: the worker may never come back, so others are told from here."""
        self._stuck_in = what
        self._fail(
            Hf2qError(
                f"the engine is stuck: {what} has taken {seconds:.1f} s, {self._watchdog.deadline:g} s are allowed",
                hint="restart it",
            )
        )
        self._end()

    def _end(self) -> None:
        self._watchdog.stop()
        self._masks.close()
        with self._condition:
            self._over = True
            self._condition.notify_all()

    def _fail(self, error: BaseException) -> None:
        own = isinstance(error, Hf2qError)
        failure = Hf2qError(f"the engine failed: {type(error).__name__}: {error}", hint="restart it")
        if isinstance(error, Hf2qError):
            failure = error
        with self._condition:
            if self.failure is not None:  # the watchdog was first
                return
            self.failure = failure
            jobs = self._scheduler.clear()
            self._condition.notify_all()
        log.critical("%s", failure.message, exc_info=None if own else error)
        for job in jobs:
            if job.handle.fail(Hf2qError(failure.message, hint=failure.hint)):  # one each: separate tracebacks
                self._reporter.broke(job, failure.message)


def _check(name: str, value: float, least: float, most: float | None = None) -> None:
    if value < least or (most is not None and value > most) or value != value:
        bounds = f"at least {least:g}" if most is None else f"{least:g} to {most:g}"
        raise UsageError(f"{name} is {value}, expected {bounds}")
