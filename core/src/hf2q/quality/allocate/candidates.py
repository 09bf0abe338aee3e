"""The types that a search tries, and the mix that a file of chosen types is called by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from hf2q.plugins import Plugins

LARGE_BLOCKS = ("Q2_K", "Q3_K", "IQ3_S", "IQ4_XS", "Q4_K", "Q5_K", "Q6_K", "Q8_0")
"""For rows of whole blocks of 256. Older types of the same sizes lose more."""
WEIGHTED = ("IQ2_XS", "IQ2_S", "IQ3_XXS")
"""The same, for tensors whose importance is known: without it these ruin a tensor (`hf2q.policy.walk`)."""
SMALL_BLOCKS = ("Q4_0", "IQ4_NL", "Q5_0", "Q5_1", "Q8_0")
"""For other rows of whole blocks of 32, as llama-quantize falls back to (`hf2q.policy.shapes`)."""
NO_BLOCKS = ("F16",)
"""For all others."""

MIXES: Mapping[str, str] = MappingProxyType(
    {
        "IQ2_XS": "iq2_s",
        "IQ2_S": "iq2_m",
        "IQ3_XXS": "iq3_xxs",
        "IQ3_S": "iq3_s",
        "IQ4_XS": "iq4_xs",
        "IQ4_NL": "iq4_nl",
        "Q2_K": "q2_k",
        "Q3_K": "q3_k_m",
        "Q4_0": "q4_0",
        "Q4_K": "q4_k_m",
        "Q5_0": "q5_0",
        "Q5_1": "q5_1",
        "Q5_K": "q5_k_m",
        "Q6_K": "q6_k",
        "Q8_0": "q8_0",
    }
)
"""The recipe whose ``general.file_type`` says "mostly" of a type (llama.cpp, include/llama.h, `llama_ftype`)."""


def candidates(columns: int, plugins: Plugins, *, weighted: bool) -> tuple[str, ...]:
    """Types for rows of `columns` weights that a plugin encodes; `weighted` says that their importance is known."""
    if columns % 256 == 0:
        names = (*(WEIGHTED if weighted else ()), *LARGE_BLOCKS)
    else:
        names = SMALL_BLOCKS if columns % 32 == 0 else NO_BLOCKS
    return tuple(name for name in names if name in plugins.codecs)


def mix_for(tensors: Iterable[tuple[str, int]]) -> str:
    """The recipe to call a file by whose quantized tensors have these types and numbers of weights."""
    weights: Counter[str] = Counter()
    for qtype, parameters in tensors:
        if qtype in MIXES:
            weights[qtype] += parameters
    return MIXES[weights.most_common(1)[0][0]] if weights else "q8_0"
