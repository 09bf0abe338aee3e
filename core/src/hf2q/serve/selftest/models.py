"""Checks of what is said about models and of the server's life."""

from __future__ import annotations

from urllib.parse import quote

from hf2q.serve.selftest.asks import Asks
from hf2q.serve.selftest.check import equal, expect, named


def listed(asks: Asks) -> None:
    answer = asks.client.get("/v1/models")
    equal(answer.status, 200, "the status")
    equal(answer.body["object"], "list", "object")
    rows = {row["id"]: row for row in answer.body["data"]}
    expect(asks.model in rows, f"{asks.model!r} is not in the list")
    for row in rows.values():
        equal((row["object"], type(row["created"])), ("model", int), "object and type of created")


def retrieved(asks: Asks) -> None:
    answer = asks.client.get(f"/v1/models/{quote(asks.model, safe='')}")
    equal((answer.status, answer.body["id"]), (200, asks.model), "status and id")


def unknown(asks: Asks) -> None:
    for name in ("no-such-model", "no%2Fsuch", "no/such"):
        answer = asks.client.get(f"/v1/models/{name}")
        equal((answer.status, answer.body["error"]["code"]), (404, "model_not_found"), f"status and code of {name}")


def health(asks: Asks) -> None:
    for path, field, value in (("/health", "status", "ok"), ("/readyz", "ready", True)):
        answer = asks.client.get(path)
        equal((answer.status, answer.body[field]), (200, value), f"{path}: status and {field}")


def request_ids(asks: Asks) -> None:
    answer = asks.client.send("GET", "/v1/models", headers={"x-request-id": "selftest-1"})
    equal(answer.headers.get("x-request-id"), "selftest-1", "x-request-id")


CHECKS = named(
    "server",
    (
        ("models are listed", listed),
        ("a model is retrieved by its id", retrieved),
        ("an unknown model is 404", unknown),
        ("health and readiness", health),
        ("request ids are echoed", request_ids),
    ),
)
