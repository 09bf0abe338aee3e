"""`Loaded`: a model with what answers for it. `Lease`: the hold that a request has on one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hf2q.errors import RequestError, listing
from hf2q.serve.sampling import SamplingParams

if TYPE_CHECKING:
    from hf2q.serve.chat import Chat
    from hf2q.serve.engine import Engine
    from hf2q.serve.model import Model

log = logging.getLogger(__name__)

SAMPLING_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
"""Where a model file says how its makers sample. Source: llama.cpp gguf-py/gguf/constants.py, `Keys.General`."""

STANDARD: Mapping[str, Any] = {"temperature": 1.0}
"""How a request is sampled where neither it nor the model file says: OpenAI's default, and no limits."""

_CLOSE_S = 5.0


class Loaded:
    """A model that answers.

    engine, chat  None for an embedding model, which generates nothing
    speculative   compute ahead on guesses of the model's draft head
    defaults      how to sample where a request does not say
    """

    def __init__(
        self, model: Model, engine: Engine | None = None, chat: Chat | None = None, *, speculative: bool = False
    ) -> None:
        self.model = model
        self.speculative = speculative
        self.engine = engine
        self.chat = chat
        self.defaults = {**STANDARD, **model_defaults(model.metadata)}

    def close(self) -> None:
        """End what still runs, and let everything go."""
        if self.engine is not None and not self.engine.close(drain=False, timeout=_CLOSE_S):
            log.warning("the engine of %s did not stop within %g s", self.model.name, _CLOSE_S)
        if self.chat is not None:
            self.chat.close()
        self.model.close()


class Lease:
    """A loaded model for as long as a request needs it; `close` it whatever happens, once or more often.

    While there is a lease, its model is not taken out of memory.

    model_id      the name that it is served under, whatever alias was asked for
    model         the model
    engine, chat  what answers. Errors: RequestError for an embedding model, which has neither
    """

    def __init__(self, model_id: str, loaded: Loaded, on_close: Callable[[], None] | None = None) -> None:
        self.model_id = model_id
        self.model = loaded.model
        self._loaded = loaded
        self._on_close = on_close

    @property
    def speculative(self) -> bool:
        """Whether requests of text alone are to be computed ahead, see `GenerateRequest.speculative`."""
        return self._loaded.speculative

    @property
    def generates(self) -> bool:
        """Whether it has an engine and a chat."""
        return self._loaded.engine is not None

    @property
    def engine(self) -> Engine:
        """What generates."""
        if self._loaded.engine is None:
            raise self._embeds()
        return self._loaded.engine

    @property
    def chat(self) -> Chat:
        """What turns messages into prompts."""
        if self._loaded.chat is None:
            raise self._embeds()
        return self._loaded.chat

    def sampling(self, asked: Mapping[str, Any]) -> SamplingParams:
        """How to sample: what the request says, else what the model file says, else temperature 1 and no limits."""
        return SamplingParams(**{**self._loaded.defaults, **asked})

    def close(self) -> None:
        """The request is over."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    def __del__(self) -> None:
        self.close()  # a lease that was forgotten must not hold its model for ever

    def _embeds(self) -> RequestError:
        return RequestError(
            f"the model {self.model_id!r} is an embedding model: it gives vectors, and answers nothing",
            hint="POST /v1/embeddings",
            param="model",
            code="model_not_supported",
        )


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
