"""How fast a model runs: prompts and generations of random tokens, timed as llama-bench times them.

A run of each kind is done first and not counted, so that compilers and caches are warm. Source of the procedure:
llama.cpp, tools/llama-bench/llama-bench.cpp, `test_prompt` and `test_gen`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from hf2q.serve.generation import PREFILL_CHUNK
from hf2q.serve.model import Model
from hf2q.serve.sampling import uniform
from hf2q.serve.sequence import next_logits_together
from hf2q.types import Record


class Speed(Record, frozen=True, kw_only=True):
    """Seconds of each run over `tokens` tokens."""

    tokens: int
    seconds: tuple[float, ...]

    @property
    def rates(self) -> tuple[float, ...]:
        """Tokens per second of each run."""
        return tuple(self.tokens / seconds for seconds in self.seconds)

    @property
    def tokens_per_second(self) -> float:
        """The mean of the runs' rates."""
        return statistics.mean(self.rates)

    @property
    def deviation(self) -> float:
        """The standard deviation of the rates, 0 for a single run."""
        return statistics.stdev(self.rates) if len(self.rates) > 1 else 0.0


def measure(
    model: Model,
    *,
    prompt: int,
    generate: int,
    repetitions: int,
    slots: int = 1,
    report: Callable[[str, int, int], None] | None = None,
) -> tuple[Speed | None, Speed | None]:
    """Speed of prompts of `prompt` tokens and of generating `generate` tokens one by one; None where that is 0.

    With several `slots` so many sequences generate together, `generate` tokens each, and all their tokens count.
    `report` gets (what is at work, runs done, runs in all).
    """
    total = (repetitions + 1) * (bool(prompt) + bool(generate))
    done = 0

    def runs(what: str, tokens: int, work: Callable[[], None]) -> Speed | None:
        nonlocal done
        if not tokens:
            return None
        seconds = []
        for _ in range(repetitions + 1):
            started = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - started)
            done += 1
            if report is not None:
                report(what, done, total)
        return Speed(tokens=tokens, seconds=tuple(seconds[1:]))

    # numpy's generators would bring 3 MB of libraries along
    ids = np.array([int(uniform(0, step) * model.n_vocab) for step in range(max(prompt, generate, 1))], np.int32)

    def read() -> None:
        sequence = model.sequence()
        for start in range(0, prompt, PREFILL_CHUNK):
            sequence.next_logits(ids[start : min(start + PREFILL_CHUNK, prompt)])

    def write() -> None:
        sequences = [model.sequence() for _ in range(slots)]
        for step in range(generate):
            if slots == 1:
                sequences[0].next_logits(ids[step : step + 1])
            else:
                next_logits_together(sequences, np.roll(ids, -step)[np.arange(slots) % len(ids)])

    return runs("prefill", prompt, read), runs("decode", generate * slots, write)
