"""`Team`: threads that stay, and start a kernel together within about a microsecond.

The members wait in compiled code without the GIL: they spin for some microseconds, then let other threads run between
two looks, and after about a millisecond without work go to sleep in Python, from where waking takes the usual tens of
microseconds. So back-to-back kernels of one forward pass cost next to nothing to start, and an idle team costs nothing.
With other load on the machine whoever waits gives way, and work is handed out in small units to whoever comes, so that
a member without a processor holds up one unit only.

The thread that calls `run` is a member itself.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from hf2q.backends.cpu.loading import Loading
from hf2q.backends.cpu.memory import Arena, address, aligned
from hf2q.backends.cpu.native import entry
from hf2q.backends.cpu.paging import Paging
from hf2q.backends.cpu.teamwork import (
    ARRAYS,
    MEMBERS,
    PARKED,
    WORDS,
    finish,
    launch,
    serve,
    start,
)
from hf2q.codec import thread_count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hf2q.simd import Kernel


class Work:
    """A kernel and the sizes it reads, ready for arrays: what `Team.apply` runs.

    The kernel finds the places of the arrays in the first `ARRAYS` words of its job, the sizes behind them.
    shared  whether members help; small work is done sooner by the calling thread alone
    """

    __slots__ = ("address", "function", "kernel", "shared", "words")

    def __init__(self, kernel: Kernel[[int, int, int], Any], sizes: Sequence[int], *, shared: bool) -> None:
        self.kernel, self.shared = kernel, shared
        self.words = np.array((*(0,) * ARRAYS, *sizes), np.int64)
        self.address, self.function = address(self.words), entry(kernel)


def bits(number: float) -> int:
    """Those of a float32, for the sizes of a `Work`."""
    return int(np.float32(number).view(np.uint32))


KEPT = 4096
"""Pieces of prepared work that an op keeps."""


class Works(dict[Any, Work]):
    """Prepared work by whatever it depends on, forgotten when there is too much of it."""

    def keep(self, key: Any, work: Work) -> Work:
        if len(self) >= KEPT:
            self.clear()
        self[key] = work
        return work


class Team:
    """`threads` members (default: `hf2q.codec.thread_count`), started by the first `run` that can use them.

    `run` may be called from any thread, and one call at a time goes ahead. In a child process after `fork` the team
    starts anew. `close` ends the threads; so does the end of the program or of the last reference. `arena` is where
    weights are kept, and `loading` brings them there: it is finished before anything runs. `paging` is for weights that
    stay in the file at first.
    """

    def __init__(self, threads: int | None = None) -> None:
        self.threads = thread_count(threads)
        self._lock = threading.Lock()
        self._entries: dict[int, tuple[Kernel[..., Any], int]] = {}
        self._closed = False
        self.arena = Arena()
        self.loading = Loading(self.threads)
        self.paging = Paging()
        self._state: _State | None = None
        self._launch: Callable[..., int] | None = None
        self._alone = aligned(8 * (WORDS + 1)).view(np.int64)
        self._alone[MEMBERS] = 1
        self._alone_at = address(self._alone)

    def run(self, kernel: Kernel[[int, int, int], Any], job: int = 0) -> None:
        """Run `kernel(job, member, team)` on all members and return when all are done.

        `kernel` takes three INT arguments: `job` as given here (the address of whatever the kernel reads its
        arguments from), the number of the member from 0, and the address that `take` and `barrier` of
        `hf2q.backends.cpu.teamwork` want. The caller keeps alive what `job` points to.
        Errors: RuntimeError when the kernel raised in some member, or when the team is closed.
        """
        if self.loading.busy:
            self.loading.finish()
        found = self._entries.get(id(kernel))
        if found is None:
            found = self._entries[id(kernel)] = (kernel, entry(kernel))
        with self._lock:
            failed = self._awake().run(found[1], job)
        if failed:
            raise RuntimeError(f"kernel {kernel.__name__} failed on a member of the team (status {failed})")

    def apply(
        self, work: Work, a: int, b: int = 0, c: int = 0, d: int = 0, e: int = 0, f: int = 0, g: int = 0, h: int = 0
    ) -> None:
        """Run prepared work on arrays, given by their `id`, 0 for none. The caller keeps them and their data alive.

        What `run` does, in a fraction of its time: for ops that take microseconds.
        """
        if self.loading.busy:
            self.loading.finish()
        with self._lock:
            if work.shared:
                failed = self._awake().launch(work, a, b, c, d, e, f, g, h)
            else:
                alone = self._launch or launch.compile().call
                self._launch = alone
                failed = -alone(self._alone_at, work.function, work.address, a, b, c, d, e, f, g, h)
        if failed:
            raise RuntimeError(f"kernel {work.kernel.__name__} failed on a member of the team (status {failed})")

    def _awake(self) -> _State:
        if self._closed:
            raise RuntimeError("this team is closed")
        state = self._state
        if state is None or state.process != os.getpid():  # threads do not survive a fork
            state = self._state = _State(self.threads)
            weakref.finalize(self, state.stop).atexit = False
        return state

    def close(self) -> None:
        """End the threads, and loading. Closing twice is fine."""
        self.paging.stop()
        self.loading.give_up()
        with self._lock:
            self._closed = True
            if self._state is not None and self._state.process == os.getpid():
                self._state.stop()
            self._state = None

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _State:
    """The threads of one process and the words they share. Holds no reference to the team, which may thus be freed."""

    def __init__(self, threads: int) -> None:
        self.process = os.getpid()
        self.words = aligned(8 * (WORDS + threads)).view(np.int64)
        self.words[MEMBERS] = threads
        self.address = address(self.words)
        self.bells: list[SimpleQueue[None]] = [SimpleQueue() for _ in range(threads)]
        # the functions themselves: a microsecond less than a call of the kernel; and compiled once, not by all threads
        self._start, self._finish, self._launch = (kernel.compile().call for kernel in (start, finish, launch))
        serve.compile()
        self.members = [
            threading.Thread(target=_member, args=(self, k), name=f"hf2q-team-{k}", daemon=True)
            for k in range(1, threads)
        ]
        for member in self.members:
            member.start()
        if self.members:
            atexit.register(self.stop)

    def run(self, function: int, job: int) -> int:
        """The status of the first member that failed, or 0."""
        result = self._start(self.address, function, job)
        if result > 0:
            self.wake()
            result = self._finish(self.address, function, job)
        return -int(result)

    def launch(self, work: Work, *arrays: int) -> int:
        """Likewise, for prepared work on arrays."""
        result = self._launch(self.address, work.function, work.address, *arrays)
        if result > 0:
            self.wake()
            result = self._finish(self.address, work.function, work.address)
        return -int(result)

    def wake(self) -> None:
        for k, bell in enumerate(self.bells):
            if self.words[PARKED + k]:
                bell.put(None)

    def stop(self) -> None:
        """Safe to call twice, and from `atexit`."""
        if self.members and self.process == os.getpid():
            self._start(self.address, 0, 0)
            self.wake()
            for member in self.members:
                member.join()
            atexit.unregister(self.stop)
        self.members = []


def _member(state: _State, member: int) -> None:
    """One thread: serves, and sleeps between two stretches of work."""
    seen = 0
    while (seen := serve(state.address, member, seen)) >= 0:
        state.bells[member].get()
        state.words[PARKED + member] = 0
