"""How mlx-lm calls the tensors of a checkpoint, and what it does to them before they are saved.

A family gives, for each checkpoint tensor, the `Part`s of the MLX model that come of it, or why none do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from hf2q.errors import TensorMismatchError
from hf2q.types import Record, Shape, TensorInfo

Kind: TypeAlias = Literal["matrix", "plain"]


class Part(Record, frozen=True, kw_only=True):
    """One MLX tensor, or one expert's share of it.

    name    mlx-lm's, with ``.weight`` at its end for weights of modules
    kind    ``matrix`` for what mlx-lm can quantize: linear layers, embeddings, stacks of experts
    change  ``plus_one`` (a norm), ``channels_last`` (a convolution), ``first_half`` or ``second_half`` of the rows of
            each matrix, or "" for none
    keep    whether the dtype of the checkpoint stays, whatever the model's is
    expert  its place in the stack, when a checkpoint has experts one by one
    """

    name: str
    kind: Kind = "plain"
    change: str = ""
    keep: bool = False
    expert: int | None = None


Mapped: TypeAlias = tuple[Part, ...] | str
"""The parts, or the reason why mlx-lm leaves the tensor out."""

Names: TypeAlias = Callable[[TensorInfo, Mapping[str, Any]], Mapped]
"""A tensor of the checkpoint and the whole config.json -> what becomes of it."""


class Family(Record, frozen=True, kw_only=True):
    """What mlx-lm knows of a family.

    names     what becomes of each tensor
    model_types  of config.json that mlx-lm has a model for
    keys      of config.json: those that mlx-lm needs there, made from the whole config.json
    source    where in mlx-lm it was read
    """

    names: Names
    model_types: tuple[str, ...]
    keys: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    source: str


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part about the text model; the whole where there is no other."""
    found = config.get("text_config")
    return found if isinstance(found, Mapping) else config


def ties_embeddings(config: Mapping[str, Any], *, default: bool) -> bool:
    """Whether the output head is the embedding, as mlx-lm reads it: from the text model's part."""
    return bool(text_config(config).get("tie_word_embeddings", default))


def halves(prefix: str, names: Sequence[str]) -> tuple[Part, ...]:
    """Gate and up of experts, whose rows a checkpoint has together."""
    first, second = (f"{prefix}.{name}.weight" for name in names)
    return (
        Part(name=first, kind="matrix", change="first_half"),
        Part(name=second, kind="matrix", change="second_half"),
    )


def changed_shape(tensor: TensorInfo, part: Part) -> Shape:
    """The shape after a part's change. Errors: TensorMismatchError for a shape that it is not for."""
    shape = tensor.shape
    if part.change == "channels_last" and len(shape) == 3 and shape[1] == 1:
        return (shape[0], shape[2], shape[1])
    if part.change in ("first_half", "second_half") and len(shape) > 1 and shape[-2] % 2 == 0:
        return (*shape[:-2], shape[-2] // 2, shape[-1])
    if part.change in ("", "plus_one") and shape and (part.kind == "plain" or len(shape) > 1):
        return shape
    raise TensorMismatchError(f"{tensor.name} has the shape {shape}, of which {part.name} cannot be made")
