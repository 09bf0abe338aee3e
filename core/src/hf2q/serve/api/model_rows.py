"""The rows of ``/v1/models``: what can be said of a model in memory, from its file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hf2q.serve.api.schema import ModelRow

if TYPE_CHECKING:
    from hf2q.serve.model import Model

_PROVENANCE = ("version", "source.kind", "source.name", "source.revision", "recipe", "recipe_digest", "digest")
"""Of the keys that ``hf2q convert`` writes (docs/reference/provenance.md)."""


def row_of(id: str, created: int, model: Model) -> ModelRow:
    """The row of `model`, served as `id`. What its file does not say is not in it."""
    said = model.metadata.get
    fields: dict[str, Any] = {
        "quant_type": said("hf2q.recipe"),
        "quant_bpw": round(8 * model.file_size / model.parameters, 3) if model.parameters else None,
        "max_context_length": said(f"{model.arch}.context_length"),
        "moe_experts": said(f"{model.arch}.expert_count") or None,
        "moe_experts_per_tok": said(f"{model.arch}.expert_used_count") or None,
        "sliding_window": said(f"{model.arch}.attention.sliding_window") or None,
        "provenance": _provenance(model.metadata) or None,
        "hidden_size": said(f"{model.arch}.embedding_length"),
        "pooling": _pooling(model),
        "vision_projector": None if model.vision is None else True,
    }
    return ModelRow(
        id=id,
        created=created,
        loaded=True,
        task=model.task,
        arch=model.arch,
        backend=model.backend,
        context_length=model.context_length,
        input_modalities=("text",) if model.vision is None else ("text", "image"),
        **{name: value for name, value in fields.items() if value is not None},
    )


def _provenance(metadata: Mapping[str, Any]) -> dict[str, str]:
    found = {name: metadata.get(f"hf2q.{name}") for name in _PROVENANCE}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _pooling(model: Model) -> str | None:
    from hf2q.serve.pooling import stated

    return stated(model.metadata, model.arch)
