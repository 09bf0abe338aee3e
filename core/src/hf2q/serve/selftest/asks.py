"""`Asks`: the server under test, and the questions that checks have in common."""

from __future__ import annotations

from typing import Any

from hf2q.serve.selftest.check import expect, short, skip
from hf2q.serve.selftest.client import Answer, Client
from hf2q.serve.selftest.fold import fold

CHAT = "/v1/chat/completions"
QUESTION = "Describe a walk by the sea in a few sentences."
MAX_TOKENS = 48
"""Enough to see whether two answers are the same, few enough for a slow machine."""


class Asks:
    """The server at `client`, asked about the model `model`."""

    def __init__(self, client: Client, model: str) -> None:
        self.client = client
        self.model = model
        self._greedy: dict[str, Any] | None = None

    def body(self, text: str = QUESTION, **more: Any) -> dict[str, Any]:
        """A greedy chat request."""
        base = {"model": self.model, "messages": [{"role": "user", "content": text}], "temperature": 0}
        return {**base, "max_completion_tokens": MAX_TOKENS, **more}

    def chat(self, text: str = QUESTION, **more: Any) -> dict[str, Any]:
        """The unary response. Errors: Failed for another status, Skipped where the model has no chat."""
        return self._good(self.client.post(CHAT, self.body(text, **more)))

    def streamed(self, text: str = QUESTION, **more: Any) -> dict[str, Any]:
        """The streamed response, folded. Errors: Failed for another status."""
        body = self.body(text, stream=True, stream_options={"include_usage": True}, **more)
        found = self.client.stream(CHAT, body)
        expect(found.status == 200, f"the stream is {found.status}: {short(found.raw)}")
        return fold(found.chunks)

    @property
    def greedy(self) -> dict[str, Any]:
        """The answer to `QUESTION`, asked once."""
        if self._greedy is None:
            self._greedy = self.chat()
        return self._greedy

    def _good(self, answer: Answer) -> dict[str, Any]:
        if answer.status != 200:
            error = answer.body["error"]
            if error["code"] in ("no_chat_template", "not_a_chat_model", "model_not_chat"):
                skip(error["message"])
            expect(False, f"{answer.status}: {error['message']}")
        found: dict[str, Any] = answer.body
        return found

    def optional(self, answer: Answer) -> Any:
        """The body of an answer. Errors: Skipped where there is no such route, Failed for another status than 200."""
        if answer.status == 404 and "no such path" in str(answer.body):
            skip("this server has no such route")
        expect(answer.status == 200, f"{answer.status}: {short(answer.body, 300)}")
        return answer.body


def said(response: dict[str, Any], choice: int = 0) -> dict[str, Any]:
    """What two responses must have in common: message and reason."""
    found = response["choices"][choice]
    message = found["message"]
    return {
        "content": message.get("content") or "",
        "reasoning": message.get("reasoning_content") or "",
        "calls": [each["function"] for each in message.get("tool_calls") or ()],
        "finish_reason": found["finish_reason"],
    }
