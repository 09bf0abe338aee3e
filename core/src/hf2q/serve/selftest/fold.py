"""The chunks of a chat stream, put together as clients do: what comes out must be the unary response."""

from __future__ import annotations

from typing import Any

from hf2q.serve.selftest.check import Failed


def fold(chunks: list[Any]) -> dict[str, Any]:
    """``{id, model, choices: [{index, message, finish_reason, logprobs}], usage}``, choices by index.

    Errors: Failed for a stream that a client could not put together.
    """
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for chunk in chunks:
        if "error" in chunk:
            raise Failed(f"the stream ended with an error: {chunk['error']}")
        usage = chunk.get("usage") or usage
        for part in chunk["choices"]:
            _take(choices, part)
    found = [choices[index] for index in sorted(choices)]
    for choice in found:
        calls = choice["message"].get("tool_calls")
        if calls is not None:
            choice["message"]["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {"id": chunks[0]["id"], "model": chunks[0]["model"], "choices": found, "usage": usage}


def _take(choices: dict[int, dict[str, Any]], part: dict[str, Any]) -> None:
    index, delta = part["index"], part["delta"]
    new = index not in choices
    choice = choices.setdefault(
        index, {"index": index, "message": {"content": ""}, "finish_reason": None, "logprobs": None}
    )
    if choice["finish_reason"] is not None:
        raise Failed(f"choice {index} goes on after its finish_reason")
    if new != ("role" in delta):
        raise Failed(f"the role of choice {index} is to come in its first chunk and in no other")
    message = choice["message"]
    for name in ("role", "content", "reasoning_content", "refusal"):
        if isinstance(delta.get(name), str):
            message[name] = message.get(name, "") + delta[name] if name != "role" else delta[name]
    for piece in delta.get("tool_calls") or ():
        _call(message.setdefault("tool_calls", {}), piece)
    if part.get("logprobs"):
        choice["logprobs"] = choice["logprobs"] or {"content": []}
        choice["logprobs"]["content"] += part["logprobs"].get("content") or []
    choice["finish_reason"] = part.get("finish_reason")


def _call(calls: dict[int, dict[str, Any]], piece: dict[str, Any]) -> None:
    index, function = piece["index"], piece.get("function") or {}
    if index not in calls:
        if not (piece.get("id") and function.get("name")) or index != len(calls):
            raise Failed(f"tool call {index} does not begin with its id and name, in order")
        calls[index] = {
            "id": piece["id"],
            "type": piece["type"],
            "function": {"name": function["name"], "arguments": function.get("arguments") or ""},
        }
        return
    if piece.get("id") or function.get("name"):
        raise Failed(f"tool call {index} repeats its id or name")
    calls[index]["function"]["arguments"] += function.get("arguments") or ""
