"""The policy of the standard recipes: one walk over a file, counting as llama-quantize counts.

What is the same for all recipes (what is quantized at all, options, shapes) is in `hf2q.policy`; what the mixes say is
in `mixes`. Here is what lies between: where in the model a tensor is, and the few rules about whole models.

Source: llama.cpp, src/llama-quant.cpp, `llama_tensor_get_type_impl` and `init_quantize_state_counters`;
src/models/{llama,qwen2,deci,olmo,jais2}.cpp (what counts as a 70B model).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from hf2q.errors import TensorMismatchError
from hf2q.policy import Role, choose_types, fits, role_of
from hf2q.types import ModelFacts, PolicyOptions, Recipe, TensorChoiceInput, TypeChoice
from hf2q_quant_kquant.mixes import FALCON, MIXES, SMALLEST, Case, Place

WORDS: Mapping[Role, str] = MappingProxyType(
    {
        "token_embd": "token embeddings",
        "attn_v": "attention value",
        "attn_k": "attention key",
        "attn_q": "attention query",
        "attn_output": "attention output",
        "ffn_up": "ffn_up",
        "ffn_gate": "ffn_gate",
        "ffn_down": "ffn_down",
    }
)
"""Roles as reasons name them."""

EIGHT_BITS_IN_GLM5 = ("attn_q_a", "attn_q_b", "nextn.eh_proj")
"""Parts of names of tensors that no mix makes smaller in the arch glm5-next."""

LAYERS_OF_70B: Mapping[str, int] = MappingProxyType(
    {"llama": 80, "llama-embed": 80, "qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}
)
"""Arch and number of layers of models whose value projections are small against the rest."""


def policy(
    recipe: Recipe, tensors: Sequence[TensorChoiceInput], facts: ModelFacts, options: PolicyOptions
) -> Iterator[TypeChoice]:
    """A type for each tensor, in file order, with the rule that chose it and the type it fell back from.

    Errors: UsageError for options that cannot be followed, and where an importance matrix is needed and there is none;
    TensorMismatchError when a tensor's name contradicts the model's number of layers.
    """
    return choose_types(recipe, tensors, facts, options, StandardMix(recipe, tensors, facts, options))


class StandardMix:
    """The mix of a standard recipe during one walk over a file; see `hf2q.policy.walk.Mix`."""

    def __init__(
        self, recipe: Recipe, tensors: Sequence[TensorChoiceInput], facts: ModelFacts, options: PolicyOptions
    ) -> None:
        self._recipe, self._facts, self._imatrix = recipe, facts, options.has_imatrix
        self._mixes = FALCON if facts.arch == "falcon" else MIXES
        roles = [role_of(tensor.name) for tensor in tensors]
        self._tied = "output" not in roles
        self._n_values = roles.count("attn_v")
        self._seen: dict[Role, int] = {}

    def __call__(self, tensor: TensorChoiceInput) -> tuple[str, str]:
        """The type before the shape is looked at, and the rule that chose it."""
        role = role_of(tensor.name)
        if self._facts.arch == "glm5-next" and any(part in tensor.name for part in EIGHT_BITS_IN_GLM5):
            return "Q8_0", "never smaller in glm5-next"
        if role == "output" or (role == "token_embd" and self._tied):
            return self._output("output" if role == "output" else "embeddings that stand in for the output", tensor)
        place = self._place(role, tensor.name)
        case = next((case for case in self._cases(role) if case.when.holds(place)), None)
        if case is None:
            qtype, reason = self._recipe.default, f"default of {self._recipe.name}"
        else:
            qtype, where = case.qtype, _where(role, place)
            reason = f"{where}: {case.when.words}" if case.when.words else f"{where} in {self._recipe.name}"
        if self._recipe.name not in SMALLEST:
            return self._for_model(role, qtype, reason)
        return qtype, reason

    def _cases(self, role: Role) -> tuple[Case, ...]:
        return self._mixes.get(role, {}).get(self._recipe.name, ())

    def _output(self, what: str, tensor: TensorChoiceInput) -> tuple[str, str]:
        default = self._recipe.default
        if self._facts.arch == "falcon":
            return "Q8_0", f"{what} in falcon"
        if not fits(default, tensor.shape[-1]):
            return "Q8_0", f"{what} whose rows do not fit {default}"
        cases = self._cases("output")
        return (cases[0].qtype if cases else "Q6_K"), what

    def _place(self, role: Role, name: str) -> Place:
        """Where a tensor is: the layer for feed-forward tensors, a running number for value projections."""
        facts = self._facts
        i, n = self._seen.get(role, 0), 0
        self._seen[role] = i + 1
        if role == "attn_v":
            n = self._n_values
        elif role in ("ffn_up", "ffn_gate", "ffn_down"):
            n = facts.n_layer
            if facts.n_expert > 1 and self._recipe.name not in SMALLEST:
                i = _layer_of(name, n)  # experts come in any number for a layer
        n_gqa = facts.n_head // facts.n_head_kv if facts.n_head_kv else 0
        return Place(i=i, n=n, n_gqa=n_gqa, n_expert=facts.n_expert, imatrix=self._imatrix)

    def _for_model(self, role: Role, qtype: str, reason: str) -> tuple[str, str]:
        """Rules about whole models, which come after those about recipes."""
        facts = self._facts
        if facts.n_expert == 8 and role in ("attn_v", "attn_k"):
            return "Q8_0", f"{WORDS[role]} of a model with 8 experts"
        # llama has two models of 80 layers, and only the smaller shares keys between heads
        large = LAYERS_OF_70B.get(facts.arch) == facts.n_layer and (
            not facts.arch.startswith("llama") or facts.n_head != facts.n_head_kv
        )
        if large and role == "attn_v" and qtype in ("Q3_K", "Q4_K"):
            return "Q5_K", f"{WORDS[role]} of a 70B model"
        return qtype, reason


def _where(role: Role, place: Place) -> str:
    if role == "attn_v":
        return f"{WORDS[role]} {place.i + 1} of {place.n}"
    if place.n:
        return f"{WORDS[role]} of layer {place.i} of {place.n}"
    return WORDS[role]


def _layer_of(name: str, n_layer: int) -> int:
    block = re.match(r"blk\.(\d+)", name)
    if block is None or int(block[1]) >= n_layer:
        raise TensorMismatchError(f"tensor {name!r} is in no layer of a model with {n_layer}")
    return int(block[1])
