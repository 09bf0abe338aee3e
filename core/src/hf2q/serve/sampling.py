"""Choosing a token from logits. `SamplingParams` is importable without numpy, which `Sampler` needs.

Order, as in llama.cpp's default chain (common/sampling.cpp; llama_sampler_* in src/llama-sampling.cpp):

    logit_bias → repetition, frequency and presence penalties → [tokens that a constraint forbids: -inf]
    → [temperature 0: the best, and done] → top_k → typical_p → top_p → min_p → temperature → draw

So typical_p, top_p and min_p judge probabilities before temperature. The draw of step n depends on the seed and n
alone: not on other requests, threads or time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from hf2q.errors import Hf2qError, RequestError
from hf2q.types import Record

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy as np
    from numpy.typing import NDArray

    from hf2q.types import Float32

    Bools: TypeAlias = NDArray[np.bool_]

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them would overflow."""

NEGLIGIBLE = 40.0
"""Logits this far below the best are left out of the sort for top_p: a vocabulary of them has a share of 1e-12."""

REPETITION_PENALTY = (0.01, 100.0)
"""Bounds of the repetition penalty: beyond them a logit times or over it may leave float32."""

_MASK = (1 << 64) - 1


class SamplingParams(Record, frozen=True, kw_only=True):
    """How to choose a token. The defaults are greedy and reproducible.

    temperature         logits are divided by it; 0 takes the best token, the lowest id among equals
    top_k               keep the k best tokens; 0 keeps all
    typical_p           keep the fewest tokens whose probabilities exceed p together, those first whose information
                        (-log probability) is nearest to the mean of all (Meister et al., arXiv 2202.00666); 1 keeps all
    top_p               keep the fewest best tokens whose probabilities reach p together; 1 keeps all
    min_p               keep tokens at least p times as probable as the best; 0 keeps all
    seed                fixes every draw; None draws a fresh one for each request
    repetition_penalty  for each token that occurs in the prompt or the answer so far, its logit is divided by this if
                        positive, else multiplied; 1 does nothing (Keskar et al., arXiv 1909.05858)
    frequency_penalty   subtracted from a token's logit for each time it was generated
    presence_penalty    subtracted once from the logit of every token that was generated
    logit_bias          token id -> number added to its logit

    Errors: RequestError naming the field, and what was expected: its type or its bounds.
    """

    temperature: float = 0.0
    top_k: int = 0
    typical_p: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = {}

    def __post_init__(self) -> None:
        _bounded("temperature", self.temperature, 0, math.inf)
        _whole("top_k", self.top_k)
        _bounded("top_k", self.top_k, 0, math.inf)
        _bounded("typical_p", self.typical_p, 0, 1)
        _bounded("top_p", self.top_p, 0, 1)
        _bounded("min_p", self.min_p, 0, 1)
        if self.seed is not None:
            _whole("seed", self.seed)
        _bounded("frequency_penalty", self.frequency_penalty, -2, 2)
        _bounded("presence_penalty", self.presence_penalty, -2, 2)
        _bounded("repetition_penalty", self.repetition_penalty, *REPETITION_PENALTY)
        if not isinstance(self.logit_bias, Mapping):
            raise _wrong("logit_bias", self.logit_bias, "a mapping of token ids to numbers")
        for token, bias in self.logit_bias.items():
            _whole("logit_bias", token, " of a token")
            _bounded("logit_bias", bias, -100, 100, f" of token {token}")

    @property
    def greedy(self) -> bool:
        """Whether the best token is always taken."""
        return self.temperature < GREEDY_BELOW


def is_number(value: object) -> bool:
    """Whether it is a number of any library; truth values are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    """Whether it is a whole number of any library; truth values are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _bounded(name: str, value: float, low: float, high: float, where: str = "") -> None:
    bounds = f"{low} to {high}" if math.isfinite(high) else f"a number of at least {low}"
    if not (is_number(value) and math.isfinite(value) and low <= value <= high):
        raise _wrong(f"{name}{where}", value, bounds, name)


def _whole(name: str, value: int, where: str = "") -> None:
    if not is_whole(value):
        raise _wrong(f"{name}{where}", value, "a whole number", name)


def _wrong(what: str, value: object, expected: str, name: str = "") -> RequestError:
    return RequestError(f"{what} is {value!r:.60}, expected {expected}", param=name or what)


def uniform(seed: int, step: int) -> float:
    """The draw of one step, in [0, 1) with 53 bits. Source: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    z = (seed + (step + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


class Sampler:
    """Chooses the tokens of one sequence, one call of `sample` for each."""

    def __init__(
        self, params: SamplingParams, prompt: Iterable[int], n_vocab: int, suppressed: Collection[int] = ()
    ) -> None:
        """`suppressed` tokens of the vocabulary are never chosen, whatever is asked for.

        Errors: RequestError when `logit_bias` names a token outside the vocabulary.
        """
        self.params = params
        self._suppressed = frozenset(suppressed)
        self._suppressed_ids = sorted(suppressed)
        self.step = 0
        self._penalised = (
            params.repetition_penalty != 1 or params.frequency_penalty != 0 or params.presence_penalty != 0
        )
        self._adjusting = self._penalised or bool(params.logit_bias)
        seed = params.seed
        self._seed = int.from_bytes(os.urandom(8), "little") if seed is None else int(seed)  # numpy's would overflow
        self._counts: dict[int, int] = {}
        self._seen: set[int] = set(prompt) if params.repetition_penalty != 1 else set()
        for token in params.logit_bias:
            if not 0 <= token < n_vocab:
                raise RequestError(f"logit_bias names token {token}; the vocabulary has {n_vocab}", param="logit_bias")

    def sample(self, logits: Float32, allowed: Bools | None = None) -> int:
        """The next token id; logits float32 (V,), left as they are. Of `allowed` (V,) only those that it holds.

        Errors: Hf2qError when the logits are not numbers: the model computed nonsense, and no answer is better; and
        when nothing is allowed.
        """
        token = self._best_at_once(logits, allowed)
        if token is None:
            adjusted = self._adjusted(logits, allowed)
            token = self._checked(adjusted, allowed)
            if not self.params.greedy:
                token = self._draw(adjusted)
        self.step += 1
        if self._penalised:
            self._counts[token] = self._counts.get(token, 0) + 1
            self._seen.add(token)
        return token

    def _best_at_once(self, logits: Float32, allowed: Bools | None) -> int | None:
        """The best token where no logit has to be changed to find it: copying them takes longer than this."""
        if self._adjusting or not self.params.greedy:
            return None
        token = int(logits.argmax())
        if token in self._suppressed or not math.isfinite(logits[token]):
            return None
        return token if allowed is None or allowed[token] else None

    def _checked(self, logits: Float32, allowed: Bools | None) -> int:
        best = int(logits.argmax())  # the first NaN, if there is any
        value = float(logits[best])
        if math.isfinite(value):
            return best
        if value == -math.inf and allowed is not None:
            raise Hf2qError(
                "no token is allowed to come next: the constraint and what the model never says exclude them all",
                hint="this model's vocabulary cannot fulfil the constraint (response_format, tools, grammar)",
            )
        raise Hf2qError(
            f"the model's logits hold {value} (token {best}), expected finite numbers",
            hint="the model file is damaged, or its numbers overflow: convert or download it again",
        )

    def _adjusted(self, logits: Float32, allowed: Bools | None) -> Float32:
        """The logits that choices are made from; a copy if they differ."""
        import numpy as np

        p = self.params
        if not (self._adjusting or self._suppressed or allowed is not None):
            return logits
        logits = logits.copy()
        if p.logit_bias:
            logits[list(p.logit_bias)] += np.array(list(p.logit_bias.values()), np.float32)
        if self._seen and p.repetition_penalty != 1:
            seen = np.fromiter(self._seen, np.int64, len(self._seen))
            values, penalty = logits[seen], np.float32(p.repetition_penalty)
            logits[seen] = np.where(values > 0, values / penalty, values * penalty)
        if self._counts and (p.frequency_penalty or p.presence_penalty):
            tokens = np.fromiter(self._counts, np.int64, len(self._counts))
            counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            logits[tokens] -= counts * np.float32(p.frequency_penalty) + np.float32(p.presence_penalty)
        if self._suppressed:
            logits[self._suppressed_ids] = -np.inf
        if allowed is not None:
            logits[~allowed] = -np.inf
        return logits

    def _draw(self, logits: Float32) -> int:
        import numpy as np

        p = self.params
        tokens = None  # candidates in descending order, or None for all in the order of their ids
        if 0 < p.top_k < len(logits):
            tokens = _best(logits, p.top_k)
        if p.typical_p < 1:
            tokens = _typical(logits, tokens, p.typical_p)
        if p.top_p < 1:
            if tokens is None:
                near = np.flatnonzero(logits >= logits.max() - NEGLIGIBLE)
                tokens = near[np.argsort(-logits[near], kind="stable")]
            sums = np.cumsum(_weights(logits[tokens], 1.0))
            # up to and including the first that reaches p: at least one
            tokens = tokens[: int(np.searchsorted(sums, p.top_p * sums[-1])) + 1]
        chosen = logits if tokens is None else logits[tokens]
        weights = _weights(chosen, p.temperature)
        if p.min_p > 0:
            weights[chosen < chosen.max() + math.log(p.min_p)] = 0.0
        sums = np.cumsum(weights)
        at = int(np.searchsorted(sums, uniform(self._seed, self.step) * sums[-1], side="right"))
        at = min(at, int(np.searchsorted(sums, sums[-1])))  # the product may round up to the whole sum
        return at if tokens is None else int(tokens[at])


def _weights(logits: Float32, temperature: float) -> Any:
    """Unnormalised probabilities, float64, the largest 1."""
    import numpy as np

    wide = logits.astype(np.float64)
    return np.exp((wide - wide.max()) / temperature)


def _typical(logits: Float32, tokens: Any, typical_p: float) -> Any:
    """Of the candidates `tokens` (None for all) the locally typical, in the order of descending logits.

    Source: llama.cpp, src/llama-sampler.cpp, llama_sampler_typical_apply; tokens without probability are left out.
    """
    import numpy as np

    if tokens is None:
        tokens = np.flatnonzero(logits >= logits.max() - NEGLIGIBLE)
        tokens = tokens[np.argsort(-logits[tokens], kind="stable")]
    weights = _weights(logits[tokens], 1.0)
    probabilities = weights[weights > 0] / weights.sum()
    information = -np.log(probabilities)
    mean = float((probabilities * information).sum())
    order = np.argsort(np.abs(information - mean), kind="stable")
    sums = np.cumsum(probabilities[order])
    kept = order[: int(np.searchsorted(sums, typical_p, side="right")) + 1]
    return tokens[np.sort(kept)]


def log_probabilities(logits: Float32) -> Any:
    """The natural logarithms of the probabilities that logits (V,) stand for: float64 (V,)."""
    import numpy as np

    wide = logits.astype(np.float64)
    wide -= wide.max()
    return wide - np.log(np.exp(wide).sum())


def likeliest(logits: Float32, k: int) -> list[int]:
    """Ids of the k largest logits, descending; among equals the lower id goes first."""
    return [int(token) for token in _best(logits, min(k, len(logits)))] if k else []


def _best(logits: Float32, k: int) -> Any:
    """Ids of the k largest logits, descending; among equals the lower id goes first."""
    import numpy as np

    limit = np.partition(logits, len(logits) - k)[len(logits) - k]
    above = np.flatnonzero(logits > limit)
    level = np.flatnonzero(logits == limit)[: k - len(above)]
    tokens = np.concatenate([above, level])
    return tokens[np.lexsort((tokens, -logits[tokens]))]
