"""Prompts that a completion gives back, and what the model thinks of their tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf2q.errors import ContextLengthError, RequestError
from hf2q.serve.api.compute import Turn
from hf2q.serve.api.continuation import Echo
from hf2q.serve.events import Logprobs
from hf2q.types import Record

if TYPE_CHECKING:
    from hf2q.serve.model import Model

CHUNK = 64
"""Tokens whose logits are in memory at a time: a vocabulary of numbers for each."""


class Prompt(Record, frozen=True, kw_only=True):
    """A prompt in tokens. `bos` is how many of them the model wants at its beginning and the text does not have."""

    text: str
    ids: tuple[int, ...]
    bos: int = 0


def prompt_of(given: str | tuple[int, ...], model: Model) -> Prompt:
    """The tokens of a text, or the text of tokens.

    Errors: RequestError for ids outside the vocabulary, ContextLengthError for more than the context holds.
    """
    from hf2q.serve.sequence import token_ids

    tokenizer = model.tokenizer
    if isinstance(given, str):
        # a prompt that ended in EOS would be over
        ids = tuple(tokenizer.encode(given, add_bos=tokenizer.add_bos))
        found = Prompt(text=given, ids=ids, bos=int(tokenizer.add_bos and ids[:1] == (tokenizer.bos_id,)))
    else:
        found = Prompt(text=tokenizer.decode(token_ids(given, model.n_vocab).tolist()), ids=given)
    if not found.ids:
        raise RequestError("the prompt has no tokens", param="prompt", code="invalid_value")
    if len(found.ids) > model.context_length:
        raise ContextLengthError(
            f"the prompt has {len(found.ids)} tokens; the model's context holds {model.context_length}",
            param="prompt",
            code="context_length_exceeded",
        )
    return found


def echo_of(prompt: Prompt, model: Model, logprobs: int | None, limit: int, turn: Turn) -> Echo:
    """The prompt as it is given back. With `logprobs` the model reads it, `CHUNK` tokens at a time. The tokens are
    those of the text, as in OpenAI's completions: a BOS that the text does not have is read, and not listed.

    Errors: RequestError for log probabilities of more than `limit` tokens.
    """
    if logprobs is None:
        return Echo(text=prompt.text)
    if len(prompt.ids) > limit:
        raise RequestError(
            f"echo with logprobs is for prompts of at most {limit} tokens, this one has {len(prompt.ids)}",
            param="echo",
            code="invalid_value",
        )
    decoder = model.tokenizer.stream()
    known = _logprobs(prompt.ids, model, logprobs, turn)
    tokens = []
    at = 0
    for token, found in list(zip(prompt.ids, known, strict=True))[prompt.bos :]:
        tokens.append((token, found, min(at, len(prompt.text))))
        at += len(decoder.push(token))
    return Echo(text=prompt.text, tokens=tuple(tokens))


def _logprobs(ids: tuple[int, ...], model: Model, count: int, turn: Turn) -> list[Logprobs | None]:
    """What the model thinks of each token after those before it; of the first there is nothing to think."""
    from hf2q.serve.sampling import likeliest, log_probabilities

    found: list[Logprobs | None] = [None]
    sequence = model.sequence()
    for start in range(0, len(ids) - 1, CHUNK):
        turn.check()
        rows = sequence.all_logits(ids[start : min(start + CHUNK, len(ids) - 1)])
        for row, token in zip(rows, ids[start + 1 :], strict=False):
            values = log_probabilities(row)
            top = tuple((other, float(values[other])) for other in likeliest(row, count))
            found.append(Logprobs(logprob=float(values[token]), top=top))
    return found
