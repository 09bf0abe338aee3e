"""Expanding a `TensorCatalog` for one model; with it, claiming a checkpoint's tensors and checking a GGUF file's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Protocol

from hf2q.errors import ContractError, LoadError, TensorMismatchError, listing
from hf2q.types import HParams, Record, Shape, TensorCatalog, TensorInfo, TensorRule, TensorSpec


def expand(catalog: TensorCatalog, hparams: HParams) -> tuple[TensorSpec, ...]:
    """Every tensor of a model: those outside blocks first, then block by block, rules in catalog order.

    Errors: ContractError when a rule names an unknown symbol or two rules make the same GGUF name.
    """
    kinds, symbols = hparams.layer_kinds, hparams.symbols
    rules = [rule for rule in catalog.rules if not rule.needs or _size(rule.needs, rule, symbols, catalog)]
    first_mtp = next((i for i, kind in enumerate(kinds) if kind.startswith("mtp")), len(kinds))
    specs = [_spec(rule, None, 0, symbols, catalog) for rule in rules if not rule.layers]
    for i, kind in enumerate(kinds):
        specs += [_spec(rule, i, i - first_mtp, symbols, catalog) for rule in rules if kind in rule.layers]
    seen: set[str] = set()
    for spec in specs:
        if spec.name in seen:
            raise ContractError(f"catalog {catalog.name!r} makes tensor {spec.name!r} twice")
        seen.add(spec.name)
    return tuple(specs)


def _spec(
    rule: TensorRule, block: int | None, mtp: int, symbols: Mapping[str, int], catalog: TensorCatalog
) -> TensorSpec:
    def name(template: str) -> str:
        return template.replace("{i}", str(block)).replace("{j}", str(mtp))

    shape: Shape = tuple(_size(size, rule, symbols, catalog) for size in rule.shape)
    inputs = []
    for alternative in rule.hf:
        names: list[str] = []
        for part in alternative.split("+"):
            if "{e}" in part:
                names += [name(part).replace("{e}", str(expert)) for expert in range(symbols["n_expert"])]
            else:
                names.append(name(part))
        inputs.append(tuple(names))
    return TensorSpec(name=name(rule.name), shape=shape, inputs=tuple(inputs), rule=rule, block=block)


def _size(size: str | int, rule: TensorRule, symbols: Mapping[str, int], catalog: TensorCatalog) -> int:
    if isinstance(size, int):
        return size
    if size not in symbols:
        raise ContractError(f"catalog {catalog.name!r}: rule {rule.name!r} uses the unknown symbol {size!r}")
    return symbols[size]


class Claim(Record, frozen=True, kw_only=True):
    """One GGUF tensor and the checkpoint tensors (by the checkpoint's own names) it is made from.

    `alternative` is the index in `TensorRule.hf` of the names that were found. A tensor that is made from hparams
    alone has no inputs.
    """

    spec: TensorSpec
    inputs: tuple[str, ...]
    alternative: int = 0

    @property
    def stacked(self) -> bool:
        """Whether it is put together from one tensor for each expert."""
        return bool(self.inputs) and "{e}" in self.spec.rule.hf[self.alternative]


class Claims(Record, frozen=True, kw_only=True):
    """What became of every checkpoint tensor: claimed, or ignored for a stated reason."""

    claimed: tuple[Claim, ...]
    ignored: tuple[tuple[str, str], ...]


def claim(
    catalog: TensorCatalog, specs: Iterable[TensorSpec], tensors: Iterable[TensorInfo], *, mtp: bool = True
) -> Claims:
    """Match a checkpoint against expanded specs; with `mtp` False those of MTP blocks count as ignored.

    Every checkpoint tensor is consumed, or named by an ignore rule; every spec that is not optional finds its inputs,
    and an optional one that finds some of them (experts, for example) finds all.
    One checkpoint tensor may feed several specs (a fused tensor that is split).

    Errors: TensorMismatchError listing all that is missing and all that is left over.
    """
    own_name: dict[str, str] = {}
    for tensor in tensors:
        short = tensor.name
        for prefix in catalog.strip:
            short = short.replace(prefix, "", 1)
        if short in own_name:
            raise TensorMismatchError(f"checkpoint tensors {own_name[short]!r} and {tensor.name!r} are the same tensor")
        own_name[short] = tensor.name
    used: set[str] = set()
    claimed, missing = [], []
    for spec in specs:
        if not spec.inputs:
            claimed.append(Claim(spec=spec, inputs=()))
            continue
        found = next((i for i, names in enumerate(spec.inputs) if names and own_name.keys() >= set(names)), None)
        if found is not None:
            used.update(spec.inputs[found])
            own = tuple(own_name[name] for name in spec.inputs[found])
            claimed.append(Claim(spec=spec, inputs=own, alternative=found))
        elif not spec.optional or any(own_name.keys() & set(names) for names in spec.inputs):
            # of several layouts the one that the checkpoint has most of is the one that is incomplete
            nearest = max(spec.inputs, key=lambda names: len(own_name.keys() & set(names)))
            missing.append((spec, [name for name in nearest if name not in own_name]))
    ignored, extra = [], []
    patterns = [(re.compile(pattern), reason) for pattern, reason in catalog.ignore]
    if catalog.mtp and not mtp:
        patterns.insert(0, (re.compile(catalog.mtp), "MTP, left out on request"))
    for short, name in own_name.items():
        if short in used:
            continue
        reason = next((reason for pattern, reason in patterns if pattern.match(short)), None)
        if reason is None:
            extra.append(name)
        else:
            ignored.append((name, reason))
    _refuse(catalog, missing, extra)
    return Claims(claimed=tuple(claimed), ignored=tuple(ignored))


def _refuse(catalog: TensorCatalog, missing: list[tuple[TensorSpec, list[str]]], extra: list[str]) -> None:
    if not (missing or extra):
        return
    lines = []
    if missing:
        wanted = [f"{spec.name} (from {listing(names, 3)})" for spec, names in missing]
        lines.append(f"{len(missing)} tensors that {catalog.name} needs are missing: {listing(wanted)}")
    if extra:
        lines.append(f"{len(extra)} checkpoint tensors are not known to {catalog.name}: {listing(extra)}")
    raise TensorMismatchError(
        "; ".join(lines), hint="the checkpoint is incomplete, or of a variant this plugin does not know"
    )


class Shaped(Protocol):
    """A tensor of a file."""

    @property
    def shape(self) -> Shape: ...


class Mismatch(Record, frozen=True, kw_only=True):
    """How the tensors of a GGUF file differ from what the family expects of it.

    missing, unknown  their names;  wrong  name and shapes of those that have another one
    """

    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    wrong: tuple[str, ...]

    def told(self, arch: str) -> str:
        """All of it in words, "" when nothing differs."""
        parts = (
            (self.missing, "tensors are missing"),
            (self.unknown, f"tensors are not known to {arch}"),
            (self.wrong, "tensors have another shape"),
        )
        return "; ".join(f"{len(names)} {what}: {listing(names)}" for names, what in parts if names)


def mismatch(tensors: Mapping[str, Shaped], specs: Iterable[TensorSpec]) -> Mismatch:
    """Compare a file's tensors with the expanded specs: all there, none unknown, each of its shape.

    Sizes of 1 do not count: writers differ in whether they keep them; nor do those that metadata do not state.
    """
    expected = {spec.name: spec for spec in specs}
    return Mismatch(
        missing=tuple(name for name, spec in expected.items() if not spec.optional and name not in tensors),
        unknown=tuple(name for name in tensors if name not in expected),
        wrong=tuple(
            f"{name} is {tensor.shape}, expected {expected[name].shape}"
            for name, tensor in tensors.items()
            if name in expected and _squeezed(tensor.shape) != _squeezed(_stated(expected[name], tensor.shape))
        ),
    )


def check_tensors(path: str, arch: str, tensors: Mapping[str, Shaped], specs: Iterable[TensorSpec]) -> None:
    """Errors: LoadError listing all that `mismatch` finds in the file `path`."""
    problems = mismatch(tensors, specs).told(arch)
    if problems:
        raise LoadError(
            f"{path}: {problems}",
            hint="the file is incomplete, of a variant this plugin does not know, or disagrees with its metadata",
        )


def _stated(spec: TensorSpec, found: Shape) -> Shape:
    """The expected shape, with the sizes found where metadata state none."""
    if not spec.rule.unstated or len(found) != len(spec.shape):
        return spec.shape
    sizes = zip(spec.rule.shape, spec.shape, found, strict=True)
    return tuple(own if symbol in spec.rule.unstated else size for symbol, size, own in sizes)


def _squeezed(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1)
