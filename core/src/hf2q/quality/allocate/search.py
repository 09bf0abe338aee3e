"""One source, measured: which type each tensor gets so that the file keeps to a budget."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from math import prod

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
from hf2q.quality.allocate.choose import by_text, by_weights, solved
from hf2q.quality.allocate.found import Chosen, Found, Tried
from hf2q.quality.allocate.measure import losses
from hf2q.quality.allocate.mixes import facts_of, fixed_mixes, picks_of
from hf2q.quality.allocate.sensitivity import Text, compared
from hf2q.quality.allocate.weigh import drafting_blocks, tensor_weights
from hf2q.types import PolicyOptions, TensorChoiceInput, TypeChoice

BASE = "q8_0"
"""The recipe that says what is quantized at all: no type that it gives needs importance."""

Report = Callable[[str, int, int], None]
"""Called with what is at work, how much is done, and how much there is: tensors, or bytes that are downloaded."""


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
        if importance is not None:
            importance.check_names({tensor.name for tensor in planned.plan.tensors})
        table: list[tuple[Chosen, ...]] = []
        weights = tensor_weights(planned.plan)
        for number, ((tensor, choice), weight) in enumerate(zip(seen, weights, strict=True)):
            if report is not None:
                report(tensor.name, number, len(seen))
            table.append(_options(tensor, choice, weight, planned, importance, plugins, workers))
    inputs = [tensor for tensor, _ in seen]
    names = [tuple(one.qtype for one in options) for options in table]
    fixed = fixed_mixes(inputs, facts_of(planned.plan), plugins, has_imatrix=importance is not None)
    mixes = {name: picks for name, types in fixed.items() if (picks := picks_of(types, names)) is not None}
    parameters = planned.plan.parameters
    limit = budget.for_tensors(parameters, _overhead(planned))
    if text is None:
        outcome = by_weights(table, mixes, budget, limit, parameters)
    else:
        solved(table, budget, limit, parameters)  # a budget that cannot be kept is refused before a file is written
        with compared(
            source,
            {tensor.name: tensor.qtype for tensor, options in zip(inputs, table, strict=True) if options[0].tried},
            text,
            repo=repo,
            revision=revision,
            via=via,
            pre=pre,
            importance=importance,
            known=known,
            allow_requantize=allow_requantize,
            threads=threads,
            plugins=plugins,
        ) as diverge:
            drafting = drafting_blocks(planned.plan)
            outcome = by_text(table, mixes, budget, limit, parameters, drafting, diverge, report)
    picked = outcome.chosen
    return Found(
        asked=budget.text,
        recipe=mix_for((one.qtype, prod(one.shape)) for one in picked if one.tried),
        tensors=picked,
        budget=limit,
        nbytes=sum(one.nbytes for one in picked),
        parameters=parameters,
        loss=outcome.loss,
        bound=outcome.solution.bound,
        exact=outcome.solution.exact and outcome.picks == outcome.solution.picks,
        name=default_name(planned.plan.metadata, budget.text.replace("=", "-")),
        rivals=outcome.rivals,
        divergence=outcome.divergence,
        winner=outcome.winner,
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


def _overhead(planned: Planned) -> int:
    """At most so many bytes of a file are no tensors: keys and table, and what we write about its making.

    That is a pattern for each tensor, in which JSON may make three characters of one, and some short texts.
    """
    plan = planned.plan
    keys = sum(len(encode_field(field)) for field in plan.metadata)
    table = sum(len(tensor.name) + 8 + 4 + 8 * 4 + 4 + 8 for tensor in plan.tensors)
    making = 4096 + sum(3 * len(tensor.name) + 32 for tensor in plan.tensors)
    return padded(FIXED_HEADER + keys + table + making, DEFAULT_ALIGNMENT)
