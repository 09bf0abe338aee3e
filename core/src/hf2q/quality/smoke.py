"""A smoke run: does a family convert, load and answer here, twice the same? All with our own engine."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hf2q.errors import UsageError
from hf2q.formats.gguf import open_model
from hf2q.formats.whole import write_whole
from hf2q.quality import smoke_answer
from hf2q.quality import smoke_preflight as preflight
from hf2q.quality.smoke_answer import TOKENS, Question, Ran, Reply
from hf2q.quality.smoke_preflight import NOT_PASSED, Step, Stopped, Wanted
from hf2q.quality.smoke_transcript import first_difference, transcript
from hf2q.types import ArchEntry, Record

if TYPE_CHECKING:
    from hf2q.convert import Summary
    from hf2q.plugins import Plugins

BAD_WORDS = re.compile(r"error|ERROR|panic|assertion|segfault")
"""A line on stderr that has one of these does not pass."""

Tell = Callable[[Step], None]


class Planned(Record, frozen=True, kw_only=True):
    """What passed the preflight: the family, where the checkpoint comes from, and the conversion as planned."""

    entry: ArchEntry
    source: str
    summary: Summary


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


def run(
    wanted: Wanted,
    planned: Planned,
    plugins: Plugins,
    tell: Tell,
    *,
    kept: Path | None = None,
    expected: Sequence[str] = (),
) -> str:
    """Convert, answer the family's prompts in two fresh runs, check; returns the transcript.

    kept      a transcript to compare with; where there is none yet, it is written
    expected  what the answers must begin with, one for each prompt, or nothing
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
    runs = [_fresh(wanted, output, planned.entry.smoke_prompts) for _ in range(2)]
    tell(Step(step="stderr", found=f"{sum(len(lines) for _, lines in runs)} lines in two runs, none of an error"))
    for ran, _ in runs:
        check_answers(ran)
    first = runs[0][0]
    tell(Step(step="tokens", found=f"{TOKENS} for each of {len(first)} prompts, all logits finite"))
    if expected:
        tell(check_first(first, expected))
    texts = [transcript(wanted.arch, wanted.quant, [one.said for one in ran], lines) for ran, lines in runs]
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


def check_expected(expected: Sequence[str], prompts: Sequence[str]) -> None:
    """Errors: UsageError for another number of expected answers than prompts."""
    if expected and len(expected) != len(prompts):
        raise UsageError(
            f"{len(expected)} beginnings are expected, and the family has {len(prompts)} prompts",
            hint="--expect once for each of " + ", ".join(map(repr, prompts)),
        )


def check_first(ran: Sequence[Ran], expected: Sequence[str]) -> Step:
    """Errors: Stopped, 8, when an answer does not begin as expected: the first token is another."""
    for one, wanted in zip(ran, expected, strict=True):
        if not one.said.text.startswith(wanted):
            raise Stopped(
                "first token",
                NOT_PASSED,
                f"after the prompt {one.said.prompt!r} came {one.said.text!r}, expected to begin with {wanted!r}",
            )
    return Step(step="first token", found=", ".join(map(repr, expected)))


def check_stderr(lines: Sequence[str]) -> None:
    """Errors: Stopped, 8, for a line that tells of an error, a panic, a failed assertion or a crash."""
    for line in lines:
        if BAD_WORDS.search(line):
            raise Stopped("stderr", NOT_PASSED, f"the run says on stderr: {line!r:.300}")


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


def _fresh(wanted: Wanted, path: Path, prompts: Sequence[str]) -> tuple[list[Ran], tuple[str, ...]]:
    """All prompts in a fresh process, and the lines of its stderr.

    Errors: Stopped, 8, when the model does not load or answer, when the process dies, and for bad words on stderr.
    """
    from hf2q.codec import thread_count

    question = Question(
        path=str(path), backend=wanted.backend, threads=thread_count(wanted.threads), prompts=tuple(prompts)
    )
    done = subprocess.run(
        [sys.executable, "-m", smoke_answer.__name__], input=msgspec.json.encode(question), capture_output=True
    )
    lines = tuple(done.stderr.decode(errors="replace").splitlines())
    if done.returncode:
        raise Stopped("run", NOT_PASSED, f"the run ended with {_named(done.returncode)}: {' '.join(lines[-1:])!r:.300}")
    found = msgspec.json.decode(done.stdout, type=Reply)
    if found.error:
        raise Stopped("load", NOT_PASSED, found.error, found.hint)
    check_stderr(lines)
    return list(found.answers), lines


def _named(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
