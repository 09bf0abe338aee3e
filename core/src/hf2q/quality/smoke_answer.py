"""One fresh run of a smoke test, in a process of its own: ``python -m hf2q.quality.smoke_answer``.

A `Question` in JSON comes on stdin; a `Reply` goes to stdout; what the engine complains about, or the interpreter when
it dies, is on stderr, where `hf2q.quality.smoke` looks at it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from hf2q.errors import Hf2qError
from hf2q.quality.smoke_transcript import Said
from hf2q.types import Record

if TYPE_CHECKING:
    from hf2q.serve.model import Model
    from hf2q.types import Float32

TOKENS = 8


class Question(Record, frozen=True, kw_only=True):
    """What to load, and the prompts to continue."""

    path: str
    backend: str
    threads: int
    prompts: tuple[str, ...]


class Ran(Record, frozen=True, kw_only=True):
    """One prompt in one run: what was said, how many tokens came, and whether all logits were finite."""

    said: Said
    tokens: tuple[int, ...]
    finite: bool


class Reply(Record, frozen=True, kw_only=True):
    """The answers, or why there are none."""

    answers: tuple[Ran, ...] = ()
    error: str = ""
    hint: str | None = None


def answered(model: Model, prompt: str) -> Ran:
    """Eight greedy tokens, each by logits that are looked at. An end token ends it sooner, as it would in use."""
    ids = model.tokenizer.encode(prompt, add_bos=model.tokenizer.add_bos)
    started = time.perf_counter()
    events = list(model.generate(ids, max_tokens=TOKENS, logprobs=0))
    seconds = time.perf_counter() - started
    tokens = tuple(event.token for event in events if event.token is not None)
    finite = all(np.isfinite(event.logprobs.logprob) for event in events if event.logprobs is not None)
    logits: Float32 = model.logits([*ids, *tokens])
    told = (
        f"prompt tokens: {len(ids)}",
        f"tokens: {' '.join(map(str, tokens))}",
        f"n_eval = {len(tokens)}",
        f"eval time = {seconds:.3f} s / {len(tokens)} runs",
    )
    said = Said(prompt=prompt, text="".join(event.text for event in events), told=told)
    return Ran(said=said, tokens=tokens, finite=finite and bool(np.isfinite(logits).all()))


def reply(question: Question) -> Reply:
    """All prompts on a model that is loaded for them alone."""
    from hf2q.serve.load import load

    try:
        with load(Path(question.path), backend=question.backend, threads=question.threads) as model:
            return Reply(answers=tuple(answered(model, prompt) for prompt in question.prompts))
    except Hf2qError as error:
        return Reply(error=error.message, hint=error.hint)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(reply(msgspec.json.decode(sys.stdin.buffer.read(), type=Question))))
