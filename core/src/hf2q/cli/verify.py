"""``hf2q verify``: parse, show progress, call `hf2q.convert.verify`, and print what it found."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from hf2q.cli.numbers import whole_number
from hf2q.cli.output import print_json, print_table, printable

if TYPE_CHECKING:
    from hf2q.convert.compare import TensorCheck
    from hf2q.convert.verify import Verification

DIFFERENT = 2
SHOWN = 50
"""Rows of each table in the text form; JSON has all."""


def command(
    file: Annotated[str, Parameter(help="A GGUF file, the first of several, or a projector.")],
    /,
    *,
    source: Annotated[
        str | None,
        Parameter(
            help="What it was made from: a checkpoint directory, a repository of the Hub, or a GGUF file. May be left "
            "out when a repository is recorded."
        ),
    ] = None,
    revision: Annotated[
        str | None, Parameter(help="For a repository: a branch, a tag or a commit (default: the recorded commit).")
    ] = None,
    imatrix: Annotated[str | None, Parameter(help="The importance matrix, when one was used.")] = None,
    quant: Annotated[str | None, Parameter(help="As for convert, instead of what is recorded.")] = None,
    via: Annotated[
        Literal["auto", "f16", "bf16", "f32"] | None, Parameter(help="As for convert, instead of what is recorded.")
    ] = None,
    no_mtp: Annotated[bool, Parameter(help="It was made without blocks for multi-token prediction.")] = False,
    pre: Annotated[str | None, Parameter(help="As for convert, instead of what is recorded.")] = None,
    threads: Annotated[
        int | None, Parameter(help="Default: HF2Q_THREADS, else the CPUs there are.", converter=whole_number)
    ] = None,
    json: Annotated[bool, Parameter(help="Print everything as JSON.")] = False,
) -> int:
    """Make a GGUF file again from its source, in memory, and compare every byte.

    Options come from the receipt beside the file, else from the hf2q.* keys in it. Exits with 0 when all is equal, with
    2 when anything differs: tensors, metadata, padding, or the SHA-256 that the receipt has.
    """
    from hf2q.cli.progress import progress_bar
    from hf2q.convert.verify import verify

    with progress_bar(shown=not json and sys.stderr.isatty()) as (progress, downloading):
        found = verify(
            file,
            source,
            revision=revision,
            imatrix=imatrix,
            recipe=quant,
            via=via,
            mtp=False if no_mtp else None,
            pre=pre,
            threads=threads,
            progress=progress,
            downloading=downloading,
        )
    if json:
        print_json(_as_json(found))
    else:
        _print(found)
    return 0 if found.equal else DIFFERENT


def _as_json(found: Verification) -> dict[str, Any]:
    return {
        "equal": found.equal,
        "files": found.files,
        "source": found.source,
        "receipt": found.receipt,
        "recorded": found.recorded,
        "quant": found.recipe,
        "tensors": found.tensors,
        "keys": found.keys,
        "problems": found.problems,
        "seconds": found.seconds,
    }


def _print(found: Verification) -> None:
    wrong = found.wrong
    for check in wrong[:SHOWN]:
        print(f"{check.status:<8} {printable(check.name)}: {_told(check)}")
    for key in found.keys[:SHOWN]:
        values = ", ".join(
            f"{label} {printable(text, 100)}"
            for label, text in (("found", key.found), ("expected", key.expected))
            if text is not None
        )
        print(f"{key.status:<8} key {printable(key.key)}: {values}")
    for problem in found.problems[:SHOWN]:
        print(f"{problem.what:<8} {printable(problem.file)}: {printable(problem.message)}")
    left = sum(max(0, len(rows) - SHOWN) for rows in (wrong, found.keys, found.problems))
    if left:
        print(f"… and {left} more (--json lists all)")
    if not found.equal:
        print()
    bad = len(wrong) + len(found.keys) + len(found.problems)
    print_table(
        [
            ("file", printable(found.files[0]) + (f" and {len(found.files) - 1} more" if len(found.files) > 1 else "")),
            ("source", printable(found.source)),
            ("made by", _record(found)),
            ("tensors", f"{len(found.tensors) - len(wrong)} of {len(found.tensors)} equal"),
            ("metadata", "equal" if not found.keys else f"{len(found.keys)} keys differ"),
            ("result", "equal" if found.equal else f"DIFFERENT in {bad} places"),
            ("time", f"{found.seconds:.1f} s"),
        ]
    )


def _record(found: Verification) -> str:
    if found.receipt is not None:
        return f"{found.recipe}, by {printable(found.receipt)}"
    if found.recorded:
        return f"{found.recipe}, by the hf2q.* keys in the file"
    return f"{found.recipe}, by general.file_type; nothing says with which options, so the file's own types count"


def _told(check: TensorCheck) -> str:
    shape = " x ".join(map(str, check.shape)) or "1"
    parts = [f"{shape} {check.qtype}"]
    if check.expected_shape is not None:
        parts.append(f"expected {' x '.join(map(str, check.expected_shape)) or '1'}")
    if check.expected_qtype is not None:
        parts.append(f"expected {check.expected_qtype}")
    if check.status == "missing":
        parts.append("not in the file")
    if check.status == "extra":
        parts.append("not in the source")
    if (where := check.difference) is not None:
        noun = "byte differs" if where.count == 1 else "bytes differ"
        at = f"byte {where.offset}, row {where.row}, column {where.column}"
        parts.append(f"{where.count:,} {noun}, first at {at}")
    return "; ".join(parts)
