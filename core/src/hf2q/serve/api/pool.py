"""`Pool`: several models in one server. Which of them are in memory, who uses them, and who has to go for another.

Models are loaded one after the other in a thread of the pool's own. Two who want the same model wait for one load. To
make room, the model that was used longest ago goes, never one that somebody holds a lease of, nor one whose engine has
failed: what is left in a backend then is unknown, and only a new process forgets it.
"""

from __future__ import annotations

import asyncio
import enum
import gc
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from hf2q.errors import Hf2qError, LoadError
from hf2q.serve.api.lease import Lease, Loaded
from hf2q.serve.api.registered import ModelFile

log = logging.getLogger(__name__)

Loader = Callable[[ModelFile], Loaded]
"""Loads a file and returns it warm and ready; called in the pool's thread. What it raises is the model's failure."""

MAX_MODELS = 3
"""In memory at one time, unless told otherwise."""


class State(enum.Enum):
    """Where a model is; the value is what clients are told."""

    KNOWN = "known"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    EVICTED = "evicted"


class NoRoom(Hf2qError):
    """A model is not loaded since others would have to go that may not."""


class Member:
    """A model of the pool.

    error    why loading failed, in state FAILED
    leases   requests that use it now
    used     `time.monotonic` of the last lease, 0 before the first
    load_s   seconds that loading took
    """

    def __init__(self, file: ModelFile) -> None:
        self.file = file
        self.state = State.KNOWN
        self.loaded: Loaded | None = None
        self.error: BaseException | None = None
        self.leases = 0
        self.used = 0.0
        self.load_s = 0.0
        self.job: Future[None] | None = None

    @property
    def failure(self) -> Hf2qError | None:
        """What broke its engine after it was loaded."""
        loaded = self.loaded
        return None if loaded is None or loaded.engine is None else loaded.engine.failure


async def wait_for(job: Future[None], timeout: float | None = None) -> bool:
    """Whether a load has ended, well or not, within `timeout` seconds. Being cancelled here does not cancel it."""
    waiting = asyncio.wrap_future(job)
    waiting.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # whoever wants it asks the job
    return bool((await asyncio.wait({waiting}, timeout=timeout))[0])


class Pool:
    """The models of a server. Thread-safe.

    files       what may be served;  load  makes one of them ready
    max_models  most in memory at one time;  budget  most bytes of their files together, None: no limit
    """

    def __init__(
        self, files: Sequence[ModelFile], load: Loader, *, max_models: int = MAX_MODELS, budget: int | None = None
    ) -> None:
        self.members = tuple(Member(file) for file in files)
        self.max_models = max_models
        self.budget = budget
        self._load = load
        self._names = {name: member for member in self.members for name in (member.file.id, *member.file.aliases)}
        self._lock = threading.RLock()
        self._jobs: deque[tuple[Member, bool]] = deque()
        self._thread: threading.Thread | None = None
        self._initial: list[Future[None]] | None = None
        self._closed = False

    def start(self) -> list[Future[None]]:
        """Begin to load the models that are to be there from the start, in order; when called again, the same loads."""
        with self._lock:
            if self._initial is None:
                self._initial = [self.load(member, evict=False) for member in self.members if member.file.initial]
            return self._initial

    def find(self, name: str) -> Member | None:
        """The model of that id or alias."""
        return self._names.get(name)

    @property
    def loaded(self) -> tuple[Member, ...]:
        """Those in memory."""
        return tuple(member for member in self.members if member.loaded is not None)

    @property
    def nbytes(self) -> int:
        """Bytes of the files of those in memory."""
        return sum(member.file.nbytes for member in self.loaded)

    def lease(self, member: Member) -> Lease | None:
        """A lease of a model that is ready, or None. It is not taken out of memory until the lease is closed."""
        with self._lock:
            if member.state is not State.READY or member.loaded is None or self._closed:
                return None
            member.leases += 1
            member.used = time.monotonic()
            return Lease(member.file.id, member.loaded, lambda: self._release(member))

    def _release(self, member: Member) -> None:
        with self._lock:
            member.leases -= 1
            member.used = time.monotonic()

    def load(self, member: Member, *, evict: bool) -> Future[None]:
        """Have a model loaded; the future tells when it is ready, or raises why it is not.

        evict  whether others may go for it; without, NoRoom is raised when there is no room. A load that is under way
               is joined as it is. A model that is ready, or whose engine failed, is left as it is.
        """
        with self._lock:
            if self._closed:
                raise LoadError("the server is shutting down")
            if member.job is not None:
                return member.job
            job: Future[None] = Future()
            job.set_running_or_notify_cancel()  # a client that goes away cannot cancel it any more
            if member.loaded is not None:
                job.set_result(None)
                return job
            member.job = job
            self._jobs.append((member, evict))
            if self._thread is None:
                # a thread that ends with the process: a signal need not wait until a large model is loaded
                self._thread = threading.Thread(target=self._work, name="hf2q-load", daemon=True)
                self._thread.start()
            return job

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._thread = None
                    return
                member, evict = self._jobs.popleft()
            self._load_one(member, evict)

    def _load_one(self, member: Member, evict: bool) -> None:
        before = member.state, member.error
        loaded: Loaded | None = None
        error: BaseException | None = None
        try:
            for going in self._make_room(member, evict):
                going.close()
            gc.collect()  # weights may hang in circles
            started = time.monotonic()
            loaded = self._load(member.file)
            member.load_s = time.monotonic() - started
        except BaseException as raised:
            error = raised
            traceback.clear_frames(raised.__traceback__)  # they may hold weights
        with self._lock:
            job, member.job = member.job, None
            late = self._closed and loaded is not None
            if isinstance(error, NoRoom):
                member.state, member.error = before
            elif error is not None:
                member.state, member.error = State.FAILED, error
            elif not late:
                member.state, member.error, member.loaded = State.READY, None, loaded
                member.used = time.monotonic()
        if late and loaded is not None:
            loaded.close()
            error = LoadError("the server is shutting down")
        if error is not None and not isinstance(error, NoRoom):
            log.debug("loading %s failed", member.file.id, exc_info=error)
        if job is not None:
            if error is None:
                job.set_result(None)
            else:
                job.set_exception(error)

    def _make_room(self, member: Member, evict: bool) -> list[Loaded]:
        """Take models out of the pool until `member` fits, and mark that as loading. Errors: LoadError, NoRoom."""
        need, budget = member.file.nbytes, self.budget
        if budget is not None and need > budget:
            raise LoadError(
                f"{member.file.id} takes {need:,} bytes, more than the {budget:,} that models may take together",
                hint="--memory-budget raises that, if there is the memory",
            )
        with self._lock:
            staying = list(self.loaded)
            going: list[Member] = []
            while len(staying) >= self.max_models or (
                budget is not None and need + sum(other.file.nbytes for other in staying) > budget
            ):
                free = [other for other in staying if evict and other.leases == 0 and other.failure is None]
                if not free:
                    raise NoRoom(self._full(member, staying, evict))
                oldest = min(free, key=lambda other: other.used)
                staying.remove(oldest)
                going.append(oldest)
            gone = []
            for other in going:
                log.info("%s is taken out of memory for %s", other.file.id, member.file.id)
                if other.loaded is not None:
                    gone.append(other.loaded)
                other.loaded, other.state = None, State.EVICTED
            member.state = State.LOADING
            return gone

    def _full(self, member: Member, staying: Sequence[Member], evict: bool) -> str:
        held = sum(other.file.nbytes for other in staying)
        limit = f" and {self.budget:,} bytes" if self.budget is not None else ""
        why = "all of which are in use" if evict else "and none is taken out for it"
        return (
            f"there is no room for {member.file.id} ({member.file.nbytes:,} bytes): {len(staying)} models of {held:,} "
            f"bytes are loaded, {why}; the limits are {self.max_models} models{limit}"
        )

    def cancel(self) -> None:
        """End everything that runs; each of those who wait is told. Returns at once."""
        for member in self.loaded:
            if member.loaded is not None and member.loaded.engine is not None:
                member.loaded.engine.close(drain=False, timeout=0)

    def close(self) -> None:
        """End everything, and let all models go. A load that is under way is dropped when it is done."""
        with self._lock:
            self._closed = True
            jobs = [member for member, _ in self._jobs]
            self._jobs.clear()
            loaded = [member.loaded for member in self.members if member.loaded is not None]
            for member in self.members:
                member.loaded = None
        self._drop(jobs)
        for each in loaded:
            each.close()

    @staticmethod
    def _drop(members: Sequence[Member]) -> None:
        for member in members:
            job, member.job = member.job, None
            if job is not None:
                job.set_exception(LoadError("the server is shutting down"))
