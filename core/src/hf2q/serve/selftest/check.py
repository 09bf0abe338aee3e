"""What a check is, and what comes of it."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

if TYPE_CHECKING:
    from hf2q.serve.selftest.asks import Asks

Result = Literal["PASS", "FAIL", "SKIP"]


class Failed(Exception):
    """A promise is not kept; the message says which."""


class Skipped(Exception):
    """The check says nothing about this model or server; the message says why."""


class Verdict(NamedTuple):
    """How a check went. `reason` is "" for most that passed."""

    area: str
    name: str
    result: Result
    reason: str
    seconds: float


class Check(NamedTuple):
    """A check: `work` returns what it is worth saying (or None), or raises Failed or Skipped."""

    area: str
    name: str
    work: Callable[[Asks], str | None]

    def run(self, asks: Asks) -> Verdict:
        """Do it. Whatever goes wrong is a verdict."""
        began = time.monotonic()
        result: Result = "PASS"
        try:
            reason = self.work(asks) or ""
        except Skipped as why:
            result, reason = "SKIP", str(why)
        except Failed as why:
            result, reason = "FAIL", str(why)
        except (OSError, http.client.HTTPException) as error:
            result, reason = "FAIL", f"the connection failed: {type(error).__name__}: {error}"
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            # the response has not the shape that the check reads
            result, reason = "FAIL", f"the response is not as expected: {type(error).__name__}: {error}"
        return Verdict(self.area, self.name, result, reason, round(time.monotonic() - began, 3))


def expect(condition: object, message: str) -> None:
    """Errors: Failed with `message` unless `condition` holds."""
    if not condition:
        raise Failed(message)


def equal(found: Any, wanted: Any, what: str) -> None:
    """Errors: Failed, showing both, unless they are equal."""
    if found != wanted:
        raise Failed(f"{what} is {short(found)}, expected {short(wanted)}")


def skip(why: str) -> NoReturn:
    """Errors: Skipped."""
    raise Skipped(why)


def short(value: Any, limit: int = 80) -> str:
    """`value` for a message."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}…"


def named(area: str, checks: Iterable[tuple[str, Callable[[Asks], str | None]]]) -> tuple[Check, ...]:
    """Checks of one subject."""
    return tuple(Check(area, name, work) for name, work in checks)
