"""``hf2q diff``: what two GGUF files have in common and what not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from hf2q.cli.output import print_json, print_table, printable

if TYPE_CHECKING:
    from hf2q.convert.diff import Differences, TensorDifference

DIFFERENT = 2
"""Exit code with ``--exit-code`` when the files differ; 1 and 3 are failures."""


def command(
    a: Annotated[Path, Parameter(help="A GGUF file; of several, the first.")],
    b: Annotated[Path, Parameter(help="Another one.")],
    /,
    *,
    exit_code: Annotated[bool, Parameter(help="Exit with 2 when the files differ.")] = False,
    json: Annotated[bool, Parameter(help="Print JSON.")] = False,
) -> int:
    """Compare metadata and tensors of two GGUF files: what only one has, types, and errors of decoded values.

    Errors are those of B against A: the largest, the mean, and the root mean square in relation to that of A.
    """
    from hf2q.cli.progress import bar
    from hf2q.convert.diff import diff

    with bar(shown=not json) as progress:
        found = diff(a, b, progress=progress)
    if json:
        print_json(_facts(found))
    else:
        _print(found)
    return DIFFERENT if exit_code and not found.same else 0


def _facts(found: Differences) -> dict[str, Any]:
    import msgspec

    facts = {"same": found.same, **msgspec.structs.asdict(found)}
    return {**facts, **{kind: [msgspec.structs.asdict(one) for one in facts[kind]] for kind in ("keys", "tensors")}}


def _print(found: Differences) -> None:
    rows = [("A", printable(found.a)), ("B", printable(found.b))]
    rows.append(("keys", f"{found.equal_keys} equal, {len(found.keys)} different"))
    rows.append(("tensors", f"{found.equal_tensors} equal, {len(found.tensors)} different"))
    if not found.order:
        rows.append(("order", "the tensors that both have come in different orders"))
    print_table(rows)
    if found.keys:
        print("\nmetadata")
        print_table([(printable(k.key), _value(k.a), _value(k.b)) for k in found.keys], header=("key", "A", "B"))
    if found.tensors:
        print("\ntensors")
        header = ("tensor", "A", "B", "max", "mean", "relative", "")
        print_table([_row(tensor) for tensor in found.tensors], header=header)


def _value(side: tuple[str, Any] | None) -> str:
    if side is None:
        return "-"
    kind, value = side
    if kind.endswith("[]"):
        return f"{kind.lower()} of {len(value)}"
    return f"{printable(str(value), 60)} ({kind.lower()})"


def _row(tensor: TensorDifference) -> tuple[str, ...]:
    def side(index: int) -> str:
        qtype, shape = tensor.qtypes[index], tensor.shapes[index]
        if qtype is None:
            return "-"
        return qtype if tensor.shapes[0] == tensor.shapes[1] else f"{qtype} {' x '.join(map(str, shape or ()))}"

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.4g}"

    relative = None if tensor.rms_error is None or not tensor.rms else tensor.rms_error / tensor.rms
    note = "the same bytes" if tensor.same_bytes else tensor.note
    return (
        printable(tensor.name),
        side(0),
        side(1),
        number(tensor.max_error),
        number(tensor.mean_error),
        number(relative),
        printable(note),
    )
