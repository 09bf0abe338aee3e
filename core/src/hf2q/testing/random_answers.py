"""Answers of a model that says anything at all, held to a form: what no trained model would try, this one does.

    text, finished = random_answer(constraint, tokenizer, n_vocab=tokenizer.n_vocab, seed=1)

Each token is drawn at temperature 1 from random logits. So that answers end, the model now and then takes it into its
head to write one of `GOALS`, as far as it may.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from hf2q.formats.tokenizer import Tokenizer
    from hf2q.serve.constraint import Constraint

GOALS = (
    *('"', '"}', "}", "]", "]}", "null", "1", "}}\n", "</think>", "abc", "\n</parameter>\n"),
    *("</function>", "\n</tool_call>", "</｜DSML｜parameter>\n", "</｜DSML｜invoke>\n", "</｜DSML｜tool_calls>"),
    *('<|"|>', "}<tool_call|>", "<tool_call>\n", "<|tool_call>", "<｜DSML｜tool_calls>"),
)


class RandomAnswer(NamedTuple):
    """text      what was said, control tokens included, without the token that ended it
    finished  whether it ended by itself, not at the limit
    tokens    its tokens
    """

    text: str
    finished: bool
    tokens: tuple[int, ...]


def random_answer(
    constraint: Constraint,
    tokenizer: Tokenizer,
    *,
    n_vocab: int,
    seed: int,
    limit: int = 400,
    goals: Sequence[str] = GOALS,
    ending: float = 8.0,
) -> RandomAnswer:
    """One answer of at most `limit` tokens; `ending` is the logit of the tokens that end it, the others' are N(0, 2²).

    AssertionError where the constraint allows no token, one that pads the vocabulary, or refuses one that it allowed.
    """
    rng = np.random.default_rng(seed)
    ends = sorted(tokenizer.eos_ids)
    aims = [tokenizer.encode(goal, add_bos=False) for goal in goals]
    said: list[int] = []
    goal: list[int] = []
    for step in range(limit):
        mask = constraint.allowed()
        bits = np.ones(n_vocab, bool)
        if mask is not None:
            assert mask.dtype == np.uint32
            assert mask.shape == ((n_vocab + 31) // 32,)
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:n_vocab].astype(bool)
            assert bits.any(), f"no token is allowed after {tokenizer.decode(said)!r}"
        assert mask is None or not bits[tokenizer.n_vocab :].any(), "a token that is none is allowed"
        bits[tokenizer.n_vocab :] = False
        logits = np.where(bits, rng.normal(size=n_vocab) * 2, -np.inf)
        if not goal and aims and rng.random() < 0.05 + 0.5 * step / limit:
            goal = list(aims[int(rng.integers(len(aims)))])
        if goal:
            logits[goal[0]] += 15
        logits[ends] += ending
        weights = np.exp(logits - logits.max())
        token = int(rng.choice(n_vocab, p=weights / weights.sum()))
        constraint.accept(token)
        if token in ends:
            return RandomAnswer(tokenizer.decode(said), True, tuple(said))
        goal = goal[1:] if goal and token == goal[0] else []
        said.append(token)
        if constraint.complete:
            return RandomAnswer(tokenizer.decode(said), True, tuple(said))
    return RandomAnswer(tokenizer.decode(said), False, tuple(said))
