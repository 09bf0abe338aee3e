"""The plan of an MLX directory: which tensors, of which shapes and types, made of what.

The same as what mlx_lm.convert does: names and changes of mlx-lm's models, then the model's float type, then
quantization. Source: mlx_lm/convert.py, `convert`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

from hf2q.errors import TensorMismatchError, UnknownNameError, UsageError, listing
from hf2q.types import (
    CheckpointView,
    FormatPlan,
    GgufView,
    ModelFacts,
    Plan,
    Recipe,
    Record,
    Rows,
    Shape,
    TensorChoiceInput,
    TensorInfo,
    TensorPlan,
    TypeChoice,
)
from hf2q_writer_mlx import gemma4, qwen35
from hf2q_writer_mlx.codec import storage_codec
from hf2q_writer_mlx.config import quantization_of, text_files
from hf2q_writer_mlx.names import Family, Part, changed_shape, text_config
from hf2q_writer_mlx.recipes import FLOATS, find

FAMILIES: Mapping[str, Family] = {"qwen35": qwen35.FAMILY, "qwen35moe": qwen35.FAMILY, "gemma4": gemma4.FAMILY}
"""By GGUF arch."""
DTYPES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}
"""Source: mlx_lm/convert.py, `MODEL_CONVERSION_DTYPES`."""
PLAIN = frozenset(DTYPES.values())


class Made(Record, frozen=True, kw_only=True):
    """One MLX tensor: its parts in order, each with the tensor of the checkpoint that it is made of."""

    name: str
    parts: tuple[tuple[TensorInfo, Part], ...]

    @property
    def dtype(self) -> str:
        """The checkpoint's."""
        return self.parts[0][0].dtype

    @property
    def part(self) -> Part:
        """The first, which all others are like but for the expert."""
        return self.parts[0][1]

    @property
    def shape(self) -> Shape:
        """In MLX."""
        own = changed_shape(*self.parts[0])
        return own if self.part.expert is None else (len(self.parts), *own)


class MlxFormat:
    """``--format mlx``; see `hf2q.types.OutputFormat`."""

    def recipe(self, name: str) -> Recipe:
        """See `hf2q_writer_mlx.recipes.find`."""
        return find(name)

    def plan(self, source: CheckpointView, recipe: Recipe) -> FormatPlan:
        """Decide everything from headers. Errors: UnknownNameError for families that mlx-lm names are not known of."""
        family = _family(source)
        made, left_out = _made(source, family)
        model_type = _model_dtype(source.config, recipe)
        wanted = {one.name: _target(one, model_type) for one in made}
        chosen = _choices(made, wanted, source, recipe) if recipe.quantizes else {}
        tensors = tuple(_planned(made, wanted, chosen))
        quantization = quantization_of(recipe, tensors) if recipe.quantizes else None
        files = text_files(source.config, family.keys(source.config), quantization, source.text)
        plan = Plan(
            arch=source.arch,
            recipe=recipe.name,
            via="",
            metadata=tuple(files),
            tensors=tensors,
            ignored=(*source.left_out, *left_out),
        )
        by_name = {one.name: one for one in made}
        return FormatPlan(plan=plan, rows=lambda name: _rows(by_name[name], source), codec=storage_codec)

    def plan_gguf(self, source: GgufView, recipe: Recipe) -> FormatPlan:
        """The same from a GGUF file; see `hf2q_writer_mlx.from_gguf`."""
        from hf2q_writer_mlx.from_gguf import plan_gguf

        return plan_gguf(source, recipe, _family(source))


def _family(source: CheckpointView | GgufView) -> Family:
    family = FAMILIES.get(source.arch)
    if family is None:
        raise UnknownNameError(
            f"--format mlx does not know what mlx-lm calls the tensors of {source.arch} (known: {listing(FAMILIES)})",
            hint="--format gguf writes every family",
        )
    kind = source.config.get("model_type")
    if kind not in family.model_types:
        raise UsageError(
            f"config.json: model_type is {kind!r}, which mlx-lm has no model for "
            f"(of {source.arch}: {listing(family.model_types)})",
            hint="convert the checkpoint that this one was taken from, or write --format gguf",
        )
    return family


def _made(source: CheckpointView, family: Family) -> tuple[list[Made], list[tuple[str, str]]]:
    """Every MLX tensor in the order of the checkpoint, and what is left out."""
    found: dict[str, list[tuple[TensorInfo, Part]]] = {}
    left_out = []
    for tensor in source.tensors.values():
        mapped = family.names(tensor, source.config)
        if isinstance(mapped, str):
            left_out.append((tensor.name, mapped))
            continue
        for part in mapped:
            found.setdefault(part.name, []).append((tensor, part))
    return [Made(name=name, parts=_in_order(name, parts)) for name, parts in found.items()], left_out


def _in_order(name: str, parts: Sequence[tuple[TensorInfo, Part]]) -> tuple[tuple[TensorInfo, Part], ...]:
    ordered = sorted(parts, key=lambda pair: pair[1].expert or 0)
    experts = [part.expert for _, part in ordered]
    if experts != [None] and experts != [*range(len(experts))]:
        raise TensorMismatchError(
            f"{name} would be made of {listing([one.name for one, _ in parts], 3)}: experts "
            f"{listing(map(str, experts))}, expected 0 to {len(experts) - 1}"
        )
    strange = [one.name for one, _ in ordered if one.dtype not in PLAIN or one.dtype != ordered[0][0].dtype]
    shapes = {one.shape for one, _ in ordered}
    if strange or len(shapes) > 1:
        raise TensorMismatchError(
            f"{name} would be made of {listing(strange or [one.name for one, _ in ordered], 3)}, of dtypes "
            f"{listing({one.dtype for one, _ in ordered})} and shapes {listing(map(str, shapes), 3)}; expected one of "
            f"{listing(sorted(PLAIN))}, and one shape"
        )
    return tuple(ordered)


def _model_dtype(config: Mapping[str, Any], recipe: Recipe) -> str:
    """The float type of the model: as asked for, else config.json's, where mlx-lm looks for it; "" for none."""
    if recipe.name in FLOATS:
        return FLOATS[recipe.name]
    return DTYPES.get(str(config.get("torch_dtype") or text_config(config).get("dtype")), "")


def _target(one: Made, model_type: str) -> str:
    return one.dtype if one.part.keep or not model_type else model_type


def _layers(config: Mapping[str, Any]) -> int:
    found = text_config(config).get("num_hidden_layers")
    return found if isinstance(found, int) else 0


def _choices(
    made: Iterable[Made], wanted: Mapping[str, str], source: CheckpointView, recipe: Recipe
) -> dict[str, TypeChoice]:
    """What the recipe says of each tensor that can be quantized."""
    matrices = [one for one in made if one.part.kind == "matrix"]
    inputs = [TensorChoiceInput(name=one.name, shape=one.shape, qtype=wanted[one.name]) for one in matrices]
    facts = ModelFacts(arch=source.arch, n_layer=_layers(source.config))
    return {one.name: choice for one, choice in zip(matrices, recipe.choose(inputs, facts), strict=True)}


def _planned(made: Iterable[Made], wanted: Mapping[str, str], chosen: Mapping[str, TypeChoice]) -> Iterable[TensorPlan]:
    offset = 0
    for one in made:
        choice = chosen.get(one.name)
        own = wanted[one.name]
        reason = "the checkpoint's own type" if own == one.dtype else "the model's type"
        choice = choice or TypeChoice(qtype=own, reason=reason)
        shape = one.shape
        nbytes = prod(shape[:-1]) * storage_codec(choice.qtype).row_bytes(shape[-1])
        yield TensorPlan(
            name=one.name,
            shape=shape,
            qtype=choice.qtype,
            via=own,
            reason=choice.reason,
            nbytes=nbytes,
            offset=offset,
            inputs=tuple(tensor.name for tensor, _ in one.parts),
            transform=one.part.change,
            fallback_from=choice.fallback_from,
        )
        offset += nbytes


def _rows(one: Made, source: CheckpointView) -> Rows:
    from hf2q_writer_mlx.changes import changed, stacked

    parts = [changed(source.rows(tensor.name), tensor, part) for tensor, part in one.parts]
    return parts[0] if one.part.expert is None else stacked(parts)
