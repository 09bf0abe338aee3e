"""What becomes of each field of a request to ``/v1/responses``."""

from __future__ import annotations

from hf2q.serve.api.chat_fields import GENERATION, SAMPLING
from hf2q.serve.api.fields import Fields

RESPONSES = Fields(
    honoured={
        "model": "the model asked for, by an id of `/v1/models`; another one is 404",
        "input": "a text, or items: messages, function calls, their outputs, reasoning",
        "instructions": "a system message before everything; not carried over by `previous_response_id`",
        "previous_response_id": "go on after a stored response: its input and output come before `input`; 404 when it "
        "is not stored (any more)",
        "store": "false keeps nothing of it; else it can be read and continued until newer ones displace it",
        "max_output_tokens": "most tokens to generate, reasoning included; without it as many as the context holds",
        "stop": "texts that end the answer and are not part of it (not among OpenAI's fields)",
        **SAMPLING,
        "stream": "true sends the response as events",
        "cache_salt": GENERATION["cache_salt"],
        "text": "`format`: text, json_object, or json_schema; `verbosity` is a hint",
        "tools": "functions that the model may call; tools of other types are refused",
        "tool_choice": "`none`, `auto`, `required`, or one function by name",
        "parallel_tool_calls": "false allows one call in an answer; without `tools` it does nothing",
        "reasoning": "`effort`: how much to reason, where the model's template can say so; `summary` `auto` is a hint: "
        "reasoning comes whole, as `reasoning_text`",
        "include": "`message.output_text.logprobs`; `reasoning.encrypted_content`: reasoning as an opaque text that "
        "may be sent back (it is not secret)",
        "top_logprobs": "as many of the likeliest tokens at each place of the text too",
        "thinking_token_budget": "most tokens of reasoning; then it is closed and the answer begins",
        "chat_template_kwargs": "variables of the chat template, such as `enable_thinking`; one that the template does "
        "not read is refused",
        "metadata": "comes back with the response",
    },
    hints=frozenset(
        {
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "user",
        }
    ),
    refused={
        "background": ("responses are not made in the background", (False,)),
        "context_management": ("contexts are not compacted", ([],)),
        "conversation": ("conversations are not kept; previous_response_id is available", ()),
        "max_tool_calls": ("it counts calls of built-in tools, and there are none", ()),
        "moderation": ("moderation is not available", ()),
        "n": ("a response is one answer", (1,)),
        "prompt": ("stored prompts are not available", ()),
        "stream_options": ("obfuscation of streams is not available", ({}, {"include_obfuscation": False})),
        "truncation": ("input is never cut silently", ("disabled",)),
    },
)
