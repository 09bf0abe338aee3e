"""``TOKEN=NUMBER`` on the command line as a logit bias. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hf2q.errors import UsageError


def biases(texts: Iterable[str]) -> dict[int, float]:
    """Token id -> bias. What a bias may be is for `hf2q.serve.sampling` to say.

    Errors: UsageError for another form, and for a token that is named twice.
    """
    found: dict[int, float] = {}
    for text in texts:
        token, _, number = text.partition("=")
        try:
            token_id, bias = int(token), float(number)
        except ValueError:
            raise UsageError(
                f"--logit-bias {text!r} is not of the form TOKEN=NUMBER",
                hint="TOKEN is a token's id: --logit-bias 151645=-100 never ends a turn of a Qwen model",
            ) from None
        if token_id in found:
            raise UsageError(f"--logit-bias names token {token_id} twice")
        found[token_id] = bias
    return found
