"""`Worker`: the rounds in which an engine works: who was cancelled, who comes in, one step of all, a piece of a prompt.

What hf2q refuses (`Hf2qError`) ends the request whose work it was. When a step of several fails so, nobody knows whose
fault it was and their states are lost: each computes its own again and goes on alone, so the one at fault fails alone.
Anything else passes through: the state of the backend is unknown then.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from hf2q.errors import Hf2qError
from hf2q.serve.sequence import Sequence, next_logits_together
from hf2q.serve.speculate import SpeculativeSequence

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Several
    from threading import Condition

    from hf2q.serve.events import TokenEvent
    from hf2q.serve.job import Job
    from hf2q.serve.masks import MaskPool
    from hf2q.serve.memory_plan import MemoryPlan
    from hf2q.serve.model import Model
    from hf2q.serve.reporting import Reporter
    from hf2q.serve.reuse import Reuse
    from hf2q.serve.scheduler import Scheduler
    from hf2q.types import Float32


MASK_GRACE = 0.005
"""Seconds that a step waits for constraints before it goes on without their requests."""

MASK_DEADLINE = 30.0
"""Seconds after which a request is given up whose constraint does not answer."""


class Worker:
    """model, scheduler, memory, reuse, reporter, masks  what it works with
    lock   held while the queue changes
    watch  around each piece of work of the backend, with its name
    """

    def __init__(
        self,
        model: Model,
        scheduler: Scheduler[Job],
        memory: MemoryPlan,
        reuse: Reuse,
        reporter: Reporter,
        masks: MaskPool,
        lock: Condition,
        watch: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._model, self._scheduler, self._memory = model, scheduler, memory
        self._reuse, self._reporter, self._masks = reuse, reporter, masks
        self._lock, self._watch = lock, watch
        self._patience = 0.0  # until when masks are waited for

    def round(self) -> None:
        """Do what is to be done next. Errors: any that is not one request's alone."""
        self._drop_unwanted()
        self._admit()
        self._memory.resume(self._fail)
        self._late()
        busy = self._decode()
        self._drop_unwanted()
        busy = self._prefill() or busy
        if not busy:
            self._wait_for_a_mask()

    # ---------------------------------------------------------------------------------------------- coming and going

    def _drop_unwanted(self) -> None:
        """End those that nobody waits for, in slots and in the queue, where they would take up room."""
        gone = [job for job in self._scheduler.active if job.unwanted]
        if self._scheduler.queue:
            with self._lock:
                gone += self._scheduler.withdraw(lambda job: job.unwanted)
        for job in gone:
            self._hand(job, job.generation.cancel())

    def _admit(self) -> None:
        while self._scheduler.queue:
            with self._lock:
                job = self._scheduler.admit()
            if job is None:
                return
            self._reporter.happened("started", job)

    def _hand(self, job: Job, events: list[TokenEvent]) -> None:
        """Give events to the reader; with the last one the slot is free before the reader learns of it."""
        if not events:
            return
        if job.generation.done:
            self._leave(job, keep=True)
        wanted = job.handle.put(events)
        if job.generation.done:
            if wanted:
                self._reporter.ended(job, events[-1])
        elif not wanted:
            self._leave(job, keep=False)
            if job.handle.overrun:
                self._reporter.broke(job, job.handle.overrun)

    def _fail(self, job: Job, error: Hf2qError) -> None:
        self._leave(job, keep=False)
        if job.handle.fail(error):
            self._reporter.broke(job, error.message)

    def _leave(self, job: Job, *, keep: bool) -> None:
        if job.slot is None:
            return
        sequence = job.generation.sequence
        if keep and job.scope is not None and isinstance(sequence, SpeculativeSequence):
            keep = self._plain(job, sequence) is not None
        held = job.generation.constrained
        if held is not None and held.later is not None:
            self._masks.give_up(held.later)
        job.logits = None
        self._scheduler.release(job)
        if keep:
            self._reuse.keep(job)
        job.reached = job.generation.position
        job.forget()

    # --------------------------------------------------------------------------------------------------------- decode

    def _decode(self) -> bool:
        """Whether there was anybody."""
        rows = [job for job in self._scheduler.decoding() if job.logits is None and self._may_grow(job)]
        together = []
        for job in rows:
            sequence = job.generation.sequence
            if isinstance(sequence, SpeculativeSequence) and len(self._scheduler.active) > 1:
                sequence = self._plain(job, sequence)  # computing ahead would hold the others up
            if sequence is None:
                self._again([job])
            elif isinstance(sequence, Sequence) and not job.alone:
                together.append(job)
            else:
                self._step([job])
        if together:
            self._step(together)
        return bool(rows)

    def _plain(self, job: Job, sequence: SpeculativeSequence) -> Sequence | None:
        """The same state without guesses; None when it was lost."""
        try:
            with self._watch("the end of a speculation"):
                job.generation.sequence = plain = sequence.plain()
        except Hf2qError:
            return None
        return plain

    @staticmethod
    def _again(jobs: Several[Job]) -> None:
        """Their states are lost: they compute them again, and go on alone."""
        for job in jobs:
            job.alone, job.phase = True, "prefill"
            job.forget()

    def _step(self, jobs: Several[Job]) -> None:
        try:
            with self._watch(f"a step of {len(jobs)} requests"):
                logits = self._logits(jobs)
        except Hf2qError as error:
            if len(jobs) == 1:
                self._fail(jobs[0], error)
            else:
                self._again(jobs)
            return
        self._reporter.decode_steps += 1
        self._reporter.decode_rows += len(jobs)
        self._patience = time.monotonic() + MASK_GRACE
        for job, row in zip(jobs, logits, strict=True):
            self._take(job, row)

    @staticmethod
    def _logits(jobs: Several[Job]) -> Several[Float32]:
        sequences = [job.generation.sequence for job in jobs]
        if len(jobs) > 1:
            plain = [sequence for sequence in sequences if isinstance(sequence, Sequence)]
            return list(next_logits_together(plain, [job.generation.last for job in jobs]))
        (sequence,) = sequences
        assert sequence is not None
        return [sequence.next_logits((jobs[0].generation.last,))]

    def _take(self, job: Job, logits: Float32) -> None:
        held = job.generation.constrained
        if held is not None and held.later is not None and not held.later.wait(self._patience - time.monotonic()):
            job.logits, job.since = logits.copy(), time.monotonic()  # the next step may use the array again
            return
        before = len(job.generation.tokens)
        try:
            with self._watch("the choice of a token"):  # a constraint is asked here
                events = job.generation.take(logits)
                job.generation.look_ahead(self._masks)
        except Hf2qError as error:
            self._fail(job, error)
            return
        if len(job.generation.tokens) > before:
            self._reporter.generated(job)
        self._hand(job, events)

    def _late(self) -> None:
        """Those whose constraint has answered meanwhile choose their token."""
        for job in self._scheduler.active:
            held = job.generation.constrained
            if job.logits is None or held is None:
                continue
            if held.later is None or held.later.done:
                logits, job.logits = job.logits, None
                self._take(job, logits)
            elif time.monotonic() - job.since > MASK_DEADLINE:
                self._fail(job, Hf2qError(f"the constraint did not say within {MASK_DEADLINE:g} s what may come next"))

    def _wait_for_a_mask(self) -> None:
        late = [job.generation.constrained for job in self._scheduler.active if job.logits is not None]
        for held in late[:1]:
            if held is not None and held.later is not None:
                held.later.wait(MASK_GRACE)

    def _may_grow(self, job: Job) -> bool:
        try:
            return self._memory.grow(job)
        except Hf2qError as error:
            self._fail(job, error)
            return False

    # -------------------------------------------------------------------------------------------------------- prefill

    def _prefill(self) -> bool:
        """Whether there was anybody."""
        job = self._scheduler.next_prefill(lambda job: job.generation.begun or not self._reuse.waits(job))
        if job is None:
            return False
        try:
            if not job.generation.begun:
                self._begin(job)
            with self._watch("the beginning of a constraint"):
                job.generation.look_ahead(self._masks)
            if not self._memory.grow(job):
                return True
            with self._watch(f"a piece of a prompt of {len(job.generation.prompt)} tokens"):
                logits = job.generation.feed(job.places())
        except Hf2qError as error:
            self._fail(job, error)
            return True
        self._memory.fed(job)
        if not job.generation.tokens:
            self._reporter.happened("prefill", job)
        if logits is not None:
            job.phase = "decode"
            self._patience = time.monotonic() + MASK_GRACE
            self._take(job, logits)
        return True

    def _begin(self, job: Job) -> None:
        generation = job.generation
        first = not generation.tokens and generation.started == generation.created
        with self._watch("the reuse of a prefix"):
            cache = self._reuse.start(job)
        if cache is None:
            if generation.request.speculative and len(self._scheduler.active) > 1:
                generation.begin(self._model.sequence(generation.request.images))
            else:
                generation.begin()
        else:
            sequence = self._model.sequence(generation.request.images)
            sequence.resume(cache)
            generation.begin(sequence)
        if first:
            self._reporter.began(job)
