"""The mixes of llama-quantize as tables: which tensors get another type than the recipe's default, and when.

`MIXES[role][recipe]` lists cases; the first whose condition holds decides, and without any the default stays. The
role "output" stands for the output matrix and for embeddings that are used in its place. `policy` walks a file and
asks here. Source: llama.cpp, src/llama-quant.cpp, `llama_tensor_get_type_impl`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias


class Place(NamedTuple):
    """What conditions may ask: the tensor is the `i`-th of `n` of its role, in which model, quantized how."""

    i: int
    n: int
    n_gqa: int  # query heads for each key head
    n_expert: int
    imatrix: bool


class Condition(NamedTuple):
    """When a case applies, in words ("" when always) and as a test."""

    words: str
    holds: Callable[[Place], bool]


class Case(NamedTuple):
    """One line of a mix."""

    qtype: str
    when: Condition


Cases: TypeAlias = tuple[Case, ...]
Mixes: TypeAlias = Mapping[str, Mapping[str, Cases]]


def more_bits(i: int, n: int) -> bool:
    """Whether layer `i` of `n` gets the larger type: the first and last eighth, and every third in between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


ALWAYS = Condition("", lambda at: True)
MORE_BITS = Condition("more bits", lambda at: more_bits(at.i, at.n))
FIRST_TWO = Condition("one of the first two", lambda at: at.i < 2)
FIRST_FOUR = Condition("one of the first four", lambda at: at.i < 4)
FIRST_8TH = Condition("first eighth", lambda at: at.i < at.n // 8)
FIRST_16TH = Condition("first sixteenth", lambda at: at.i < at.n // 16)
BETWEEN = Condition("between the first and the last eighth", lambda at: at.n // 8 <= at.i < 7 * at.n // 8)
SHARED_KEYS = Condition("four or more query heads for each key head", lambda at: at.n_gqa >= 4)
SHARED_OR_EXPERTS = Condition(
    "four or more query heads for each key head, or four or more experts",
    lambda at: at.n_gqa >= 4 or at.n_expert >= 4,
)
EIGHT_EXPERTS = Condition("8 experts", lambda at: at.n_expert == 8)
NOT_EIGHT_EXPERTS = Condition("other than 8 experts", lambda at: at.n_expert != 8)
EIGHT_EXPERTS_MORE_BITS = Condition("8 experts and more bits", lambda at: at.n_expert == 8 and more_bits(at.i, at.n))
BLIND = Condition("no importance matrix", lambda at: not at.imatrix)
BLIND_FIRST_8TH = Condition("no importance matrix, first eighth", lambda at: not at.imatrix and at.i < at.n // 8)
SEEING_FIRST_8TH = Condition("importance matrix, first eighth", lambda at: at.imatrix and at.i < at.n // 8)

SMALLEST = frozenset({"iq2_s", "iq2_m"})
"""Mixes of about two bits, which count layers as they come, with or without experts, and widen nothing for them."""

MIXES: Mixes = MappingProxyType(
    {
        "output": {
            "q8_0": (Case("Q8_0", ALWAYS),),
            "iq3_xxs": (Case("Q5_K", ALWAYS),),
            "iq2_s": (Case("Q5_K", ALWAYS),),
            "iq2_m": (Case("Q5_K", ALWAYS),),
        },
        "token_embd": {
            "iq3_xxs": (Case("IQ3_S", ALWAYS),),
            "iq2_s": (Case("IQ3_S", ALWAYS),),
            "iq2_m": (Case("IQ3_S", ALWAYS),),
        },
        "attn_v": {
            "q2_k": (Case("Q4_K", SHARED_KEYS), Case("Q3_K", ALWAYS)),
            "q2_k_s": (Case("Q4_K", SHARED_KEYS),),
            "q3_k_m": (Case("Q5_K", FIRST_TWO), Case("Q4_K", ALWAYS)),
            "q3_k_l": (Case("Q5_K", ALWAYS),),
            "q4_k_s": (Case("Q5_K", FIRST_FOUR),),
            "q4_k_m": (Case("Q6_K", MORE_BITS),),
            "q5_k_m": (Case("Q6_K", MORE_BITS),),
            "iq4_nl": (Case("Q5_K", SHARED_KEYS),),
            "iq4_xs": (Case("Q5_K", SHARED_KEYS),),
            "iq3_xxs": (Case("Q4_K", SHARED_KEYS), Case("IQ3_S", BLIND)),
            "iq3_xs": (Case("Q4_K", SHARED_KEYS),),
            "iq3_s": (Case("Q4_K", SHARED_KEYS),),
            "iq3_m": (Case("Q4_K", ALWAYS),),
            "iq2_s": (Case("Q4_K", SHARED_OR_EXPERTS), Case("IQ3_S", ALWAYS)),
            "iq2_m": (Case("Q4_K", SHARED_OR_EXPERTS), Case("IQ3_S", ALWAYS)),
        },
        "attn_k": {
            "iq3_xxs": (Case("IQ2_S", ALWAYS),),
            "iq3_xs": (Case("IQ3_XXS", ALWAYS),),
            "iq2_s": (Case("Q4_K", EIGHT_EXPERTS),),
            "iq2_m": (Case("Q4_K", EIGHT_EXPERTS),),
        },
        "attn_q": {
            "iq3_xxs": (Case("IQ2_S", ALWAYS),),
            "iq3_xs": (Case("IQ3_XXS", ALWAYS),),
        },
        "attn_output": {
            "q2_k": (Case("Q5_K", EIGHT_EXPERTS), Case("Q3_K", ALWAYS)),
            "q3_k_s": (Case("Q5_K", EIGHT_EXPERTS),),
            "q3_k_m": (Case("Q5_K", EIGHT_EXPERTS), Case("Q4_K", ALWAYS)),
            "q3_k_l": (Case("Q5_K", NOT_EIGHT_EXPERTS),),
            "q4_k_s": (Case("Q5_K", EIGHT_EXPERTS),),
            "q4_k_m": (Case("Q5_K", EIGHT_EXPERTS),),
            "iq4_nl": (Case("Q5_K", EIGHT_EXPERTS),),
            "iq4_xs": (Case("Q5_K", EIGHT_EXPERTS),),
            "iq3_xxs": (Case("Q5_K", EIGHT_EXPERTS), Case("IQ3_S", ALWAYS)),
            "iq3_xs": (Case("Q5_K", EIGHT_EXPERTS),),
            "iq3_s": (Case("Q5_K", EIGHT_EXPERTS),),
            "iq3_m": (Case("Q5_K", EIGHT_EXPERTS), Case("Q4_K", ALWAYS)),
            "iq2_s": (Case("Q5_K", EIGHT_EXPERTS), Case("IQ3_S", ALWAYS)),
            "iq2_m": (Case("Q5_K", EIGHT_EXPERTS), Case("IQ3_S", ALWAYS)),
        },
        "ffn_up": {"iq3_xs": (Case("IQ3_XXS", BETWEEN),)},
        "ffn_gate": {"iq3_xs": (Case("IQ3_XXS", BETWEEN),)},
        "ffn_down": {
            "q4_0": (Case("Q4_1", SEEING_FIRST_8TH),),
            "q5_0": (Case("Q5_1", SEEING_FIRST_8TH),),
            "q2_k": (Case("Q3_K", ALWAYS),),
            "q2_k_s": (Case("Q4_K", FIRST_8TH),),
            "q3_k_m": (Case("Q5_K", FIRST_16TH), Case("Q4_K", ALWAYS)),
            "q3_k_l": (Case("Q5_K", ALWAYS),),
            "q4_k_s": (Case("Q5_K", FIRST_8TH),),
            "q4_k_m": (Case("Q6_K", MORE_BITS),),
            "q5_k_m": (Case("Q6_K", MORE_BITS),),
            "iq4_nl": (Case("Q5_K", BLIND_FIRST_8TH),),
            "iq4_xs": (Case("Q5_K", BLIND_FIRST_8TH),),
            "iq3_xxs": (Case("Q4_K", BLIND_FIRST_8TH), Case("Q3_K", BLIND)),
            "iq3_m": (Case("Q4_K", FIRST_8TH), Case("Q4_K", EIGHT_EXPERTS_MORE_BITS)),
            "iq2_s": (Case("IQ3_S", FIRST_8TH),),
            "iq2_m": (Case("IQ3_S", FIRST_8TH),),
        },
    }
)

FALCON: Mixes = MappingProxyType(
    {
        **MIXES,
        "attn_output": {
            "q3_k_l": (Case("Q4_K", ALWAYS),),
            **{recipe: cases for recipe, cases in MIXES["attn_output"].items() if recipe in SMALLEST},
        },
        "ffn_down": {
            **MIXES["ffn_down"],
            "q3_k_m": (Case("Q5_K", FIRST_16TH), Case("Q4_K", MORE_BITS)),
            "q3_k_l": (Case("Q4_K", ALWAYS),),
            "q4_k_s": (),
            "q4_k_m": (Case("Q6_K", FIRST_16TH), Case("Q5_K", MORE_BITS)),
        },
    }
)
"""The same for the arch falcon, whose layers are alike in other ways."""
