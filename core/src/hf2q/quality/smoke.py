"""A smoke run: does a family convert, load and answer here, twice the same? All with our own engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hf2q.errors import Hf2qError
from hf2q.formats.gguf import open_model
from hf2q.formats.whole import write_whole
from hf2q.quality import smoke_preflight as preflight
from hf2q.quality.smoke_preflight import NOT_PASSED, Step, Stopped, Wanted
from hf2q.quality.smoke_transcript import Said, first_difference, transcript
from hf2q.types import ArchEntry, Record

if TYPE_CHECKING:
    from hf2q.convert import Summary
    from hf2q.plugins import Plugins
    from hf2q.serve.model import Model
    from hf2q.types import Float32

TOKENS = 8

Tell = Callable[[Step], None]


class Planned(Record, frozen=True, kw_only=True):
    """What passed the preflight: the family, where the checkpoint comes from, and the conversion as planned."""

    entry: ArchEntry
    source: str
    summary: Summary


class Ran(Record, frozen=True, kw_only=True):
    """One prompt in one run: what was said, how many tokens came, and whether all logits were finite."""

    said: Said
    tokens: tuple[int, ...]
    finite: bool


def plan(
    wanted: Wanted,
    plugins: Plugins,
    tell: Tell,
    *,
    token: Callable[[], str | None],
    free: Callable[[Path], int | None] = preflight.free_disk,
) -> Planned:
    """The preflight, in the order of its exit codes' table; `tell` hears of each step that passes.

    token, free  where the Hub's token and the free disk are asked for
    Errors: Stopped; UnknownNameError for a recipe that nobody provides.
    """
    from hf2q.convert import convert
    from hf2q.convert.names import find_recipe

    entry = preflight.find_arch(wanted, plugins)
    tell(Step(step="arch", found=entry.arch))
    find_recipe(plugins, wanted.quant)
    if wanted.local is None:
        tell(preflight.check_token(token))
    floor = entry.disk_floor_gb + preflight.RESERVE_GB if wanted.disk_gb is None else wanted.disk_gb
    tell(preflight.check_disk(free(wanted.folder), floor, wanted.folder))
    tell(preflight.check_engine(wanted, plugins))
    source = str(wanted.local) if wanted.local is not None else preflight.repository_of(wanted, entry)

    def planned() -> Summary:
        local = wanted.local is not None
        return convert(
            source if local else None,
            wanted.quant,
            output_of(wanted),
            repo=None if local else source,
            threads=wanted.threads,
            dry_run=True,
            plugins=plugins,
        )

    step, summary = preflight.check_source(wanted, source, planned)
    tell(step)
    tell(preflight.check_memory(summary.plan.nbytes))
    return Planned(entry=entry, source=source, summary=summary)


def output_of(wanted: Wanted) -> Path:
    """Where the converted file goes."""
    return wanted.folder / f"{wanted.arch}-{wanted.quant}.gguf"


def run(wanted: Wanted, planned: Planned, plugins: Plugins, tell: Tell, *, kept: Path | None = None) -> str:
    """Convert, answer the family's prompts in two fresh runs, check; returns the transcript.

    kept  a transcript to compare with; where there is none yet, it is written
    Errors: Stopped, 8, for a check that does not hold; what converting raises.
    """
    from hf2q.convert import convert

    output, local = output_of(wanted), wanted.local is not None
    convert(
        planned.source if local else None,
        wanted.quant,
        output,
        repo=None if local else planned.source,
        threads=wanted.threads,
        sidecars=False,
        receipt=False,
        plugins=plugins,
    )
    tell(Step(step="convert", found=str(output)))
    with open_model(output) as file:
        tell(check_tensors(len(file.tensors), len(planned.summary.plan.tensors)))
    first, second = (_fresh(wanted, output, planned.entry.smoke_prompts, plugins) for _ in range(2))
    for ran in (first, second):
        check_answers(ran)
    tell(Step(step="tokens", found=f"{TOKENS} for each of {len(first)} prompts, all logits finite"))
    texts = [transcript(wanted.arch, wanted.quant, [one.said for one in ran]) for ran in (first, second)]
    tell(check_same("repeatability", texts[0], texts[1]))
    if kept is not None:
        tell(_compared(kept, texts[0]))
    return texts[0]


def check_tensors(found: int, expected: int) -> Step:
    """Errors: Stopped, 8, when the file has another number of tensors than the family's catalog gives."""
    if found != expected:
        raise Stopped("tensors", NOT_PASSED, f"the file has {found} tensors, by the catalog there are {expected}")
    return Step(step="tensors", found=f"{found}, as the catalog has")


def check_answers(ran: Sequence[Ran]) -> None:
    """Errors: Stopped, 8, for another number of tokens than 8 and for logits that are not finite."""
    for one in ran:
        where = f"after the prompt {one.said.prompt!r}"
        if not one.finite:
            raise Stopped("logits", NOT_PASSED, f"{where} logits are not finite")
        if len(one.tokens) != TOKENS:
            raise Stopped("tokens", NOT_PASSED, f"{where} {len(one.tokens)} tokens came, expected {TOKENS}")


def check_same(step: str, wanted: str, found: str) -> Step:
    """Errors: Stopped, 8, when two transcripts differ."""
    different = first_difference(wanted, found)
    if different:
        raise Stopped(step, NOT_PASSED, f"the transcripts differ: {different}")
    return Step(step=step, found="equal transcripts")


def _compared(kept: Path, text: str) -> Step:
    if not kept.exists():
        write_whole(str(kept), [text.encode()])
        return Step(step="transcript", found=f"written to {kept}")
    try:
        wanted = kept.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Stopped("transcript", NOT_PASSED, f"{kept} cannot be read: {error}") from error
    return check_same("transcript", wanted, text)


def _fresh(wanted: Wanted, path: Path, prompts: Sequence[str], plugins: Plugins) -> list[Ran]:
    """All prompts on a model that is loaded for them alone. Errors: Stopped, 8, when it does not load or answer."""
    from hf2q.codec import thread_count
    from hf2q.serve.load import load

    try:
        with load(path, backend=wanted.backend, threads=thread_count(wanted.threads), plugins=plugins) as model:
            return [answered(model, prompt) for prompt in prompts]
    except Hf2qError as error:
        raise Stopped("load", NOT_PASSED, error.message, error.hint) from error


def answered(model: Model, prompt: str) -> Ran:
    """Eight greedy tokens, each by logits that are looked at. An end token ends it sooner, as it would in use."""
    ids = model.tokenizer.encode(prompt, add_bos=model.tokenizer.add_bos)
    started = time.perf_counter()
    events = list(model.generate(ids, max_tokens=TOKENS, logprobs=0))
    seconds = time.perf_counter() - started
    tokens = tuple(event.token for event in events if event.token is not None)
    finite = all(np.isfinite(event.logprobs.logprob) for event in events if event.logprobs is not None)
    logits: Float32 = model.logits([*ids, *tokens])
    told = (
        f"prompt tokens: {len(ids)}",
        f"tokens: {' '.join(map(str, tokens))}",
        f"n_eval = {len(tokens)}",
        f"eval time = {seconds:.3f} s / {len(tokens)} runs",
    )
    said = Said(prompt=prompt, text="".join(event.text for event in events), told=told)
    return Ran(said=said, tokens=tokens, finite=finite and bool(np.isfinite(logits).all()))
