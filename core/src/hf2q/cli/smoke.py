"""``hf2q smoke``: does a family convert, load and answer on this machine?"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter, validators

from hf2q.cli.measuring import Backend, Threads
from hf2q.cli.numbers import whole_number
from hf2q.cli.output import note, print_json, printable
from hf2q.errors import UsageError

if TYPE_CHECKING:
    from hf2q.plugins import Plugins
    from hf2q.quality.smoke_preflight import Step, Wanted


def command(
    *,
    arch: Annotated[str, Parameter(help="The family, by its GGUF name: qwen35, gemma4, …")],
    quant: Annotated[str, Parameter(help="What to convert to, as for convert.")] = "q4_0",
    local_dir: Annotated[
        Path | None, Parameter(help="A checkpoint directory; then neither token nor repository is looked at.")
    ] = None,
    repo: Annotated[str | None, Parameter(help="A repository of the Hub (default: the family's first).")] = None,
    output_dir: Annotated[
        Path | None, Parameter(help="A directory that keeps the converted file (default: a temporary one).")
    ] = None,
    transcript: Annotated[
        Path | None, Parameter(help="A transcript to compare with; where there is none yet, it is written.")
    ] = None,
    expect: Annotated[
        tuple[str, ...],
        Parameter(
            help="What the answer must begin with, such as its first token; once for each prompt.",
            negative=(),
            allow_leading_hyphen=True,
        ),
    ] = (),
    disk_gb: Annotated[
        int | None,
        Parameter(
            help="Free disk to ask for, in GB (default: what published checkpoints of the family need, and 10 more).",
            converter=whole_number,
            validator=validators.Number(gte=0),
        ),
    ] = None,
    backend: Backend = "auto",
    threads: Threads = None,
    dry_run: Annotated[bool, Parameter(help="Say what would be done, and run the preflight alone.")] = False,
    json: Annotated[bool, Parameter(help="Print JSON.")] = False,
) -> int:
    """Convert a checkpoint of a family, and let it answer the family's prompts: eight tokens each, in two fresh runs.

    Checked are tensors against the catalog, logits, the number of tokens, that stderr tells of no error, that answers
    begin as expected, and that both runs say the same. Exit codes: 0 passed, or skipped with a reason; 2 no token for
    the Hub; 3 too little disk, or unknown; 4 this machine cannot run it; 6 the repository cannot be had; 7 unknown
    arch; 8 a check that does not hold, or an unusable --local-dir.
    """
    from hf2q.plugins import Plugins
    from hf2q.quality.smoke_preflight import Wanted

    if local_dir is not None and repo is not None:
        raise UsageError(f"both --local-dir {local_dir} and --repo {repo}", hint="leave one of them out")
    if not all(expect):
        raise UsageError("--expect is empty, which every answer begins with", hint="the answer's first token")
    for flag, path in (("--output-dir", output_dir), ("--transcript", transcript and transcript.absolute().parent)):
        if path is not None and not path.is_dir():
            raise UsageError(f"{flag}: there is no directory {path}", hint="create it first")
    with TemporaryDirectory(prefix="hf2q-smoke-") as temporary:
        wanted = Wanted(
            arch=arch,
            quant=quant,
            folder=output_dir or Path(temporary),
            local=local_dir,
            repo=repo,
            disk_gb=disk_gb,
            backend=backend,
            threads=threads,
        )
        return _work(wanted, Plugins.load(), transcript, expect, dry_run=dry_run, json=json)


def _work(
    wanted: Wanted, plugins: Plugins, transcript: Path | None, expect: tuple[str, ...], *, dry_run: bool, json: bool
) -> int:
    from hf2q.hub.settings import token
    from hf2q.quality import smoke
    from hf2q.quality.smoke_preflight import Stopped

    steps: list[Step] = []
    found: dict[str, Any] = {"arch": wanted.arch, "quant": wanted.quant, "dry_run": dry_run, "code": 0, "result": ""}

    def tell(step: Step) -> None:
        steps.append(step)
        if not json:
            print(f"{step.step:<14} ok    {printable(step.found)}")

    if dry_run and not json:
        _announce(wanted)
    try:
        planned = smoke.plan(wanted, plugins, tell, token=token)
        smoke.check_expected(expect, planned.entry.smoke_prompts)
        if not planned.entry.smoke_prompts:
            found |= {"result": "skipped", "reason": f"the family {wanted.arch} has no smoke prompts"}
        elif dry_run:
            found |= {"result": "planned"}
        else:
            text = smoke.run(wanted, planned, plugins, tell, kept=transcript, expected=expect)
            found |= {"transcript": text, "result": "passed"}
    except Stopped as error:
        found |= {"result": "failed", "code": error.code, "step": error.step, "reason": error.message}
        if error.hint:
            found["hint"] = error.hint
        if not json:
            print(f"{error.step:<14} FAILED")
            note(f"error: {printable(error.message)}" + (f"\nhint: {printable(error.hint)}" if error.hint else ""))
    if json:
        print_json({**found, "steps": msgspec.to_builtins(steps)})
    elif found["result"] != "failed":
        print(f"{'result':<14} {found['result']}" + (f": {found['reason']}" if "reason" in found else ""))
    return int(found["code"])


def _announce(wanted: Wanted) -> None:
    source = wanted.local or wanted.repo or "the family's first repository"
    print(f"would convert {source} to {wanted.quant}, load it, and let it answer; now the preflight:")
