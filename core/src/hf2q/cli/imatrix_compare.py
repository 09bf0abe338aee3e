"""``hf2q imatrix compare``: whether two importance matrices agree. A gate: exit code 2 when they do not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators

from hf2q.cli.output import print_json, print_table, printable

if TYPE_CHECKING:
    from hf2q.quality.imatrix.compare import TensorDifference

LEAST = validators.Number(gte=0)


def compare(
    first: Annotated[Path, Parameter(help="An importance matrix, .imatrix.gguf or .dat.")],
    second: Annotated[Path, Parameter(help="Another of the same model, text and chunks.")],
    /,
    *,
    absolute: Annotated[
        float, Parameter(name="--abs", help="Sums that differ by at most so much agree.", validator=LEAST)
    ] = 1e-3,
    relative: Annotated[
        float, Parameter(name="--rel", help="So do those that differ by at most this share.", validator=LEAST)
    ] = 1e-2,
    json: Annotated[bool, Parameter(help="Print JSON.")] = False,
) -> None:
    """Compare two importance matrices: the same tensors, the same counts, sums that are close.

    Exit code 2 when they do not agree. What is not as it should be is listed, tensor by tensor.
    """
    from hf2q.errors import ThresholdError, UsageError
    from hf2q.formats.imatrix import read_imatrix
    from hf2q.quality.imatrix import compare as gate

    for flag, value in (("--abs", absolute), ("--rel", relative)):
        if not value < float("inf"):
            raise UsageError(f"{flag} is {value}, expected a finite number")
    found = gate.compare(read_imatrix(first), read_imatrix(second), absolute=absolute, relative=relative)
    wrong = [tensor for tensor in found.tensors if not tensor.agrees]
    if json:
        print_json({"first": str(first), "second": str(second), **gate.told(found)})
    else:
        print_table(
            [
                ("in both", f"{len(found.tensors)} tensors"),
                *((f"only in {where}", printable(name)) for where, name in _single(found.only_first, "the first")),
                *((f"only in {where}", printable(name)) for where, name in _single(found.only_second, "the second")),
                ("largest difference", f"{found.absolute:.4g}"),
                ("of the larger sum", f"{found.relative:.4g}"),
                *((printable(tensor.name), _told(tensor)) for tensor in wrong),
            ]
        )
    if not found.agrees:
        names = len(found.only_first) + len(found.only_second)
        raise ThresholdError(
            f"the matrices do not agree: {names} tensors are in one only, {len(wrong)} of {len(found.tensors)} differ "
            f"(by more than {absolute:g} and by more than {relative:g} of the larger sum, or in counts or shape)",
            hint="same model, text, chunks and context? --abs and --rel set what is close",
        )


def _single(names: tuple[str, ...], where: str) -> list[tuple[str, str]]:
    return [(where, name) for name in names]


def _told(tensor: TensorDifference) -> str:
    if not tensor.shape:
        return "another shape"
    parts = [f"{tensor.beyond} of {tensor.sums} sums differ"] if tensor.beyond else []
    if tensor.counts:
        parts.append(f"{tensor.counts} counts differ")
    return f"{', '.join(parts)}; at most {tensor.absolute:.4g}, {tensor.relative:.4g} of the larger"
