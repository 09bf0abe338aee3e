"""`Scheduler`: whose turn it is. Knows no model, no thread and no clock.

Jobs wait in a queue, first come, first served, and get one of a fixed number of slots. Each round first all slots that
decode make a step together; then one slot feeds a piece of its prompt, and prompts take turns. Jobs that wait for
memory are parked; while there are any, nobody new comes in, so that what others give back is theirs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from hf2q.errors import OverloadedError

if TYPE_CHECKING:
    from hf2q.serve.observe import SlotPhase


class Schedulable(Protocol):
    """What is scheduled.

    slot    its slot, None while it waits in the queue
    phase   what it does there; "idle" while it has none
    """

    slot: int | None
    phase: SlotPhase


J = TypeVar("J", bound=Schedulable)


class Scheduler(Generic[J]):
    """queue: those that wait, in order;  slots: the job in each, or None;  capacity: how many may wait for a slot."""

    def __init__(self, slots: int, capacity: int) -> None:
        self.capacity = capacity
        self.queue: deque[J] = deque()
        self.slots: list[J | None] = [None] * slots
        self._order: list[J] = []  # those in slots, the longest there first
        self._turns: deque[J] = deque()  # the same, the one whose turn to prefill comes first

    @property
    def active(self) -> list[J]:
        """The jobs in slots, the longest there first."""
        return list(self._order)

    @property
    def busy(self) -> bool:
        """Whether there is any job."""
        return bool(self.queue or self._order)

    def enqueue(self, *jobs: J) -> None:
        """Let them wait. Errors: OverloadedError ``queue_full`` when there is no room for all; then none waits."""
        if len(self.queue) + len(jobs) > self.capacity + self.slots.count(None):
            raise OverloadedError(
                f"the queue is full: {len(self.queue)} requests are waiting, and at most {self.capacity} may",
                hint="try again later",
                code="queue_full",
            )
        self.queue.extend(jobs)

    def withdraw(self, unwanted: Callable[[J], bool]) -> list[J]:
        """Take jobs out of the queue."""
        found = [job for job in self.queue if unwanted(job)]
        for job in found:
            self.queue.remove(job)
        return found

    def admit(self) -> J | None:
        """Give the next of the queue the first free slot, to prefill; None when there is no job, or no room."""
        if not self.queue or None not in self.slots or self.parked:
            return None
        job = self.queue.popleft()
        job.slot, job.phase = self.slots.index(None), "prefill"
        self.slots[job.slot] = job
        self._order.append(job)
        self._turns.append(job)
        return job

    def release(self, job: J) -> None:
        """Its slot is free again."""
        assert job.slot is not None
        self.slots[job.slot] = None
        self._order.remove(job)
        self._turns.remove(job)
        job.phase = "idle"

    def clear(self) -> list[J]:
        """Take all jobs out, of slots and queue."""
        jobs = [*self._order, *self.queue]
        self.slots = [None] * len(self.slots)
        self.queue.clear()
        self._order.clear()
        self._turns.clear()
        return jobs

    @property
    def parked(self) -> list[J]:
        """Those that wait for memory, the longest in its slot first."""
        return [job for job in self._order if job.phase == "parked"]

    def decoding(self) -> list[J]:
        """Those that make a step together."""
        return [job for job in self.slots if job is not None and job.phase == "decode"]

    def next_prefill(self, ready: Callable[[J], bool]) -> J | None:
        """The prompt whose turn it is, among those that are ready; the next turn is another's."""
        for job in list(self._turns):
            if job.phase == "prefill" and ready(job):
                self._turns.remove(job)
                self._turns.append(job)
                return job
        return None
