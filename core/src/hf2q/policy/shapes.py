"""What stands in for a type whose blocks do not fit a tensor's rows.

Source: llama.cpp, src/llama-quant.cpp, `tensor_type_fallback`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hf2q.errors import UsageError
from hf2q.formats.ggml_types import GGML_TYPES

FALLBACK: Mapping[str, str] = MappingProxyType(
    {
        "Q2_0": "Q4_0",
        "Q2_K": "Q4_0",
        "Q3_K": "Q4_0",
        "TQ1_0": "Q4_0",
        "TQ2_0": "Q4_0",
        "Q4_K": "Q5_0",
        "Q5_K": "Q5_1",
        "Q6_K": "Q8_0",
        "IQ1_S": "IQ4_NL",
        "IQ1_M": "IQ4_NL",
        "IQ2_XXS": "IQ4_NL",
        "IQ2_XS": "IQ4_NL",
        "IQ2_S": "IQ4_NL",
        "IQ3_XXS": "IQ4_NL",
        "IQ3_S": "IQ4_NL",
        "IQ4_XS": "IQ4_NL",
    }
)
"""Types with blocks of more than 32 weights, and the type with blocks of 32 that each gives way to."""


def fits(qtype: str, columns: int) -> bool:
    """Whether rows of `columns` weights are whole blocks."""
    return columns % GGML_TYPES[qtype].block_size == 0


def fallback(qtype: str, columns: int) -> str:
    """The type for rows of `columns` weights in place of `qtype`: itself when it fits, in the last resort F16.

    Errors: UsageError for a type without a defined stand-in.
    """
    if fits(qtype, columns):
        return qtype
    if GGML_TYPES[qtype].block_size > 32:
        if qtype not in FALLBACK:
            raise UsageError(
                f"rows of {columns} weights are no whole blocks of {qtype}, and no other type stands in for it",
                hint="choose another type for this tensor, for example Q8_0",
            )
        qtype = FALLBACK[qtype]
    return qtype if fits(qtype, columns) else "F16"
