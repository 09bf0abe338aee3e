"""How a model is talked to: messages become a prompt, generated text becomes reasoning and content.

    conversation     `Chat`: a dialogue in, a prompt and a reader of the answer out, for one model
    opening          `open_chat`: the chat of a loaded model
    query, messages  `ChatQuery`, `Message`: what is asked          deltas   what comes out, piece by piece
    prepared         `Prepared`: a question ready for the engine    question, parsing   how it is made
    template         `ChatTemplate`: a template of unknown origin, rendered within limits
    render_process   the child process in which it runs
    template_probe   what a template takes                          turns, tooling, effort   what it is given
    reasoning        `ReasoningSplitter`: where reasoning ends and content begins
    calls            `CallScanner`: where calls are, and what of them is none
    syntax           `ToolSyntax`: how a family writes calls        reading, schemas, parameters   to write one with
    constraints      what holds an answer to its form
    asking           what `Model.chat` does around a generation

Knows nothing of HTTP.
"""

from __future__ import annotations

from hf2q.serve.chat.conversation import Chat, Prompt
from hf2q.serve.chat.messages import Message, ToolCall
from hf2q.serve.chat.opening import open_chat
from hf2q.serve.chat.prepared import Prepared
from hf2q.serve.chat.query import ChatQuery, ResponseFormat, Tool, ToolChoice
from hf2q.serve.chat.reasoning import Delta, ReasoningSplitter
from hf2q.serve.chat.template import ChatTemplate, TemplateLimits

__all__ = [
    "Chat",
    "ChatQuery",
    "ChatTemplate",
    "Delta",
    "Message",
    "Prepared",
    "Prompt",
    "ReasoningSplitter",
    "ResponseFormat",
    "TemplateLimits",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "open_chat",
]
