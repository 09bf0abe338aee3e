"""How a prepared conversion is made, in the words of `provenance`: which program, source, recipe and options."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

import hf2q
from hf2q.convert.choices import Planned
from hf2q.convert.prepare import Prepared, Request
from hf2q.convert.projector import ARCH as PROJECTOR
from hf2q.convert.provenance import Provenance, Settings, SourceName, readable, with_provenance
from hf2q.types import Plan


def settings_of(request: Request, include_weights: Sequence[str], exclude_weights: Sequence[str]) -> Settings:
    """What of a request has to be known to make the same file again."""
    options = request.options
    return Settings(
        pure=options.pure,
        output_tensor_type=options.output_tensor_type,
        token_embedding_type=options.token_embedding_type,
        tensor_types=options.tensor_types,
        leave_output_tensor=options.leave_output_tensor,
        include_weights=tuple(include_weights),
        exclude_weights=tuple(exclude_weights),
        via=request.via,
        mtp=request.mtp,
        pre=request.pre,
        keep_split=request.keep_split,
    )


def source_name(prepared: Prepared) -> SourceName:
    """Which source it is."""
    origin = prepared.origin
    if origin is not None:
        return SourceName(kind="hub", name=origin.canonical, revision=origin.commit)
    if prepared.folder is not None:
        whole = Path(os.path.abspath(prepared.folder))  # noqa: PTH100 - as for general.name: "." resolved, but no links
        return SourceName(kind="local", name=readable(whole.name or "/"))
    return SourceName(kind="gguf", name=readable(prepared.files[0].name))


def provenance_of(source: SourceName, plan: Plan, recipe: str, settings: Settings, imatrix: str) -> Provenance:
    """How the file of `plan` is made.

    What is asked of the text model decides nothing about a projector, which has its type for a recipe.
    """
    alone = plan.arch == PROJECTOR
    return Provenance(
        version=hf2q.__version__,
        source=source,
        recipe=plan.recipe if alone else recipe,
        via=plan.via,
        settings=Settings() if alone else settings,
        imatrix="" if alone else imatrix,
    )


def role_of(plan: Plan) -> Literal["model", "projector"]:
    """What the file of a plan is, as a receipt says it."""
    return "projector" if plan.arch == PROJECTOR else "model"


def stamped(prepared: Prepared, recipe: str, settings: Settings, imatrix: str) -> Prepared:
    """The same, with our keys in every plan. `imatrix` is the SHA-256 of the importance matrix, or ""."""
    source = source_name(prepared)

    def stamp(planned: Planned) -> Planned:
        made = provenance_of(source, planned.plan, recipe, settings, imatrix)
        plan = msgspec.structs.replace(planned.plan, metadata=with_provenance(planned.plan.metadata, made))
        return msgspec.structs.replace(planned, plan=plan)

    other = prepared.projector
    return msgspec.structs.replace(
        prepared, planned=stamp(prepared.planned), projector=None if other is None else stamp(other)
    )


def checkout_commit() -> str | None:
    """The Git commit that this program runs from, ``-dirty`` at its end when files were changed; None elsewhere."""
    package = Path(hf2q.__file__).resolve().parent
    root = package.parents[2]
    if package != root / "core" / "src" / "hf2q" or not (root / ".git").exists():
        return None
    words = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        told = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip() or None
