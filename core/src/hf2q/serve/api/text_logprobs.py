"""Log probabilities in the shape of OpenAI's completions: parallel lists over the tokens of a choice's text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hf2q.serve.api.logprobs import LOWEST
from hf2q.serve.events import Logprobs
from hf2q.types import Record

if TYPE_CHECKING:
    from hf2q.formats.tokenizer import Tokenizer


class TextLogprobs(Record, frozen=True, kw_only=True):
    """One entry of each list for each token; the first token of a prompt has nulls.

    tokens       texts; of a token that alone is no text its bytes, as ``bytes:\\xe6\\x9d``
    text_offset  where each begins in the choice's text, in characters
    """

    tokens: tuple[str, ...]
    token_logprobs: tuple[float | None, ...]
    top_logprobs: tuple[dict[str, float] | None, ...]
    text_offset: tuple[int, ...]


def text_logprobs(found: Sequence[tuple[int, Logprobs | None, int]], tokenizer: Tokenizer) -> TextLogprobs:
    """From tokens, what the model thought of each, and where each begins. The token itself is always among `top`."""
    tops: list[dict[str, float] | None] = []
    for token, logprobs, _ in found:
        if logprobs is None:
            tops.append(None)
            continue
        top = {shown(tokenizer, other): max(value, LOWEST) for other, value in logprobs.top}
        top.setdefault(shown(tokenizer, token), max(logprobs.logprob, LOWEST))
        tops.append(top)
    return TextLogprobs(
        tokens=tuple(shown(tokenizer, token) for token, _, _ in found),
        token_logprobs=tuple(None if known is None else max(known.logprob, LOWEST) for _, known, _ in found),
        top_logprobs=tuple(tops),
        text_offset=tuple(at for _, _, at in found),
    )


def joined(parts: Sequence[TextLogprobs]) -> TextLogprobs:
    """Those of a whole text from those of its pieces."""
    return TextLogprobs(
        tokens=tuple(one for part in parts for one in part.tokens),
        token_logprobs=tuple(one for part in parts for one in part.token_logprobs),
        top_logprobs=tuple(one for part in parts for one in part.top_logprobs),
        text_offset=tuple(one for part in parts for one in part.text_offset),
    )


def shown(tokenizer: Tokenizer, token: int) -> str:
    """A token as text."""
    data = tokenizer.token_bytes(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
