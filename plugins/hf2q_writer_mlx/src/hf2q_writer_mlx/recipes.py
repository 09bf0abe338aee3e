"""What ``--quant`` may be called with ``--format mlx``, and which bits each module gets."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hf2q.errors import UnknownNameError
from hf2q.types import ModelFacts, PolicyOptions, Recipe, TensorChoiceInput, TypeChoice
from hf2q_writer_mlx.codec import BITS, GROUPS, affine_name

DEFAULT_GROUP = 64
FLOATS = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
MIXED = {"2-6": (2, 6), "3-4": (3, 4), "3-6": (3, 6), "4-6": (4, 6)}
"""Low and high bits. Source: mlx_lm/convert.py, `mixed_quant_predicate_builder`."""
AUTO = "auto"
"""As the checkpoint has it: a GGUF file's own codes, a checkpoint's own floats."""

_BITS = re.compile(r"([234568])-?bit(?:-g(32|64|128))?")
_MIXED = re.compile(r"mixed[-_]([234])[-_]([46])(?:-g(32|64|128))?")
ROUTERS = ("mlp.gate", "shared_expert_gate", "router.proj")
"""Ends of modules that choose experts: 8 bits in groups of 64. Source: mlx_lm/models/{qwen3_5,gemma4_text}.py,
`quant_predicate`."""
ROUTER_BITS, ROUTER_GROUP = 8, 64


def find(name: str) -> Recipe:
    """The recipe of this name. Errors: UnknownNameError saying which there are."""
    wanted = name.lower()
    if wanted in FLOATS or wanted == AUTO:
        return _recipe(wanted, FLOATS.get(wanted, ""), quantizes=False)
    if plain := _BITS.fullmatch(wanted):
        bits, group = int(plain[1]), int(plain[2] or DEFAULT_GROUP)
        return _recipe(f"{bits}bit-g{group}", affine_name(bits, group, "BF16"), quantizes=True)
    mixed = _MIXED.fullmatch(wanted)
    if mixed is not None and (kind := f"{mixed[1]}-{mixed[2]}") in MIXED:
        group = int(mixed[3] or DEFAULT_GROUP)
        return _recipe(f"mixed-{kind}-g{group}", affine_name(MIXED[kind][0], group, "BF16"), quantizes=True)
    widths, groups = ",".join(map(str, BITS)), ",".join(map(str, GROUPS))
    raise UnknownNameError(
        f"no quant {name!r} for --format mlx (there: {{{widths}}}bit[-g{{{groups}}}], "
        f"mixed-{{{','.join(MIXED)}}}[-g…], f16, bf16, f32, auto)",
        hint="--quant 4bit is what mlx-lm writes when nothing is asked for; the mixes of GGUF go with --format gguf",
    )


def _recipe(name: str, default: str, *, quantizes: bool) -> Recipe:
    return Recipe(name=name, ftype=0, default=default, policy="hf2q_writer_mlx.recipes:choose", quantizes=quantizes)


def bits_and_group(recipe: Recipe) -> tuple[int, int]:
    """What modules get that nothing is said about: ``quantization`` of config.json. For recipes that quantize."""
    if found := _MIXED.fullmatch(recipe.name):
        return 4, int(found[3])
    found = _BITS.fullmatch(recipe.name)
    assert found is not None, recipe.name
    return int(found[1]), int(found[2])


def choose(
    recipe: Recipe, tensors: Sequence[TensorChoiceInput], facts: ModelFacts, options: PolicyOptions
) -> list[TypeChoice]:
    """Types of modules that can be quantized, named as in mlx-lm; `tensors[i].qtype` is the float type of the model.

    A row that no group divides stays as it is, as in mlx_lm/utils.py, `quantize_model`.
    """
    mixed = _MIXED.fullmatch(recipe.name)
    _, group = bits_and_group(recipe)
    place = _layer_place([one.name for one in tensors])
    choices = []
    for one in tensors:
        path = one.name.removesuffix(".weight")
        bits, own, reason = bits_and_group(recipe)[0], group, "the recipe"
        if mixed is not None:
            high = _is_high(path, place, facts.n_layer)
            bits, reason = int(mixed[2 if high else 1]), "mixed: more bits here" if high else "mixed"
        elif path.endswith(ROUTERS):
            bits, own, reason = ROUTER_BITS, ROUTER_GROUP, "chooses experts"
        qtype = affine_name(bits, own, one.qtype)
        wrong = next((size for size in (group, own) if one.shape[-1] % size), None)
        if wrong is not None:
            reason = f"{one.shape[-1]} columns are no multiple of {wrong}"
            choices.append(TypeChoice(qtype=one.qtype, reason=reason, fallback_from=qtype))
        else:
            choices.append(TypeChoice(qtype=qtype, reason=reason))
    return choices


def _layer_place(names: Sequence[str]) -> int:
    """Which part of a dotted name is the number of the layer."""
    for name in names:
        if "down_proj" in name:
            return next((at for at, part in enumerate(name.split(".")) if part.isdigit()), 0)
    return 0


def _is_high(path: str, place: int, n_layer: int) -> bool:
    parts = path.split(".")
    index = int(parts[place]) if len(parts) > place and parts[place].isdigit() else 0
    more = index < n_layer // 8 or index >= 7 * n_layer // 8 or (index - n_layer // 8) % 3 == 2
    named = any(part in path for part in ("v_proj", "v_a_proj", "v_b_proj", "down_proj"))
    return (named and more) or "lm_head" in path
