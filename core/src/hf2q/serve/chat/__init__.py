"""How a model is talked to: messages become a prompt, generated text becomes reasoning and content.

    render_process   the child process in which a chat template runs
    template         `ChatTemplate`: a template of unknown origin, rendered within limits
    conversation     `Chat`: messages in, prompt out, for one model
    opening          `open_chat`: the chat of a loaded model
    reasoning        `ReasoningSplitter`: where reasoning ends and content begins, piece by piece

Knows nothing of HTTP.
"""

from __future__ import annotations

from hf2q.serve.chat.conversation import Chat, Message, Prompt
from hf2q.serve.chat.opening import open_chat
from hf2q.serve.chat.reasoning import Delta, ReasoningSplitter
from hf2q.serve.chat.template import ChatTemplate, TemplateLimits

__all__ = ["Chat", "ChatTemplate", "Delta", "Message", "Prompt", "ReasoningSplitter", "TemplateLimits", "open_chat"]
