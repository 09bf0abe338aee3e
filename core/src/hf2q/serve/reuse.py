"""`Reuse`: where a job's prompt begins as something else did: in the store, or in a slot that is at work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf2q.serve.prefix import LEAST, Line, common, needs_checkpoints

if TYPE_CHECKING:
    from hf2q.backends.cache import Cache
    from hf2q.serve.job import Job
    from hf2q.serve.memory_plan import MemoryPlan
    from hf2q.serve.prefix_store import PrefixStore
    from hf2q.serve.scheduler import Scheduler

WORTH_WAITING = 32
"""Tokens that another job must spare one that waits for it."""


class Reuse:
    """Over one store, and the jobs in slots."""

    def __init__(self, scheduler: Scheduler[Job], store: PrefixStore, memory: MemoryPlan) -> None:
        self._scheduler, self._store, self._memory = scheduler, store, memory

    def waits(self, job: Job) -> bool:
        """Whether to start the job later, because another that is at work computes the beginning of its prompt."""
        if job.scope is None:
            return False
        leader = job.leader
        if leader is not None and self._leads(leader, job) and leader.generation.position < job.lead:
            return True
        job.leader = None
        found = self._best(job)[1]
        for other in self._scheduler.active:
            if self._leads(other, job):
                reach = min(
                    common(other.generation.prompt, other.images, job.generation.prompt, job.images), _most(job)
                )
                if reach - max(found, other.generation.position) >= WORTH_WAITING:
                    job.leader, job.lead = other, reach
                    other.cuts.add(reach)
                    return True
        return False

    def _leads(self, other: Job, job: Job) -> bool:
        return other is not job and other.scope == job.scope and other.phase == "prefill" and other.shares

    def start(self, job: Job) -> Cache | None:
        """A state to start from, which is the job's from here on; None when there is none."""
        if job.scope is None:
            return None
        line, position = self._best(job)
        self._store.lookups += 1
        if line is None:
            return None
        stored = line in self._store
        if stored and line.common(job.generation.fed(0, _all(job)), job.images) >= line.stable:
            self._store.take(line)
            cache = line.moved(position)
        elif self._memory.make_room(_copy_bytes(line, position), keep=line):
            if stored:
                self._store.touch(line)
            cache = line.copied(position)
        else:
            return None
        self._store.hits += 1
        job.checkpoints = [checkpoint for checkpoint in line.checkpoints if checkpoint.position <= position]
        return cache

    def _best(self, job: Job) -> tuple[Line | None, int]:
        """The line that can be gone on from furthest, and where."""
        assert job.scope is not None
        ids, most = job.generation.fed(0, _all(job)), _most(job)
        best, found = None, 0
        lines = [*self._store.of(job.scope)]
        lines += [
            line
            for other in self._scheduler.active
            if other.scope == job.scope and other is not job and (line := other.line)
        ]
        for line in lines:
            at = line.resumable(min(line.common(ids, job.images), most))
            if at > found:
                best, found = line, at
        return (best, found) if found >= LEAST else (None, 0)

    def keep(self, job: Job) -> None:
        """The job is over: let others go on from its state."""
        line = job.line
        if job.scope is None or line is None:
            return
        job.kv = 0  # it is the store's now
        if self._memory.make_room(line.nbytes):
            self._store.add(job.scope, line)


def _all(job: Job) -> int:
    return len(job.generation.prompt) + len(job.generation.tokens)


def _copy_bytes(line: Line, position: int) -> int:
    """About what a copy takes."""
    return line.nbytes if needs_checkpoints(line.cache) else line.nbytes * position // len(line.ids)


def _most(job: Job) -> int:
    """One token at least goes through the model: its logits are wanted."""
    return _all(job) - 1
