"""The thread team: every member works, in any number, again and again; failures, sleep, closing and fork."""

import os
import threading
import time

import numpy as np
import pytest

from hf2q.backends.cpu.memory import Arena, address, aligned
from hf2q.backends.cpu.native import atomic_add, peek
from hf2q.backends.cpu.team import Team
from hf2q.backends.cpu.teamwork import barrier, take
from hf2q.simd import INT, kernel


@kernel(INT, INT, INT)
def count_members(job: int, member: int, team: int) -> None:
    """Word 0 counts the members, word 1 adds up their numbers."""
    atomic_add(job, 0, 1)
    atomic_add(job, 1, member)


@kernel(INT, INT, INT)
def two_phases(job: int, member: int, team: int) -> None:
    """After the barrier all hundred of the first phase must be there; word 2 counts violations."""
    while take(team, 0) < 100:
        atomic_add(job, 0, 1)
    barrier(team)
    if peek(job, 0) != 100:
        atomic_add(job, 2, 1)
    while take(team, 1) < 50:
        atomic_add(job, 1, 1)
    barrier(team)


@kernel(INT, INT, INT)
def fail_on_one(job: int, member: int, team: int) -> None:
    """The member of the number in word 0 raises; the others wait for it at a barrier."""
    if member == peek(job, 0):
        raise ValueError("on purpose")
    barrier(team)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_every_member_takes_part(threads):
    with Team(threads) as team:
        words = np.zeros(2, np.int64)
        team.run(count_members, address(words))
        assert words.tolist() == [threads, threads * (threads - 1) // 2]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_many_rounds_with_barriers(threads):
    with Team(threads) as team:
        for _ in range(300):
            words = np.zeros(3, np.int64)
            team.run(two_phases, address(words))
            assert words.tolist() == [100, 50, 0]


@pytest.mark.parametrize("member", [0, 1, 2])
def test_a_failure_is_reported_and_the_team_goes_on(member):
    with Team(3) as team:
        for _ in range(3):
            words = np.array([member, 0], np.int64)
            with pytest.raises(RuntimeError, match="fail_on_one failed on a member"):
                team.run(fail_on_one, address(words))
            words[:] = 0
            team.run(count_members, address(words))
            assert words[0] == 3


def test_members_fall_asleep_and_are_woken():
    with Team(3) as team:
        words = np.zeros(2, np.int64)
        team.run(count_members, address(words))
        state = team._state
        patience = time.monotonic() + 60
        while state.words[-2:].sum() < 2 and time.monotonic() < patience:
            time.sleep(0.01)
        assert state.words[-2:].tolist() == [1, 1], "idle members still look for work"
        team.run(count_members, address(words))
        assert words[0] == 6


def test_callers_from_several_threads_take_turns():
    with Team(2) as team:
        words = np.zeros((4, 3), np.int64)

        def work(row):
            for _ in range(50):
                words[row] = 0
                team.run(two_phases, address(words[row]))

        callers = [threading.Thread(target=work, args=(row,)) for row in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert words.tolist() == [[100, 50, 0]] * 4


def test_closing_ends_the_threads_and_refuses_work():
    team = Team(3)
    words = np.zeros(2, np.int64)
    team.run(count_members, address(words))
    members = team._state.members
    team.close()
    team.close()
    assert not any(member.is_alive() for member in members)
    with pytest.raises(RuntimeError, match="closed"):
        team.run(count_members, address(words))


def test_the_last_reference_ends_the_threads():
    team = Team(2)
    words = np.zeros(2, np.int64)
    team.run(count_members, address(words))
    (member,) = team._state.members
    del team
    member.join(60)
    assert not member.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gets_members_of_its_own():
    with Team(2) as team:
        words = np.zeros(2, np.int64)
        team.run(count_members, address(words))
        child = os.fork()
        if child == 0:
            words[:] = 0
            team.run(count_members, address(words))
            team.close()
            os._exit(0 if words[0] == 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        team.run(count_members, address(words))
        assert words[0] == 4


def test_the_address_is_where_numpy_says():
    whole = np.arange(24, dtype=np.int32).reshape(4, 6)
    for array in (
        whole,
        whole[1:],
        whole[:, 3],
        np.zeros(0),
        np.frombuffer(b"bytes", np.uint8),
        np.ones(()),
    ):
        assert address(array) == array.ctypes.data


def test_memory_is_aligned_and_zero():
    arena = Arena()
    pieces = [arena.take(size) for size in (1, 100, 1 << 20, 1 << 27, 7)] + [aligned(33)]
    for number, piece in enumerate(pieces):
        assert address(piece) % 64 == 0
        assert not piece.any()
        piece[:] = number + 1
    assert all((piece == number + 1).all() for number, piece in enumerate(pieces))
