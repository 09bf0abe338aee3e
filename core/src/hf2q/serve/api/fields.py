"""What becomes of each field of a request: honoured, taken as a hint, or refused. One `Fields` for each endpoint.

A field that is neither honoured nor a pure hint is refused by name, unless its value asks for nothing (null, or the
default that the server gives anyway). Nothing is accepted and ignored. docs/reference/http.md is written from these
tables.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec

from hf2q.errors import RequestError, listing
from hf2q.types import Record

Neutral = tuple[Any, ...]


class Fields(Record, frozen=True, kw_only=True):
    """The fields of one endpoint.

    honoured  name -> what it does
    hints     accepted and without effect: they ask for nothing that shows in the answer
    refused   name -> why it is refused, and the values that ask for nothing
    """

    honoured: Mapping[str, str]
    hints: frozenset[str] = frozenset()
    refused: Mapping[str, tuple[str, Neutral]] = {}

    def check(self, given: Mapping[str, msgspec.Raw]) -> None:
        """Errors: RequestError naming the first field that is unknown, or refused and set."""
        for name, raw in given.items():
            if name in self.refused:
                self._check_refused(name, raw)
            elif name not in self.honoured and name not in self.hints:
                raise self._unknown(name)

    def _check_refused(self, name: str, raw: msgspec.Raw) -> None:
        reason, neutral = self.refused[name]
        try:
            value = msgspec.json.decode(raw)
        except (msgspec.MsgspecError, RecursionError):
            value = raw  # a number beyond all bounds, or lists without end: it asks for something in any case
        # 1 == True, so the type decides too
        if value is None or any(type(value) is type(one) and value == one for one in neutral):
            return
        given = memoryview(raw)
        text = bytes(given[:60]).decode("utf-8", "ignore") + ("..." if len(given) > 60 else "")
        only = f"; only {msgspec.json.encode(neutral[0]).decode()} is accepted" if neutral else ""
        raise RequestError(f"{name} is {text}, but {reason}{only}", param=name, code="unsupported_parameter")

    def _unknown(self, name: str) -> RequestError:
        name = name[:100]
        known = sorted(self.honoured.keys() | self.hints | self.refused.keys())
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
        hint = f"did you mean {near[0]!r}?" if near else f"fields with an effect: {listing(self.honoured, limit=20)}"
        return RequestError(f"unknown field {name!r}", hint=hint, param=name, code="unknown_parameter")
