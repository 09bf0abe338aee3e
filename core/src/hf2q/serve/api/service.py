"""`Service`: what the routes stand on. The models of a server, from before they are loaded until it has stopped."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from hf2q.errors import Hf2qError, listing
from hf2q.serve.api.accounts import note_model
from hf2q.serve.api.errors import HttpRefusal
from hf2q.serve.api.lease import Lease
from hf2q.serve.api.model_rows import row_of
from hf2q.serve.api.pool import Member, NoRoom, Pool, State, wait_for
from hf2q.serve.api.schema import Health, ModelRow, Ready
from hf2q.serve.api.watching import Watchers

if TYPE_CHECKING:
    from hf2q.serve.engine import Engine

log = logging.getLogger(__name__)

_LOOK_S = 0.5
_AGAIN = {"retry-after": "1"}
_NEVER = {"x-should-retry": "false"}  # nothing comes of asking a dead engine again


class Phase(enum.Enum):
    """Where a service is in its life; the value says so to people."""

    LOADING = "the model is loading"
    READY = "ready"
    FAILED = "the engine has failed; restart the server"
    STOPPING = "the server is shutting down"


class Service:
    """The models that a server serves. Made before any is loaded, so that health can be asked from the start.

    pool        the models;  watchers  who hears of what their engines do
    on_demand   load a model when a request asks for it, and take others out of memory for it
    supervised  whether a parent starts the process again when it dies
    stop_soon   set by what runs the server: begins the orderly end, as SIGTERM does; None where nothing can
    """

    def __init__(
        self, pool: Pool, *, watchers: Watchers | None = None, on_demand: bool = False, supervised: bool = False
    ) -> None:
        self.pool = pool
        self.watchers = Watchers() if watchers is None else watchers
        self.on_demand = on_demand
        self.supervised = supervised
        self.created = int(time.time())
        self.stop_soon: Callable[[], None] | None = None
        self._started = time.monotonic()
        self._stopping = False
        self._cut = False
        self._warm = on_demand and not any(member.file.initial for member in pool.members)

    # ------------------------------------------------------------------------------------------------------- its life

    def start(self) -> list[Future[None]]:
        """Begin to load the models that are there from the start, one after the other."""
        return self.pool.start()

    def stop(self) -> None:
        """Take no new requests; those that run go on."""
        self._stopping = True

    def cut(self) -> None:
        """End what still runs; each of those who wait is told."""
        self.stop()
        self._cut = True
        self.pool.cancel()

    def give_up_waiting(self) -> None:
        """No model that was to be there from the start could be loaded, but others can be asked for."""
        self._warm = True

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping

    @property
    def poisoned(self) -> Hf2qError | None:
        """What broke an engine that is in memory: its models answer no more, until a new process loads them."""
        return next((member.failure for member in self.pool.loaded if member.failure is not None), None)

    @property
    def phase(self) -> Phase:
        """Where the service is now. It is ready from the first model on that has warmed up, while no engine fails."""
        if self._stopping:
            return Phase.STOPPING
        if self.poisoned is not None:
            return Phase.FAILED
        self._warm = self._warm or bool(self.pool.loaded)
        return Phase.READY if self._warm else Phase.LOADING

    @property
    def busy(self) -> int:
        """Requests that hold a model."""
        return sum(member.leases for member in self.pool.members)

    @property
    def queued(self) -> int:
        """Requests that wait for a place in an engine."""
        return sum(engine.waiting for engine in self.engines().values())

    def engines(self) -> dict[str, Engine]:
        """The engines of all models in memory that have one, by model id."""
        found = ((member.file.id, member.loaded) for member in self.pool.loaded)
        return {id: loaded.engine for id, loaded in found if loaded is not None and loaded.engine is not None}

    # -------------------------------------------------------------------------------------------------- for a request

    def check(self) -> None:
        """For a request whose model is not known yet. Errors: HttpRefusal 503 when no request is taken now."""
        phase = self.phase
        if phase is Phase.STOPPING or phase is Phase.LOADING:
            raise HttpRefusal(phase.value, status=503, code="not_ready", headers=_AGAIN)
        if phase is Phase.FAILED and all(m.failure is not None for m in self.pool.loaded) and not self.on_demand:
            raise HttpRefusal(phase.value, status=503, code="not_ready", headers=_NEVER)

    def lease(self, model: str) -> Lease:
        """The model that a request names by its id or an alias, which must be in memory.

        Errors: HttpRefusal 404 for a name that is not served here, 503 for a model that is not ready, 400 for one that
        is not loaded.
        """
        self.check()
        member = self.member(model)
        lease = None if member.failure is not None else self.pool.lease(member)
        if lease is None:
            raise self._not_ready(member)
        note_model(lease.model_id)
        return lease

    async def leased(self, model: str, wait_s: float = 300.0) -> Lease:
        """As `lease`; where models are loaded on demand, wait at most `wait_s` seconds until this one is.

        The load goes on when the one who waits goes away. Errors: as `lease`; HttpRefusal 503 when the time is over,
        when the model cannot be loaded, or when there is no room for it.
        """
        self.check()
        member = self.member(model)
        end = time.monotonic() + wait_s
        while self.on_demand and member.loaded is None and member.state is not State.FAILED:
            job = self.pool.load(member, evict=True)
            done = await wait_for(job, max(0.0, min(_LOOK_S, end - time.monotonic())))
            if self._cut or (not done and time.monotonic() >= end):
                break
            if not done:
                continue
            if isinstance(error := job.exception(), NoRoom):
                raise HttpRefusal(error.message, status=503, code="no_room", headers=_AGAIN)
            if error is not None:
                break
        return self.lease(model)

    def member(self, model: str) -> Member:
        """The model of that id or alias. Errors: HttpRefusal 404."""
        found = self.pool.find(model)
        if found is None:
            raise self.unknown(model)
        return found

    def unknown(self, model: str) -> HttpRefusal:
        """The refusal for a model that is not served here."""
        ids = [member.file.id for member in self.pool.members]
        has = repr(ids[0]) if len(ids) == 1 else listing(ids)
        return HttpRefusal(
            f"the model {model[:200]!r} is not served here; this server has {has}",
            status=404,
            param="model",
            code="model_not_found",
            headers={"connection": "close"},
        )

    def _not_ready(self, member: Member) -> HttpRefusal:
        if member.failure is not None:
            return HttpRefusal(Phase.FAILED.value, status=503, code="not_ready", headers=_NEVER)
        if member.state is State.FAILED:
            return HttpRefusal(
                f"the model {member.file.id!r} cannot be loaded: {told(member)}",
                status=503,
                hint="POST /hf2q/v1/models/activate tries again",
                code="model_load_failed",
                headers=_NEVER,
            )
        if member.state is State.LOADING or member.job is not None:
            return HttpRefusal(Phase.LOADING.value, status=503, code="not_ready", headers=_AGAIN)
        return HttpRefusal(
            f"the model {member.file.id!r} is not loaded",
            status=400,
            hint="POST /hf2q/v1/models/activate loads it",
            param="model",
            code="model_not_loaded",
        )

    # ---------------------------------------------------------------------------------------------------- what is told

    def rows(self) -> tuple[ModelRow, ...]:
        """The models as ``/v1/models`` shows them."""
        return tuple(self.row(member) for member in self.pool.members)

    def row(self, member: Member) -> ModelRow:
        """One of them."""
        loaded = member.loaded
        if loaded is None:
            return ModelRow(id=member.file.id, created=self.created, loaded=False)
        return row_of(member.file.id, self.created, loaded.model)

    def health(self) -> Health:
        """The answer of ``/health``; the model is the one that was used last."""
        latest = max(self.pool.loaded, key=lambda member: member.used, default=None)
        model = None if latest is None or latest.loaded is None else latest.loaded.model
        return Health(
            status="ok",
            model=None if latest is None or model is None else latest.file.id,
            backend=None if model is None else model.backend,
            context_length=None if model is None else model.context_length,
            uptime_seconds=self.uptime,
        )

    @property
    def uptime(self) -> float:
        """Seconds since the service was made."""
        return round(time.monotonic() - self._started, 3)

    def readiness(self) -> Ready:
        """The answer of ``/readyz``."""
        phase = self.phase
        return Ready(ready=phase is Phase.READY, detail=phase.value)


def told(member: Member) -> str:
    """Why a model could not be loaded, for clients: without the place of its file."""
    error = member.error
    if not isinstance(error, Hf2qError):
        return "this is a bug, and the server's log says more"
    return error.message.replace(str(member.file.path), member.file.id)
