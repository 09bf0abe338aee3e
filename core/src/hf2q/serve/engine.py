"""`Engine`: token ids in, token ids and text out; many callers, one worker, one request at a time in order of arrival.

The engine knows neither HTTP nor chat. A request is refused at `submit` or ends exactly once: with a last event, or
with an error. What hf2q refuses (`Hf2qError`: a request that cannot be honoured, logits that are no numbers) ends that
request alone. After any other failure the state of the backend is unknown: every request ends with the error, and
nothing is accepted any more.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from types import TracebackType

from hf2q.errors import Hf2qError, OverloadedError
from hf2q.serve.events import GenerateRequest, TokenEvent
from hf2q.serve.generation import PREFILL_CHUNK, Generation
from hf2q.serve.handle import Handle
from hf2q.serve.model import Model

log = logging.getLogger(__name__)

QUEUE_CAPACITY = 32
"""Requests that may wait, besides the one being worked on."""


class Engine:
    """A worker thread for one model. Use it in a `with` statement, or call `close`.

    queue_capacity  requests that may wait
    prefill_chunk   prompt tokens between two looks at cancellations
    warm_up         run the model once before being ready

    ready    the worker has warmed up and is well
    failure  what broke it, or None
    waiting  number of requests in the queue
    active   whether one is being worked on
    """

    def __init__(
        self,
        model: Model,
        *,
        queue_capacity: int = QUEUE_CAPACITY,
        prefill_chunk: int = PREFILL_CHUNK,
        warm_up: bool = True,
    ) -> None:
        self.model = model
        self.capacity = queue_capacity
        self.failure: Hf2qError | None = None
        self._chunk = prefill_chunk
        self._condition = threading.Condition()
        self._queue: deque[tuple[Handle, Generation]] = deque()
        self._active: Handle | None = None
        self._warm = not warm_up
        self._closing = False
        self._worker = threading.Thread(target=self._run, name="hf2q-engine", daemon=True)
        self._worker.start()

    # --------------------------------------------------------------------------------------------------- the callers

    @property
    def ready(self) -> bool:
        """Whether requests are accepted and worked on."""
        return self._warm and self.failure is None and not self._closing

    @property
    def waiting(self) -> int:
        """Number of requests in the queue."""
        return len(self._queue)

    @property
    def active(self) -> bool:
        """Whether a request is being worked on."""
        return self._active is not None

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait for the warm-up; whether the engine is ready. With `timeout`, at most that many seconds."""
        with self._condition:
            self._condition.wait_for(lambda: self._warm or self.failure is not None or self._closing, timeout)
            return self.ready

    def submit(self, request: GenerateRequest) -> Handle:
        """Queue a request.

        Errors, all before it is queued: ContextLengthError with both numbers; RequestError for tokens outside the
        vocabulary; OverloadedError when the queue is full (code ``queue_full``), or when the engine has failed or is
        closing (code ``not_ready``).
        """
        handle, generation = Handle(request), Generation(self.model, request, chunk=self._chunk)
        with self._condition:
            if self.failure is not None or self._closing:
                why = "has failed" if self.failure is not None else "is shutting down"
                raise OverloadedError(f"the engine {why} and accepts no requests", code="not_ready")
            if len(self._queue) >= self.capacity:
                raise OverloadedError(
                    f"the queue is full: {self.capacity} requests are waiting",
                    hint="try again later",
                    code="queue_full",
                )
            self._queue.append((handle, generation))
            self._condition.notify_all()
        return handle

    def close(self, *, drain: bool = True, timeout: float | None = None) -> bool:
        """Stop: accept nothing more, finish what was accepted (or, without `drain`, cancel it), end the worker.

        Returns whether the worker ended within `timeout` seconds. May be called again, for example without `drain`.
        """
        with self._condition:
            self._closing = True
            if not drain:
                for handle in [h for h, _ in self._queue] + ([self._active] if self._active else []):
                    handle.cancel()
            self._condition.notify_all()
        self._worker.join(timeout)
        return not self._worker.is_alive()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=error is None)

    # --------------------------------------------------------------------------------------------------- the worker

    def _run(self) -> None:
        try:
            if not self._warm:
                self._warm_up()
            while (job := self._next()) is not None:
                self._work(*job)
                del job  # with it goes the memory of its sequence
        except BaseException as error:  # whatever it was, nobody may wait for this thread any more
            self._fail(error)

    def _warm_up(self) -> None:
        """Errors: Hf2qError when what comes out is no numbers: such a model can answer nobody."""
        self.model.warm_up()
        with self._condition:
            self._warm = True
            self._condition.notify_all()

    def _next(self) -> tuple[Handle, Generation] | None:
        with self._condition:
            self._condition.wait_for(lambda: self._queue or self._closing)
            if not self._queue:
                return None
            handle, generation = self._queue.popleft()
            self._active = handle
            return handle, generation

    def _work(self, handle: Handle, generation: Generation) -> None:
        try:
            while not generation.done:
                self._drop_cancelled()
                events = generation.cancel() if handle.cancelled else generation.step()
                if events and events[-1].finish_reason is not None:
                    self._log(handle.request, events[-1])
                    self._active = None  # before the caller learns of the end: it may look
                handle.put(events)
        except Hf2qError as error:
            self._active = None
            handle.fail(error)

    def _drop_cancelled(self) -> None:
        """End cancelled requests that still wait, so that they take up no room in the queue."""
        with self._condition:
            dropped = [job for job in self._queue if job[0].cancelled]
            for job in dropped:
                self._queue.remove(job)
        for handle, generation in dropped:
            handle.put(generation.cancel())

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, Hf2qError):
            failure = error
        else:
            log.critical("the engine failed", exc_info=error)
            failure = Hf2qError(f"the engine failed: {type(error).__name__}: {error}", hint="restart it")
        with self._condition:
            self.failure = failure
            handles = [handle for handle, _ in self._queue] + ([self._active] if self._active else [])
            self._queue.clear()
            self._active = None
            self._condition.notify_all()
        for handle in handles:
            handle.fail(Hf2qError(failure.message, hint=failure.hint))  # one each: they get separate tracebacks

    def _log(self, request: GenerateRequest, last: TokenEvent) -> None:
        usage, timings = last.usage, last.timings
        if usage is None or timings is None:
            return
        log.info(
            "request %s: %d prompt tokens, %d generated, %s; queued %.2f s, first token after %.2f s, %.1f tokens/s",
            request.id or "-",
            usage.prompt_tokens,
            usage.completion_tokens,
            last.finish_reason,
            timings.queue_seconds,
            timings.prefill_seconds,
            timings.decode_rate,
        )
