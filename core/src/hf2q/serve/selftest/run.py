"""All checks against one server."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hf2q.serve.selftest import chat, logprobs, models, refusals, routes, structured, together
from hf2q.serve.selftest.asks import Asks
from hf2q.serve.selftest.check import Check, Verdict
from hf2q.serve.selftest.client import Client

CHAT_CHECKS: tuple[Check, ...] = (
    *models.CHECKS,
    *chat.CHECKS,
    *logprobs.CHECKS,
    *structured.CHECKS,
    *refusals.CHECKS,
    *routes.CHAT_ROUTES,
    *routes.EMBEDDINGS,
    *together.CHECKS,
)
EMBEDDING_CHECKS: tuple[Check, ...] = (*models.CHECKS, *routes.EMBEDDINGS)


def run(
    base: str,
    model: str,
    *,
    key: str | None = None,
    embeds: bool = False,
    timeout: float = 300.0,
    on_verdict: Callable[[Verdict], None] = lambda verdict: None,
) -> list[Verdict]:
    """Check `model` on the server at `base`.

    key         an API key, where the server wants one
    embeds      it is an embedding model, which answers no chats
    timeout     seconds that one answer may take
    on_verdict  told of each as it comes
    """
    asks = Asks(Client(base, key=key, timeout=timeout), model)
    verdicts = []
    for check in EMBEDDING_CHECKS if embeds else CHAT_CHECKS:
        verdicts.append(check.run(asks))
        on_verdict(verdicts[-1])
    return verdicts


def passed(verdicts: Iterable[Verdict]) -> bool:
    """Whether none failed, and at least one passed."""
    results = [verdict.result for verdict in verdicts]
    return "FAIL" not in results and "PASS" in results
