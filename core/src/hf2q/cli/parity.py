"""``hf2q parity``: whether a model file still answers as was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from hf2q.cli.measuring import Backend, Exact, Threads, opened
from hf2q.cli.output import note, print_json, print_table, printable
from hf2q.errors import ThresholdError, UsageError

if TYPE_CHECKING:
    from hf2q.quality.parity import Check


def command(
    model: Annotated[Path, Parameter(help="A GGUF file; of several, the first.")],
    /,
    *,
    manifest: Annotated[Path, Parameter(help="The JSON file of references.")],
    update: Annotated[
        bool,
        Parameter(help="Record this file's digest and answers instead; a new manifest gets the family's prompts."),
    ] = False,
    logits: Annotated[
        bool, Parameter(help="With --update: record a digest of the logits too, which one backend alone repeats.")
    ] = False,
    backend: Backend = "auto",
    threads: Threads = None,
    exact: Exact = False,
    json: Annotated[bool, Parameter(help="Print JSON.")] = False,
) -> None:
    """Compare greedy answers with those of a manifest, which holds the digest of the file that they are of.

    Exit code 2 when one differs: in any byte, or, for a reference with a floor, within so many bytes. A manifest of
    another file is refused.
    """
    from hf2q.cli.progress import bar
    from hf2q.formats.gguf import open_model
    from hf2q.plugins import Plugins
    from hf2q.quality import parity
    from hf2q.quality import parity_manifest as kept

    if logits and not update:
        raise UsageError("--logits cannot be followed: it says what to record", hint="--update --logits")
    with open_model(model) as file:
        arch, paths = file.arch, [part.path for part in file.files]
    if update and not manifest.exists():
        entry = Plugins.load().archs.get(arch)
        wanted = parity.fresh(entry.smoke_prompts if entry is not None else (), arch)
    else:
        wanted = kept.read_manifest(manifest)
    files = kept.identify(paths)
    if not update:
        kept.check_files(manifest, wanted, files)
    with opened(model, backend=backend, threads=threads, exact=exact) as loaded, bar(shown=not json) as report:
        ran_on = loaded.backend
        if update:
            recorded = parity.update(loaded, wanted, files, logits=logits, report=report)
        else:
            checks = parity.check(loaded, wanted, report)
    if update:
        kept.write_manifest(manifest, recorded)
        note(f"wrote {manifest}")
        if json:
            print_json({"model": str(model), "backend": ran_on, "recorded": msgspec.to_builtins(recorded)})
        return
    _show(checks, model, ran_on, json=json)


def _show(checks: tuple[Check, ...], model: Path, backend: str, *, json: bool) -> None:
    wrong = [one for one in checks if not one.passed]
    if json:
        rows = [{**msgspec.to_builtins(one), "passed": one.passed} for one in checks]
        print_json({"model": str(model), "backend": backend, "passed": not wrong, "references": rows})
    else:
        print_table(
            [
                (printable(one.name), "passed" if one.passed else "FAILED", f"{one.prefix} of {one.expected} bytes")
                for one in checks
            ],
            header=("reference", "", "the same from the start"),
        )
        for one in wrong:
            print(f"{printable(one.name)}: {printable(one.problem)}")
    if wrong:
        raise ThresholdError(
            f"{model} answers {len(wrong)} of {len(checks)} references otherwise than was recorded",
            hint="if that was meant, --update records the new answers",
        )
