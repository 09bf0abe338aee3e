"""The plan of a multimodal projector: the vision tower of a checkpoint, which GGUF keeps in a file of its own.

It equals what llama.cpp's convert_hf_to_gguf.py writes with ``--mmproj``. Source: conversion/base.py, `MmprojModel`
(keys, types, name), and `ModelBase.prepare_tensors`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hf2q.catalog import Claim, claim
from hf2q.convert.choices import QUANTIZATION_VERSION, Planned, Retype, Wanted, plan_tensors
from hf2q.convert.family import completed
from hf2q.convert.metadata import default_name, general_metadata
from hf2q.convert.names import find_recipe
from hf2q.convert.source import MAX_CONFIG_BYTES, Source
from hf2q.convert.tensors import INTERMEDIATES, automatic, build_rows, in_converter_order, kept
from hf2q.errors import ConfigError, ContractError, UsageError
from hf2q.formats.gguf.layout import DEFAULT_ALIGNMENT
from hf2q.formats.strict_json import parse
from hf2q.formats.tokenizer.files import read_bounded
from hf2q.plugins import Plugins
from hf2q.types import HParams, MetadataField, ModelFacts, Plan, Recipe, TensorCatalog, TensorSpec, TypeChoice, resolve

ARCH, TYPE, PREFIX = "clip", "mmproj", "mmproj-"
PREPROCESSOR = "preprocessor_config"
"""Key under which a projector's hparams find how images are prepared, beside the keys of config.json."""

SECTIONS = (("preprocessor_config.json", "media_proc_cfg"), ("processor_config.json", "image_processor"))
"""Files that say how images are prepared, with the section that is lifted to the top; the later one wins."""

LIKE_F16 = (".patch_embd.weight", ".patch_merger.weight")
"""Parts of names of convolutions, which are F16 in an F16 file and F32 in any other."""


def make_projector_plan(
    source: Source, recipe: Recipe, plugins: Plugins, retype: Retype | None = None, name: str | None = None
) -> Planned:
    """Decide everything about the projector's file, whose type follows from the text model's `recipe`; `retype` has the
    last word on types of tensors, `name` stands in for the directory's.

    Errors: UsageError when the checkpoint has no tower, or its family no projector; UnknownNameError when the plugin
    with the projector is not installed; ConfigError and TensorMismatchError for a tower that is not understood.
    """
    source = completed(source, plugins)
    family = plugins.arch_for(source.hf_architecture)
    if not family.projector:
        raise UsageError(
            f"--mmproj: {family.arch} models have no projector that could be written", hint="leave --mmproj out"
        )
    entry = plugins.projector(family.projector)
    if not any(isinstance(source.config.get(key), Mapping) for key in ("vision_config", "audio_config")):
        raise _no_tower(source, "its config.json has no vision_config")
    tensors = source.checkpoint.tensors
    config = {**source.config, PREPROCESSOR: read_preprocessor(source.directory)}
    hparams: HParams = resolve(entry.hparams).from_config(config, tensors.values(), mtp=True)
    catalog = plugins.catalog(entry.catalog)
    specs = catalog.expand(hparams)
    if not _holds_any(catalog, specs, tensors):
        raise _no_tower(source, "it has no tensor of one, though its config.json has a vision_config")
    claims = claim(catalog, specs, tensors.values())
    ordered = in_converter_order(claims.claimed, tensors)
    for one in ordered:
        build_rows(one, source.checkpoint, hparams)  # here, so that a wrong shape is found before anything is written
    left_out = {name for name, _ in claims.ignored}
    kind = _type(recipe, automatic([tensor for name, tensor in tensors.items() if name not in left_out]))
    plain = find_recipe(plugins, kind)
    wanted = [_wanted(one, kind) for one in ordered]
    inputs = [one.choice_input for one in wanted]
    choices: Sequence[TypeChoice] = plain.choose(inputs, ModelFacts(arch=ARCH, n_layer=len(hparams.layer_kinds)))
    if retype is not None:
        choices = retype(inputs, choices)
    described = general_metadata(source.directory, source.config, [(c.spec.name, c.spec.shape) for c in ordered], name)
    plan = Plan(
        arch=ARCH,
        recipe=kind,
        via=kind,
        metadata=_metadata(entry.name, plain, described, hparams.metadata()),
        tensors=plan_tensors(wanted, choices, plain, plugins, importance=None, alignment=DEFAULT_ALIGNMENT),
        ignored=claims.ignored,
    )
    by_name = {c.spec.name: c for c in ordered}
    return Planned(plan=plan, rows=lambda name: build_rows(by_name[name], source.checkpoint, hparams))


def read_preprocessor(directory: Path) -> dict[str, Any]:
    """How images are prepared: the files of `SECTIONS` as one object, empty when there are none.

    Errors: ConfigError for a file that holds no object; FormatError, SourceError.
    """
    merged: dict[str, Any] = {}
    for name, section in SECTIONS:
        path = directory / name
        data = read_bounded(path, MAX_CONFIG_BYTES)
        if data is None:
            continue
        found = parse(data, str(path))
        inner = found.get(section, {}) if isinstance(found, dict) else None
        if not isinstance(found, dict) or not isinstance(inner, dict):
            raise ConfigError(f"{path} holds something else than an object, or in {section}")
        merged |= {**found, **inner}
    return merged


def names_projector(output: Path) -> bool:
    """Whether a file of this name is meant to be a projector."""
    return TYPE in output.name and not output.is_dir()


def projector_path(model: Path, plan: Plan, suffix: str, *, default: bool) -> Path:
    """Where the projector goes, beside the file `model` of the text model.

    A name that the user gave is prefixed (`ModelBase.add_prefix_to_filename`); for a `default` one the projector has
    its own, which says its own type and no size (`MmprojModel.prepare_metadata`).
    """
    name = f"{default_name(plan.metadata, plan.recipe, size=False)}{suffix}" if default else model.name
    return model.with_name(f"{PREFIX}{name}")


def together(model: Planned, projector: Planned) -> Planned:
    """Both as one stream of tensors, the model's first; only their order and sizes count in such a plan."""
    mine = {tensor.name for tensor in projector.plan.tensors}
    plan = msgspec.structs.replace(model.plan, tensors=(*model.plan.tensors, *projector.plan.tensors))
    return Planned(
        plan=plan,
        rows=lambda name: (projector if name in mine else model).rows(name),
        importance=model.importance,
        held=max(model.held, projector.held),
    )


def _no_tower(source: Source, why: str) -> UsageError:
    return UsageError(
        f"--mmproj: {source.directory} has no vision tower: {why}",
        hint="leave --mmproj out, or convert the multimodal checkpoint that this one was made from",
    )


def _holds_any(catalog: TensorCatalog, specs: Iterable[TensorSpec], names: Iterable[str]) -> bool:
    known = {name for spec in specs for names in spec.inputs for name in names}
    for name in names:
        short = name
        for part in catalog.strip:
            short = short.replace(part, "", 1)
        if short in known:
            return True
    return False


def _type(recipe: Recipe, auto: str) -> str:
    """A projector is not quantized: its type is the recipe's where that is a plain one, else F16."""
    if recipe.name == "auto":
        return auto
    return recipe.name if recipe.name in INTERMEDIATES else "f16"


def _wanted(one: Claim, kind: str) -> Wanted:
    own, why = kept(one)
    if len(one.spec.shape) > 1 and any(part in one.spec.name for part in LIKE_F16):
        own, why = ("F16" if kind == "f16" else "F32"), "a convolution"
    return Wanted(
        name=one.spec.name,
        shape=one.spec.shape,
        qtype=own or kind.upper(),
        inputs=one.inputs,
        transform=one.spec.rule.transform,
        kept=why,
    )


def _metadata(
    name: str, recipe: Recipe, described: Iterable[MetadataField], own: Iterable[MetadataField]
) -> tuple[MetadataField, ...]:
    file_type = MetadataField.u32("general.file_type", recipe.ftype)
    fields = (
        MetadataField.string("general.architecture", ARCH),
        MetadataField.string("general.type", TYPE),
        *described,
        *(file_type if field.key == file_type.key else field for field in own),
        QUANTIZATION_VERSION,
    )
    keys = {field.key for field in fields}
    if len(keys) != len(fields) or file_type.key not in keys:
        raise ContractError(f"the hparams of the projector {name} write a key twice, or leave out {file_type.key}")
    return fields
