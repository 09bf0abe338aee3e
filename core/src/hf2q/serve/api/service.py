"""`Service`: what the routes stand on. One model, from before it is loaded until the server has stopped."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf2q.errors import RequestError, listing
from hf2q.serve.api.errors import HttpRefusal
from hf2q.serve.api.schema import Health, ModelRow, Ready
from hf2q.serve.chat import Chat
from hf2q.serve.engine import Engine
from hf2q.serve.sampling import SamplingParams

log = logging.getLogger(__name__)

SAMPLING_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
"""Where a model file says how its makers sample. Source: llama.cpp gguf-py/gguf/constants.py, `Keys.General`."""


STANDARD: dict[str, Any] = {"temperature": 1.0}
"""How a request is sampled where neither it nor the model file says: OpenAI's default, and no limits."""


class Phase(enum.Enum):
    """Where a service is in its life; the value says so to people."""

    LOADING = "the model is loading"
    WARMING = "the model is warming up"
    READY = "ready"
    FAILED = "the engine has failed; restart the server"
    STOPPING = "the server is shutting down"


class Service:
    """The model that a server serves. Made before the model is loaded, so that health can be asked from the start.

    model_id  the name under which requests ask for it
    """

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id
        self.created = int(time.time())
        self._started = time.monotonic()
        self._engine: Engine | None = None
        self._chat: Chat | None = None
        self._stopping = False
        self.defaults = dict(STANDARD)

    def open(self, engine: Engine, chat: Chat) -> None:
        """The model is there: serve it."""
        self.defaults |= model_defaults(engine.model.metadata)
        self._engine, self._chat = engine, chat

    def stop(self) -> None:
        """Take no new requests; those that run go on."""
        self._stopping = True

    @property
    def phase(self) -> Phase:
        """Where the service is now."""
        if self._stopping:
            return Phase.STOPPING
        if self._engine is None:
            return Phase.LOADING
        if self._engine.failure is not None:
            return Phase.FAILED
        return Phase.READY if self._engine.ready else Phase.WARMING

    def require(self, model: str | None = None) -> tuple[Engine, Chat]:
        """Engine and chat, for a request that names `model`.

        Errors: HttpRefusal 503 while there is nothing to serve, 404 for another model.
        """
        phase = self.phase
        if phase is not Phase.READY or self._engine is None or self._chat is None:
            # nothing comes of asking a dead engine again
            again = {"x-should-retry": "false"} if phase is Phase.FAILED else {"retry-after": "1"}
            raise HttpRefusal(phase.value, status=503, code="not_ready", headers=again)
        if model is not None and model != self.model_id:
            raise self.unknown(model)
        return self._engine, self._chat

    def unknown(self, model: str) -> HttpRefusal:
        """The refusal for a model that is not served here."""
        return HttpRefusal(
            f"the model {model[:200]!r} is not served here; this server has {self.model_id!r}",
            status=404,
            param="model",
            code="model_not_found",
        )

    def sampling(self, asked: Mapping[str, Any]) -> SamplingParams:
        """How to sample: what the request says, else what the model file says, else temperature 1 and no limits."""
        return SamplingParams(**{**self.defaults, **asked})

    def row(self) -> ModelRow:
        """The model as ``/v1/models`` shows it."""
        if self._engine is None:
            return ModelRow(id=self.model_id, created=self.created, loaded=False)
        model = self._engine.model
        return ModelRow(
            id=self.model_id,
            created=self.created,
            loaded=True,
            arch=model.arch,
            backend=model.backend,
            context_length=model.context_length,
        )

    def health(self) -> Health:
        """The answer of ``/health``."""
        model = None if self._engine is None else self._engine.model
        return Health(
            status="ok",
            model=None if model is None else self.model_id,
            backend=None if model is None else model.backend,
            context_length=None if model is None else model.context_length,
            uptime_seconds=round(time.monotonic() - self._started, 3),
        )

    def readiness(self) -> Ready:
        """The answer of ``/readyz``."""
        phase = self.phase
        return Ready(ready=phase is Phase.READY, detail=phase.value)


def served_name(path: Path) -> str:
    """The name under which a model file is served: valid text, whatever the file is called."""
    name = path.name.removesuffix(".gguf") or path.name
    return name.encode("utf-8", "replace").decode("utf-8")


def model_defaults(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling fields that a model file sets. What cannot be honoured is left out, with a warning."""
    found: dict[str, Any] = {}
    others = [key for key in metadata if key.startswith("general.sampling.") and key not in SAMPLING_KEYS]
    if others:
        log.warning("the model file recommends sampling that is not available: %s", listing(others))
    for key, name in SAMPLING_KEYS.items():
        value = metadata.get(key)
        if value is None:
            continue
        field: dict[str, Any] = {name: value}
        try:
            SamplingParams(**field)
        except RequestError as error:
            log.warning("the model file's %s is left out: %s", key, error)
            continue
        found |= field
    return found
