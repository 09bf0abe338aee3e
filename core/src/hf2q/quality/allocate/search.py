"""One source, measured: which type each tensor gets so that the file keeps to a budget."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from math import prod

import msgspec

from hf2q.codec import thread_count
from hf2q.convert.choices import Planned
from hf2q.convert.hub_source import find_reference
from hf2q.convert.importance import Importance
from hf2q.convert.metadata import default_name
from hf2q.convert.names import find_recipe
from hf2q.convert.prepare import Request, prepare
from hf2q.errors import UsageError
from hf2q.formats.ggml_types import row_bytes
from hf2q.formats.gguf.encode import encode_field
from hf2q.formats.gguf.layout import DEFAULT_ALIGNMENT, FIXED_HEADER, padded
from hf2q.plugins import Plugins
from hf2q.quality.allocate.budget import Budget
from hf2q.quality.allocate.candidates import candidates, mix_for
from hf2q.quality.allocate.measure import losses
from hf2q.quality.allocate.sensitivity import Text, Trial, measured_weights
from hf2q.quality.allocate.solve import Option, Solution, solve
from hf2q.quality.allocate.types_file import pattern_for
from hf2q.quality.allocate.weigh import drafting_blocks, tensor_weights
from hf2q.types import PolicyOptions, Record, Shape, TensorChoiceInput, TypeChoice

BASE = "q8_0"
"""The recipe that says what is quantized at all: no type that it gives needs importance."""

Report = Callable[[str, int, int], None]
"""Called with what is at work, how much is done, and how much there is: tensors, or bytes that are downloaded."""


class Tried(Record, frozen=True, kw_only=True):
    """A tensor in one type: bytes, and the share that is lost."""

    qtype: str
    nbytes: int
    loss: float


class Chosen(Record, frozen=True, kw_only=True):
    """One tensor of the output. `tried` is empty where there was no choice; `loss` counts `weight` times."""

    name: str
    shape: Shape
    qtype: str
    nbytes: int
    loss: float = 0.0
    weight: float = 1.0
    tried: tuple[Tried, ...] = ()


class Found(Record, frozen=True, kw_only=True):
    """What a search came to.

    asked    as it was asked for;  recipe  whose name and file type the output has
    tensors  in file order;  budget  bytes that all of them might take;  nbytes  that they take
    loss     the sum over tensors;  bound  what no choice within the budget can be below;  exact  nor below `loss`
    name     the usual name of the output, without its ending
    """

    asked: str
    recipe: str
    tensors: tuple[Chosen, ...]
    budget: int
    nbytes: int
    parameters: int
    loss: float
    bound: float
    exact: bool
    name: str

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The choice as `PolicyOptions.tensor_types`."""
        return tuple((pattern_for(one.name), one.qtype) for one in self.tensors if one.tried)


def search(
    source: str | os.PathLike[str] | None,
    budget: Budget,
    *,
    repo: str | None = None,
    revision: str | None = None,
    via: str = "auto",
    mtp: bool = True,
    pre: str | None = None,
    importance: Importance | None = None,
    allow_requantize: bool = False,
    threads: int | None = None,
    plugins: Plugins | None = None,
    report: Report | None = None,
    downloading: Report | None = None,
    text: Text | None = None,
) -> Found:
    """Measure every tensor that is quantized in every type that suits it, and choose; parameters as for `convert`.

    text  for the second pass (`sensitivity`), which is left out without one

    Errors: UsageError for a budget below the smallest choice or above the largest, with both; what planning and
    encoding raise.
    """
    workers = thread_count(threads)
    plugins = Plugins.load() if plugins is None else plugins
    seen: list[tuple[TensorChoiceInput, TypeChoice]] = []

    def look(tensors: Sequence[TensorChoiceInput], choices: Sequence[TypeChoice]) -> Sequence[TypeChoice]:
        seen.extend(zip(tensors, choices, strict=True))
        return choices

    request = Request(
        recipe=find_recipe(plugins, BASE),
        options=PolicyOptions(),
        via=via,
        mtp=mtp,
        pre=pre,
        allow_requantize=allow_requantize,
        retype=look,
    )
    reference = find_reference(source, repo, revision)
    place = reference if reference is not None or source is None else os.fspath(source)
    assert place is not None
    with prepare(place, request, plugins, progress=downloading) as prepared:
        planned = prepared.planned
        known = _known(seen, importance)
        table: list[tuple[Chosen, ...]] = []
        weights = tensor_weights(planned.plan)
        for number, ((tensor, choice), weight) in enumerate(zip(seen, weights, strict=True)):
            if report is not None:
                report(tensor.name, number, len(seen))
            table.append(_options(tensor, choice, weight, planned, importance, plugins, workers))
    if text is not None:
        drafting = drafting_blocks(planned.plan)
        trials = [
            _trial(tensor, options, drafting, tensor.name in known)
            for (tensor, _), options in zip(seen, table, strict=True)
            if options[0].tried
        ]
        counted = measured_weights(
            source,
            trials,
            text,
            repo=repo,
            revision=revision,
            via=via,
            pre=pre,
            importance=importance,
            allow_requantize=allow_requantize,
            threads=threads,
            plugins=plugins,
            report=report,
        )
        table = [
            tuple(msgspec.structs.replace(one, weight=counted.get(one.name, one.weight)) for one in options)
            for options in table
        ]
    budget_bytes = budget.for_tensors(planned.plan.parameters, _overhead(planned))
    solution = _solved(table, budget, budget_bytes, planned.plan.parameters)
    picked = tuple(options[pick] for options, pick in zip(table, solution.picks, strict=True))
    return Found(
        asked=budget.text,
        recipe=mix_for((one.qtype, prod(one.shape)) for one in picked if one.tried),
        tensors=picked,
        budget=budget_bytes,
        nbytes=sum(one.nbytes for one in picked),
        parameters=planned.plan.parameters,
        loss=solution.error,
        bound=solution.bound,
        exact=solution.exact,
        name=default_name(planned.plan.metadata, budget.text.replace("=", "-")),
    )


def _known(seen: Sequence[tuple[TensorChoiceInput, TypeChoice]], importance: Importance | None) -> frozenset[str]:
    """Names of the tensors whose importance is known. Errors: UsageError when there is a matrix and it knows none."""
    if importance is None:
        return frozenset()
    known = frozenset(one.name for one, _ in seen if importance.weights(one.name, one.shape) is not None)
    if not known:
        raise UsageError(
            f"{importance.path} knows none of the tensors that are encoded",
            hint="the importance matrix was computed with another model; `hf2q imatrix show FILE` lists its entries",
        )
    return known


def _options(
    tensor: TensorChoiceInput,
    choice: TypeChoice,
    weight: float,
    planned: Planned,
    importance: Importance | None,
    plugins: Plugins,
    threads: int,
) -> tuple[Chosen, ...]:
    """The tensor as it may be: once, where it is not quantized."""
    rows, columns = prod(tensor.shape[:-1]), tensor.shape[-1]
    if choice.qtype == tensor.qtype:
        size = rows * row_bytes(choice.qtype, columns)
        return (Chosen(name=tensor.name, shape=tensor.shape, qtype=choice.qtype, nbytes=size),)
    known = None if importance is None else importance.weights(tensor.name, tensor.shape)
    codecs = [plugins.codec(name) for name in candidates(columns, plugins, weighted=known is not None)]
    found = losses(planned.rows(tensor.name), known, codecs, name=tensor.name, threads=threads)
    tried = tuple(
        Tried(qtype=codec.name, nbytes=rows * codec.row_bytes(columns), loss=loss)
        for codec, loss in zip(codecs, found, strict=True)
    )
    return tuple(
        Chosen(
            name=tensor.name,
            shape=tensor.shape,
            qtype=one.qtype,
            nbytes=one.nbytes,
            loss=one.loss,
            weight=weight,
            tried=tried,
        )
        for one in tried
    )


def _trial(tensor: TensorChoiceInput, options: Sequence[Chosen], drafting: tuple[str, ...], known: bool) -> Trial:
    """The tensor in the smallest type that is tried of those with more than four bits, or in the largest."""
    tried = options[0].tried
    enough = [one for one in tried if 8 * one.nbytes > 4 * prod(tensor.shape)] or tried[-1:]
    one = min(enough, key=lambda one: one.nbytes)
    return Trial(
        name=tensor.name,
        own=tensor.qtype,
        qtype=one.qtype,
        loss=one.loss,
        weight=options[0].weight,
        drafting=tensor.name.startswith(drafting),
        known=known,
    )


def _solved(table: Sequence[Sequence[Chosen]], budget: Budget, nbytes: int, parameters: int) -> Solution:
    size = _padded if budget.kind == "size" else _plain
    options = [[Option(nbytes=size(one), error=one.loss * one.weight) for one in tensor] for tensor in table]
    least, most = (sum(edge(option.nbytes for option in tensor) for tensor in options) for edge in (min, max))
    if not least <= nbytes <= most:
        extreme, other = ("less than the smallest", least) if nbytes < least else ("more than the largest", most)
        hint = f"between {_amount(least, parameters)} and {_amount(most, parameters)}"
        raise UsageError(
            f"--quant {budget.text} leaves {_amount(nbytes, parameters)} for the tensors, which is {extreme} choice "
            f"of types, {_amount(other, parameters)}",
            hint=hint + ("" if nbytes < least else "; --quant q8_0, bf16 or f32 make larger files"),
        )
    return solve(options, nbytes)


def _plain(one: Chosen) -> int:
    return one.nbytes


def _padded(one: Chosen) -> int:
    return padded(one.nbytes, DEFAULT_ALIGNMENT)


def _amount(nbytes: int, parameters: int) -> str:
    return f"{nbytes:,} bytes ({8 * nbytes / parameters:.2f} bits for each weight)"


def _overhead(planned: Planned) -> int:
    """At most so many bytes of a file are no tensors: keys and table, and what we write about its making.

    That is a pattern for each tensor, in which JSON may make three characters of one, and some short texts.
    """
    plan = planned.plan
    keys = sum(len(encode_field(field)) for field in plan.metadata)
    table = sum(len(tensor.name) + 8 + 4 + 8 * 4 + 4 + 8 for tensor in plan.tensors)
    making = 4096 + sum(3 * len(tensor.name) + 32 for tensor in plan.tensors)
    return padded(FIXED_HEADER + keys + table + making, DEFAULT_ALIGNMENT)
