"""`Watchers`: everybody who wants to hear what the engines of a server do, whenever they and the engines come."""

from __future__ import annotations

from collections.abc import Callable

from hf2q.serve.observe import Observer, RequestEvent

Maker = Callable[[str], Observer | None]
"""Model id -> what watches that model's engine, or None."""


class Watchers:
    """Those who watch. An engine gets `observer` of its model, which passes events on to all of them."""

    def __init__(self) -> None:
        self._makers: tuple[Maker, ...] = ()

    def add(self, maker: Maker) -> None:
        """From now on, tell one more. `maker` is called once for each model, at its first event."""
        self._makers = (*self._makers, maker)

    def observer(self, model_id: str) -> Observer:
        """For the engine of that model."""
        return _Fan(self, model_id)

    @property
    def makers(self) -> tuple[Maker, ...]:
        """All of them, in the order they came."""
        return self._makers


class _Fan:
    def __init__(self, watchers: Watchers, model_id: str) -> None:
        self._watchers = watchers
        self._model_id = model_id
        self._made: list[Observer | None] = []

    def on(self, event: RequestEvent) -> None:
        """Pass it on."""
        makers = self._watchers.makers
        for maker in makers[len(self._made) :]:
            self._made.append(maker(self._model_id))
        for observer in self._made:
            if observer is not None:
                observer.on(event)
