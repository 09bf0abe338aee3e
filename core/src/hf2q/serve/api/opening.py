"""From a model file to what answers for it: `opener` makes the loader of a pool."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from hf2q.backends.select import AUTO
from hf2q.errors import Hf2qError
from hf2q.serve.api.lease import Loaded
from hf2q.serve.api.registered import ModelFile
from hf2q.serve.api.watching import Watchers
from hf2q.types import Record

if TYPE_CHECKING:
    from hf2q.serve.chat import Chat

log = logging.getLogger(__name__)


class EngineOptions(Record, frozen=True, kw_only=True):
    """How models are loaded and run, all of them alike. None leaves it to what it is of.

    backend, threads, ctx, ignore_memory  as `hf2q.serve.load.load`
    speculative    load draft heads (MTP), and let requests of text alone use them
    slots, queue_capacity, prefill_chunk, kv_budget, prefix_budget, deadline  as `hf2q.serve.engine.Engine`
    """

    backend: str = AUTO
    threads: int | None = None
    ctx: int | None = None
    ignore_memory: bool = False
    speculative: bool = False
    slots: int
    queue_capacity: int
    prefill_chunk: int
    kv_budget: int | None = None
    prefix_budget: int | None = None
    deadline: float


def opener(options: EngineOptions, watchers: Watchers) -> Callable[[ModelFile], Loaded]:
    """What loads a file as `options` say, warms it up, and lets `watchers` know what its engine does."""

    def load(file: ModelFile) -> Loaded:
        return _open(file, options, watchers)

    return load


def _open(file: ModelFile, options: EngineOptions, watchers: Watchers) -> Loaded:
    """Errors: as `hf2q.serve.load.load`; LoadError for a chat template; Hf2qError when the model does not warm up."""
    from hf2q.serve.load import load

    model = load(
        file.path,
        backend=options.backend,
        threads=options.threads,
        ctx=options.ctx,
        mmproj=file.mmproj,
        draft=options.speculative,
        ignore_memory=options.ignore_memory,
    )
    if model.task == "embed":
        loaded = Loaded(model)
        try:
            model.embed("a", pooling="mean")  # as the engine warms up those that generate
        except BaseException:
            loaded.close()
            raise
        return loaded
    from hf2q.serve.chat import open_chat
    from hf2q.serve.engine import Engine

    try:
        chat = open_chat(model, file.chat_template)
    except BaseException:
        model.close()
        raise
    if chat.template is None:
        log.warning("%s has no chat template; chat requests will be refused (see --chat-template-file)", file.id)
    engine = Engine(
        model,
        slots=options.slots,
        queue_capacity=options.queue_capacity,
        prefill_chunk=options.prefill_chunk,
        kv_budget=options.kv_budget,
        prefix_budget=options.prefix_budget,
        deadline=options.deadline,
        observer=watchers.observer(file.id),
    )
    # beside the warm-up of the engine: nobody waits for it who does not ask for a form
    threading.Thread(target=_prepare_forms, args=(chat, file.id), name="hf2q-forms", daemon=True).start()
    loaded = Loaded(model, engine, chat, speculative=options.speculative)
    if not engine.wait_ready():
        loaded.close()
        raise engine.failure or Hf2qError(f"the engine of {file.id} did not start")
    return loaded


def _prepare_forms(chat: Chat, id: str) -> None:
    try:
        chat.warm_up()
    except Hf2qError as error:  # a request that needs it will be told
        log.warning("answers of %s cannot be held to forms: %s", id, error.message)
