"""``hf2q convert --quant auto-bpw=4.5`` and ``auto-size=12GiB``: types are chosen by a search before the conversion."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf2q.cli.output import print_table, size
from hf2q.cli.progress import bar
from hf2q.errors import UsageError

if TYPE_CHECKING:
    from hf2q.quality.allocate.budget import Budget
    from hf2q.quality.allocate.found import Found

SHOWN = 4
"""Mixes in the table, those that lose least; ``--json`` has all."""


def asked(
    quant: str,
    *,
    format: str,
    corpus: str | None,
    dry_run: bool,
    refused: Mapping[str, bool],
    split: Mapping[str, bool],
) -> Budget | None:
    """The budget that ``--quant`` names, None when it names a mix.

    refused, split  flags and whether they are given: those that a search contradicts; those that make several files,
                    so that no single size could be kept to
    Errors: UsageError for a budget that is none, and for what contradicts it.
    """
    from hf2q.quality.allocate.budget import is_budget, parse_budget

    if not is_budget(quant):
        if corpus is not None:
            raise UsageError("--auto-corpus is for a search of types, and none is made", hint="--quant auto-bpw=4.5")
        return None
    budget = parse_budget(quant)
    if format != "gguf":
        raise UsageError(
            f"--quant {quant} cannot be used with --format {format}", hint="it is for GGUF files, --format gguf"
        )
    if corpus is not None and dry_run:
        raise UsageError(
            "--auto-corpus writes temporary files, which --dry-run must not", hint="leave one of the two out"
        )
    for flag in (flag for flag, given in refused.items() if given):
        raise UsageError(
            f"--quant {quant} chooses the type of every tensor, and {flag} contradicts that",
            hint="edit the types that were chosen, OUTPUT.types.txt, and give them with --quant NAME "
            "--tensor-type-file FILE",
        )
    for flag in (flag for flag, given in split.items() if given and budget.kind == "size"):
        raise UsageError(
            f"--quant {quant} is the size of one file, and {flag} writes several",
            hint="auto-bpw=BITS limits the tensors, in however many files they are",
        )
    return budget


def searched(
    source: str | None,
    budget: Budget,
    output: str | None,
    *,
    corpus: str | None,
    repo: str | None,
    revision: str | None,
    via: str,
    mtp: bool,
    pre: str | None,
    imatrix: str | None,
    include_weights: Sequence[str],
    exclude_weights: Sequence[str],
    allow_requantize: bool,
    threads: int | None,
    shown: bool,
) -> Found:
    """Search. Errors: as `hf2q.quality.allocate.search.search`, and for the matrix as `read_importance`."""
    from hf2q.convert.importance import read_importance
    from hf2q.quality.allocate.search import search
    from hf2q.quality.allocate.sensitivity import Text
    from hf2q.quality.shipped import open_corpus

    place = Path(output or ".").expanduser()
    folder = place if place.is_dir() else place.parent
    text = None if corpus is None else Text(corpus=open_corpus(corpus), folder=folder)
    with bar(shown=shown) as report:
        return search(
            source,
            budget,
            repo=repo,
            revision=revision,
            via=via,
            mtp=mtp,
            pre=pre,
            importance=read_importance(imatrix, include_weights, exclude_weights),
            allow_requantize=allow_requantize,
            threads=threads,
            report=report,
            downloading=report,
            text=text,
        )


def output_of(found: Found, output: str | None) -> str:
    """The file to write: what the user named, or the usual name in the folder that he named, or here."""
    if output is not None and not (output and Path(output).expanduser().is_dir()):
        return output
    return str(Path(output or ".").expanduser() / f"{found.name}.gguf")


def types_path(output: str) -> Path:
    """Where the chosen types go, beside the output."""
    from hf2q.quality.allocate.types_file import ENDING

    path = Path(output).expanduser()
    return path.with_name(f"{path.name.removesuffix('.gguf')}{ENDING}")


def check_outputs(output: str | None, *, force: bool) -> None:
    """Errors: UsageError when the output or the file of types is there and must not be replaced."""
    if not output or Path(output).expanduser().is_dir():
        return
    for path in (Path(output).expanduser(), types_path(output)):
        if path.is_dir() or (path.exists() and not force):
            raise UsageError(f"{path} exists", hint="--force replaces it" if path.is_file() else "move it away")


def keep(found: Found, path: Path) -> None:
    """Write the chosen types. Errors: WriteError."""
    from hf2q.quality.allocate.types_file import text_of, write

    write(path, text_of(found.pairs, asked=found.asked, recipe=found.recipe))


def show(found: Found, path: Path | None) -> None:
    """Print the search as a table, one line for each kind of tensor."""
    groups: dict[str, list[Any]] = {}
    for tensor in found.tensors:
        if tensor.tried:
            groups.setdefault(re.sub(r"\d+", "*", tensor.name), []).append(tensor)
    rows = []
    for name, tensors in groups.items():
        types = Counter(one.qtype for one in tensors)
        loss = sum(one.loss * one.weight for one in tensors)
        rows.append(
            (
                name,
                ", ".join(f"{count} {qtype}" for qtype, count in types.most_common()),
                f"{sum(one.nbytes for one in tensors):,}",
                f"{sum(one.loss for one in tensors) / len(tensors):.6f}",
                f"{100 * loss / (found.loss or 1):.1f} %",
            )
        )
    print_table(rows, header=("tensors", "types", "bytes", "mean loss", "of the whole"))
    print()
    _show_rivals(found)
    best = "no choice of these types loses less" if found.exact else f"no choice can lose less than {found.bound:.6g}"
    print_table(
        [
            ("asked for", found.asked),
            ("tensor data", f"{size(found.nbytes)}, {8 * found.nbytes / found.parameters:.3f} bits per weight"),
            ("loss", f"{found.loss:.6g}; {best}"),
            ("again", f"--quant {found.recipe} --tensor-type-file {path or 'FILE'}"),
        ]
    )
    print()


def _show_rivals(found: Found) -> None:
    """Print the choice and the best of the mixes that keep to the budget, if any does."""
    if not found.rivals:
        return
    own = (found.winner or "the choice", found.nbytes, found.loss, found.divergence)
    others = [(one.name, one.nbytes, one.loss, one.divergence) for one in found.rivals if one.name != found.winner]
    rows = [
        (name, f"{8 * nbytes / found.parameters:.3f}", f"{loss:.6g}", "" if moved is None else f"{moved:.6f}")
        for name, nbytes, loss, moved in [own, *others[:SHOWN]]
    ]
    print_table(rows, header=("within the budget", "bits per weight", "loss", "divergence"))
    print()


def as_json(found: Found, path: Path | None) -> dict[str, Any]:
    """The search for a program: each tensor with every type that was tried."""
    return {
        "asked": found.asked,
        "recipe": found.recipe,
        "types_file": None if path is None else str(path),
        "budget": found.budget,
        "nbytes": found.nbytes,
        "loss": found.loss,
        "bound": found.bound,
        "exact": found.exact,
        "divergence": found.divergence,
        "winner": found.winner or None,
        "mixes": [
            {"name": one.name, "nbytes": one.nbytes, "loss": one.loss, "divergence": one.divergence}
            for one in found.rivals
        ],
        "tensors": [
            {
                "name": one.name,
                "qtype": one.qtype,
                "nbytes": one.nbytes,
                "loss": one.loss,
                "weight": one.weight,
                "tried": [{"qtype": t.qtype, "nbytes": t.nbytes, "loss": t.loss} for t in one.tried],
            }
            for one in found.tensors
            if one.tried
        ],
    }
