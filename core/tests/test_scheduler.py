"""Whose turn it is: without thread, model or clock."""

import pytest

from hf2q.errors import OverloadedError
from hf2q.serve.scheduler import Scheduler


class Piece:
    """A job with so many pieces of prompt, and so many steps of decoding."""

    def __init__(self, name, pieces=1, steps=1):
        self.name, self.pieces, self.steps = name, pieces, steps
        self.slot, self.phase = None, "idle"

    def __repr__(self):
        return self.name


def jobs(names, **more):
    return [Piece(name, **more) for name in names]


def played(scheduler, rounds=100):
    """What happens, as text: steps of all as {ab}, pieces of prompts as a name."""
    told = ""
    for _ in range(rounds):
        while scheduler.admit() is not None:
            pass
        rows = scheduler.decoding()
        if rows:
            told += "{" + "".join(map(str, rows)) + "}"
        for job in rows:
            job.steps -= 1
            if not job.steps:
                scheduler.release(job)
        job = scheduler.next_prefill(lambda job: True)
        if job is not None:
            told += str(job)
            job.pieces -= 1
            if not job.pieces:
                job.phase = "decode"
    return told


def test_decode_goes_first_and_prompts_take_turns():
    scheduler = Scheduler(3, 10)
    for job in (Piece("a", 1, 5), Piece("b", 3, 2), Piece("c", 2, 2), Piece("d", 1, 1)):
        scheduler.enqueue(job)
    assert played(scheduler) == "a{a}b{a}c{a}b{a}c{ac}b{bc}d{db}"


def test_slots_are_given_in_order_of_arrival_and_used_again():
    scheduler = Scheduler(2, 10)
    a, b, c = jobs("abc")
    scheduler.enqueue(a, b, c)
    assert [scheduler.admit() for _ in range(3)] == [a, b, None]
    assert (a.slot, b.slot, a.phase) == (0, 1, "prefill")
    scheduler.release(a)
    assert (scheduler.admit(), c.slot) == (c, 0)
    assert scheduler.active == [b, c]
    assert scheduler.busy
    assert scheduler.clear() == [b, c]
    assert not scheduler.busy
    assert scheduler.slots == [None, None]


def test_the_queue_is_bounded_and_takes_all_or_none():
    scheduler = Scheduler(1, 2)
    scheduler.enqueue(*jobs("ab"))
    with pytest.raises(OverloadedError, match="2 requests are waiting, and at most 2 may") as caught:
        scheduler.enqueue(*jobs("cd"))
    assert caught.value.code == "queue_full"
    assert len(scheduler.queue) == 2
    scheduler.enqueue(*jobs("c"))  # one of the three has the free slot
    with pytest.raises(OverloadedError):
        scheduler.enqueue(*jobs("d"))


def test_nobody_comes_in_while_one_is_parked():
    scheduler = Scheduler(3, 10)
    a, b, c = jobs("abc")
    scheduler.enqueue(a, b)
    assert [scheduler.admit(), scheduler.admit()] == [a, b]
    a.phase = "parked"
    scheduler.enqueue(c)
    assert scheduler.admit() is None
    assert scheduler.parked == [a]
    assert scheduler.next_prefill(lambda job: True) is b
    a.phase = "prefill"
    assert scheduler.admit() is c


def test_those_not_ready_are_passed_over_and_keep_their_turn():
    scheduler = Scheduler(3, 10)
    a, b, c = jobs("abc")
    scheduler.enqueue(a, b, c)
    while scheduler.admit():
        pass
    assert scheduler.next_prefill(lambda job: job is not a) is b
    assert scheduler.next_prefill(lambda job: True) is a
    assert scheduler.next_prefill(lambda job: True) is c
    assert scheduler.next_prefill(lambda job: False) is None


def test_withdrawing_takes_out_of_the_queue_only():
    scheduler = Scheduler(1, 10)
    a, b, c, d = jobs("abcd")
    scheduler.enqueue(a, b, c, d)
    scheduler.admit()
    assert scheduler.withdraw(lambda job: job in (a, b, d)) == [b, d]
    assert list(scheduler.queue) == [c]
