"""Which type each tensor of a file gets: the file-level policy of llama-quantize.

`policy` is what the standard recipes name. It walks the tensors in file order, since the "more bits" schedule counts
attention-value and ffn_down tensors as they come.

Source: llama.cpp src/llama-quant.cpp, `tensor_allows_quantization`, `tensor_get_category`,
`llama_tensor_get_type_impl`, `tensor_type_fallback`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hf2q.errors import EncodeError
from hf2q.formats.ggml_types import GGML_TYPES
from hf2q.types import ModelFacts, Recipe, Shape, TensorChoiceInput, TypeChoice

KEPT = (
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
)
"""Parts of names of tensors that are never quantized: small, or too sensitive."""

KEPT_WHOLE = ("position_embd.weight", "token_types.weight")

FALLBACK = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}
"""What a type with blocks of 256 gives way to when rows are no multiple of that."""

CATEGORIES = (
    ("attn_v", ("attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight")),
    ("attn_k", ("attn_k.weight",)),
    ("attn_q", ("attn_q.weight",)),
    ("attn_output", ("attn_output.weight",)),
    ("ffn_up", ("ffn_up",)),
    ("ffn_gate", ("ffn_gate",)),
    ("ffn_down", ("ffn_down",)),
)
"""First match decides. Fused QKV counts as a value projection, as in the reference."""

MIXED_8_EXPERTS = frozenset({"q4_k_m"})
"""Recipes that give attn_output Q5_K when a model has exactly eight experts."""


def allows_quantization(name: str, shape: Shape) -> bool:
    """Whether a tensor may be quantized at all, by its name and shape (numpy order)."""
    sizes = list(shape)
    while len(sizes) > 1 and sizes[0] == 1:  # ggml does not count outer sizes of 1
        del sizes[0]
    return (
        len(sizes) >= 2
        and name.endswith("weight")
        and name not in KEPT_WHOLE
        and not any(part in name for part in KEPT)
    )


def category(name: str) -> str:
    """The role of a tensor in the policy, by its name."""
    if name == "output.weight":
        return "output"
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return "token_embd"
    return next((word for word, parts in CATEGORIES if any(part in name for part in parts)), "other")


def more_bits(i: int, n: int) -> bool:
    """Whether layer `i` of `n` gets the larger type: the first and last eighth, and every third in between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def fallback(qtype: str, columns: int) -> str:
    """The type that fits rows of `columns` weights in place of `qtype`; itself when it fits.

    Errors: EncodeError for a type without a defined fallback.
    """
    if columns % GGML_TYPES[qtype].block_size == 0:
        return qtype
    if GGML_TYPES[qtype].block_size > 32:
        if qtype not in FALLBACK:
            raise EncodeError(f"no fallback is defined for {qtype} and rows of {columns} weights")
        qtype = FALLBACK[qtype]
    return qtype if columns % GGML_TYPES[qtype].block_size == 0 else "F16"


class _Mix:
    """One walk over a file's tensors."""

    def __init__(self, recipe: Recipe, tensors: Sequence[TensorChoiceInput], facts: ModelFacts) -> None:
        self.recipe, self.facts = recipe, facts
        self.tied = all(tensor.name != "output.weight" for tensor in tensors)
        self.n_values = sum(category(tensor.name) == "attn_v" for tensor in tensors)
        self.i_values = self.i_down = 0

    def choose(self, tensor: TensorChoiceInput) -> tuple[str, str]:
        """The type before the shape is looked at, and the rule that chose it."""
        role, default, name = category(tensor.name), self.recipe.default, self.recipe.name
        if role == "output" or (role == "token_embd" and self.tied):
            what = "output" if role == "output" else "tied embeddings"
            if tensor.shape[-1] % GGML_TYPES[default].block_size:
                return "Q8_0", f"{what} whose rows do not fit {default}"
            return ("Q8_0", f"{what}: default") if default == "Q8_0" else ("Q6_K", f"{what}: Q6_K")
        if role == "attn_v":
            return self._value(default, name)
        if role == "attn_k" and self.facts.n_expert == 8:
            return "Q8_0", "attention key of a model with 8 experts"
        if role == "ffn_down":
            return self._down(tensor.name, default, name)
        if role == "attn_output" and self.facts.n_expert == 8 and name in MIXED_8_EXPERTS:
            return "Q5_K", "attention output of a model with 8 experts"
        return default, f"default of {name}"

    def _value(self, default: str, name: str) -> tuple[str, str]:
        i, n = self.i_values, self.n_values
        self.i_values += 1
        if self.facts.n_expert == 8:
            return "Q8_0", "attention value of a model with 8 experts"
        if name == "q4_k_m" and more_bits(i, n):
            return "Q6_K", f"more bits: attention value {i + 1} of {n}"
        return default, f"default of {name}"

    def _down(self, tensor: str, default: str, name: str) -> tuple[str, str]:
        i, n = self.i_down, self.facts.n_layer
        self.i_down += 1
        if self.facts.n_expert > 1:  # expert tensors come in any number for a layer, so the name decides
            block = re.match(r"blk\.(\d+)\.", tensor)
            if block is None or int(block[1]) >= n:
                raise EncodeError(f"tensor {tensor!r} is in no layer of a model with {n}")
            i = int(block[1])
        if name == "q4_k_m" and more_bits(i, n):
            return "Q6_K", f"more bits: ffn_down of layer {i} of {n}"
        return default, f"default of {name}"


def policy(recipe: Recipe, tensors: Sequence[TensorChoiceInput], facts: ModelFacts) -> Iterator[TypeChoice]:
    """A type for each tensor, in order, with the rule that chose it and the type it fell back from.

    Errors: EncodeError when a tensor's name contradicts the model's number of layers.
    """
    mix = _Mix(recipe, tensors, facts)
    for tensor in tensors:
        if not allows_quantization(tensor.name, tensor.shape):
            yield TypeChoice(qtype=tensor.qtype, reason="not quantized")
            continue
        wanted, reason = mix.choose(tensor)
        qtype = fallback(wanted, tensor.shape[-1])
        if qtype != wanted:
            columns = tensor.shape[-1]
            block = GGML_TYPES[wanted].block_size
            yield TypeChoice(
                qtype=qtype,
                reason=f"{reason}; rows of {columns} are no multiple of {block}, so {wanted} gives way to {qtype}",
                fallback_from=wanted,
            )
        else:
            yield TypeChoice(qtype=qtype, reason=reason)
