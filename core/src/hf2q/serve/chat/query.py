"""What is asked of a chat besides its settings for sampling: messages, tools, the form of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hf2q.serve.chat.messages import Message
from hf2q.types import Record


class Tool(Record, frozen=True, kw_only=True):
    """A function that the model may call. `parameters` is its JSON schema, an object's; {} takes any object."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = {}
    strict: bool = False


class ToolChoice(Record, frozen=True, kw_only=True):
    """Whether the model calls: ``none``, ``auto`` (as it likes), ``required`` (at least one), or `name` and no other.

    `mode` is ``required`` where `name` is set.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    name: str | None = None


class ResponseFormat(Record, frozen=True, kw_only=True):
    """The form of the answer: ``json_object`` is any JSON object, ``json_schema`` what `schema` says,
    ``grammar`` a Lark grammar.
    """

    kind: Literal["json_object", "json_schema", "grammar"]
    schema: Mapping[str, Any] | bool | None = None
    grammar: str | None = None
    name: str = ""


class ChatQuery(Record, frozen=True, kw_only=True):
    """One question to a chat.

    messages         the dialogue so far
    options          variables of the chat template (``enable_thinking`` ...), by the request's own names
    tools            functions that the model may call
    choice           whether it has to
    parallel         whether it may call more than one in an answer
    format           the form of the answer, None for free text
    effort           how much to reason: ``none``, ``minimal``, ``low``, ``medium``, ``high``, ``xhigh``, ``max``; None:
                     not said
    thinking_budget  most tokens of reasoning; then it is closed by force. None: no bound
    """

    messages: tuple[Message, ...]
    options: Mapping[str, Any] = {}
    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = ToolChoice()
    parallel: bool = True
    format: ResponseFormat | None = None
    effort: str | None = None
    thinking_budget: int | None = None
