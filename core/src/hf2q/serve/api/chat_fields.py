"""What becomes of each field of a chat request."""

from __future__ import annotations

from hf2q.serve.api.fields import Fields

HINTS = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)

SAMPLING = {
    "temperature": "0 takes the likeliest token each time",
    "top_p": "sample among the likeliest tokens that have this share together; judged before temperature",
    "top_k": "sample among the k likeliest tokens; 0 or -1 for all",
    "min_p": "leave out tokens less likely than this times the likeliest; judged before temperature",
    "typical_p": "sample among the tokens of most ordinary information that have this share together; judged before "
    "temperature",
    "seed": "fixes every draw: the same request with the same seed has the same answer, whatever others ask meanwhile; "
    "choice i of `n` draws with seed + i",
    "frequency_penalty": "taken off a token's logit for each time the answer has it",
    "presence_penalty": "taken off a token's logit once the answer has it",
    "repetition_penalty": "weakens tokens of the prompt and the answer; 1 does nothing",
    "logit_bias": "token id (as text) to a number from -100 to 100 that is added to its logit",
}
"""Fields of every endpoint that generates."""

GENERATION = {
    "n": "so many answers to the same prompt, each with its own `index`",
    "stream": "true sends the answer as server-sent events",
    "stream_options": "with `stream` only: `include_usage` sends a last chunk with token counts; "
    "`include_obfuscation` is refused when true",
    "cache_salt": "keeps what was computed for this prompt from requests with another salt",
}
"""And these."""

CHAT = Fields(
    honoured={
        "model": "the model asked for, by an id of `/v1/models`; another one is 404",
        "messages": "the conversation, see below",
        "max_completion_tokens": "most tokens to generate, reasoning included; without it as many as the context holds",
        "max_tokens": "older name of the same; both may be given when they agree",
        "stop": "texts that end the answer and are not part of it; they are looked for in reasoning too",
        **SAMPLING,
        **GENERATION,
        "logprobs": "true gives each token of the content with its log probability, by the model alone: before bias, "
        "penalties, temperature and constraints",
        "top_logprobs": "with `logprobs`: as many of the likeliest tokens at each place too",
        "tools": "functions that the model may call; custom tools are refused",
        "tool_choice": "`none`, `auto`, `required`, or one function by name; `auto` where there are tools",
        "parallel_tool_calls": "false allows one call in an answer; without `tools` it does nothing",
        "response_format": "`text`, `json_object`, or `json_schema`: the answer is held to the schema, `strict` or not",
        "grammar": "a Lark grammar (llguidance's) that holds the answer; not together with `response_format`",
        "reasoning_effort": "how much to reason, where the model's template can say so; `none` turns reasoning off",
        "thinking_token_budget": "most tokens of reasoning; then it is closed and the answer begins",
        "chat_template_kwargs": "variables of the chat template, such as `enable_thinking`; one that the template does "
        "not read is refused",
    },
    hints=HINTS,
    refused={
        "audio": ("this server gives text only", ()),
        "function_call": ("it was replaced by tool_choice, which is available", ("none",)),
        "functions": ("they were replaced by tools, which are available", ([],)),
        "modalities": ("this server gives text only", (["text"],)),
        "moderation": ("moderation is not available", ()),
        "web_search_options": ("this server does not search", ()),
    },
)
