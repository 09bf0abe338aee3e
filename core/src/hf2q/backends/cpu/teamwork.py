"""The compiled side of `Team`: waiting for work, starting it, and what kernels that run on a team may call.

    @kernel(INT, INT, INT)
    def job(arguments, member, team):
        while (unit := take(team, 0)) < peek(arguments, 0):     # units go to whoever comes
            ...
        barrier(team)                                           # all members are here
        while (unit := take(team, 1)) < ...                     # another counter for the next phase

Members share one array of int64, whose busy words lie on cache lines of their own.
"""

from __future__ import annotations

from hf2q.backends.cpu.native import atomic_add, atomic_get, atomic_set, give_way, invoke, pause, peek, poke
from hf2q.simd import INT, inline, kernel

ROUND, DONE, ARRIVED = 0, 8, 16
"""Counts up with each start; members that are done; arrivals at barriers since the start."""
FUNCTION, JOB, MEMBERS, FAILED = 24, 25, 26, 27
COUNTERS, COUNTER_COUNT = 32, 4
"""Counters for `take`, a cache line each."""
PARKED = COUNTERS + 8 * COUNTER_COUNT
"""One word for each member: whether it sleeps in Python."""
WORDS = PARKED
"""Words before those of the members."""

ARRAYS = 8
"""Words at the beginning of a job that `launch` fills with the places of arrays."""
DATA = object.__basicsize__ // 8
"""Where an array object of numpy holds the address of its data: the first field behind the head of every object.

Asking numpy in Python takes more than a microsecond for each array. Source: numpy, numpy/_core/include/numpy/
ndarraytypes.h, `PyArrayObject_fields`, part of its binary interface; the tests of the team check it.
"""

SPINS = 2000
"""Looks before giving way: 20 to 80 µs, by processor."""
LOOKS = 2500
"""Looks in all before a member without work goes to sleep: about a millisecond on an idle machine."""


@inline
def take(team: int, counter: int) -> int:
    """The next number, from 0, of one of four counters; all begin anew with each kernel."""
    number: int = atomic_add(team, COUNTERS + 8 * counter, 1)
    return number


@inline
def wait_until(team: int, word: int, least: int) -> None:
    """Return when a word has reached `least`, or a member has failed."""
    looks = 0
    while atomic_get(team, word) < least and atomic_get(team, FAILED) == 0:
        looks += 1
        if looks < SPINS:
            pause()
        else:
            give_way()


@inline
def barrier(team: int) -> None:
    """Return when all members have called it. Every member must, as often as the others."""
    members = peek(team, MEMBERS)
    if members > 1:
        before = atomic_add(team, ARRIVED, 1)
        wait_until(team, ARRIVED, (before // members + 1) * members)


@inline
def share(team: int, function: int, job: int, member: int) -> None:
    """One member's share of a kernel."""
    status = invoke(function, job, member, team)
    if status != 0:
        atomic_set(team, FAILED, status)


@kernel(INT, INT, INT)
def serve(team: int, member: int, seen: int) -> int:
    """Work as a member. Returns -1 to leave for good, else the round seen last, when it is time to sleep."""
    looks = 0
    while True:
        now = atomic_get(team, ROUND)
        if now != seen:
            seen = now
            function = peek(team, FUNCTION)
            if function == 0:
                return -1
            share(team, function, peek(team, JOB), member)
            atomic_add(team, DONE, 1)
            looks = 0
        elif looks < LOOKS:
            looks += 1
            if looks < SPINS:
                pause()
            else:
                give_way()
        else:
            # say so first and look again: whoever starts a round does it in the opposite order, so one sees the other
            atomic_set(team, PARKED + member, 1)
            if atomic_get(team, ROUND) == seen:
                return seen
            atomic_set(team, PARKED + member, 0)
            looks = 0


@inline
def publish(team: int, function: int, job: int) -> int:
    """Begin a round. Returns how many members have to be woken."""
    poke(team, DONE, 0)
    poke(team, ARRIVED, 0)
    poke(team, FAILED, 0)
    for counter in range(COUNTER_COUNT):
        poke(team, COUNTERS + 8 * counter, 0)
    poke(team, FUNCTION, function)
    poke(team, JOB, job)
    atomic_add(team, ROUND, 1)
    parked = 0
    for member in range(1, peek(team, MEMBERS)):
        parked += atomic_get(team, PARKED + member)
    return parked


@inline
def complete(team: int, function: int, job: int) -> int:
    """The caller's own share of the round, and waiting for the others."""
    share(team, function, job, 0)
    looks = 0
    others = peek(team, MEMBERS) - 1
    while atomic_get(team, DONE) < others:  # also after a failure: nobody may still be at work when it returns
        looks += 1
        if looks < SPINS:
            pause()
        else:
            give_way()
    failed: int = peek(team, FAILED)
    return -failed


@kernel(INT, INT, INT)
def start(team: int, function: int, job: int) -> int:
    """Begin a round and, if all members are awake, go through with it: 0, or minus the status of one that failed.

    Else returns how many have to be woken; then `finish` goes through with it. No function: members leave for good.
    """
    parked = publish(team, function, job)
    return parked if parked > 0 or function == 0 else complete(team, function, job)


@kernel(INT, INT, INT)
def finish(team: int, function: int, job: int) -> int:
    """Go through with a round that `start` began: 0, or minus the status of a member that failed."""
    return complete(team, function, job)


@inline
def aim(job: int, word: int, array: int) -> None:
    """Set a word of a job to where the data of an array begins; `array` is its `id`, or 0 for none."""
    poke(job, word, peek(array, DATA) if array else 0)


@kernel(INT, INT, INT, INT, INT, INT, INT, INT, INT, INT, INT)
def launch(team: int, function: int, job: int, a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int) -> int:
    """`start` with the first words of the job set to where the data of these arrays (their `id`s, or 0) lie."""
    aim(job, 0, a)
    aim(job, 1, b)
    aim(job, 2, c)
    aim(job, 3, d)
    aim(job, 4, e)
    aim(job, 5, f)
    aim(job, 6, g)
    aim(job, 7, h)
    parked = publish(team, function, job)
    return parked if parked > 0 else complete(team, function, job)
