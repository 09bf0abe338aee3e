"""``hf2q cosine``: how near the weights of a file are to those of another, or of its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from hf2q.cli.measuring import POSITIVE, Threads
from hf2q.cli.numbers import whole_number
from hf2q.cli.output import print_json, print_table, printable, size

if TYPE_CHECKING:
    from hf2q.quality.similarity import LayerSimilarity, TensorSimilarity


def command(
    candidate: Annotated[Path, Parameter(help="The GGUF file to judge; of several, the first.")],
    reference: Annotated[
        Path, Parameter(help="Another GGUF file of the same checkpoint, or the directory of the checkpoint.")
    ],
    /,
    *,
    worst: Annotated[
        int, Parameter(help="How many tensors to list, the worst first.", converter=whole_number, validator=POSITIVE)
    ] = 10,
    threads: Threads = None,
    json: Annotated[bool, Parameter(help="Print all tensors and layers as JSON.")] = False,
) -> None:
    """Compare decoded weights: the cosine and the relative error of each tensor, and of each layer.

    The cosine is 1, and the error 0, where nothing was lost. The error of a tensor is the root mean square of the
    differences over that of the reference; that of a layer the root mean square of those, by number of weights.
    """
    from hf2q.cli.progress import bar
    from hf2q.quality.similarity import compare

    with bar(shown=not json) as report:
        found = compare(candidate, reference, threads=threads, report=report)
    if json:
        print_json(msgspec.to_builtins(found))
        return
    rows = [*found.layers, msgspec.structs.replace(found.total, layer="all")]
    print_table(
        [_layer(layer) for layer in rows], header=("layer", "tensors", "size", "error", "mean", "minimum", "of")
    )
    ordered = sorted(
        found.tensors, key=lambda one: (1.0 if one.cosine is None else one.cosine, -(one.relative_error or 0.0))
    )
    print(f"\nworst tensors, {min(worst, len(ordered))} of {len(ordered)}")
    print_table(
        [_tensor(one) for one in ordered[:worst]], header=("tensor", "type", "reference", "cosine", "error", "largest")
    )


def _layer(layer: LayerSimilarity) -> tuple[str, ...]:
    return (
        printable(layer.layer) or "-",
        str(layer.tensors),
        size(layer.nbytes),
        _relative(layer.relative_error),
        f"{layer.mean:.6f}",
        f"{layer.minimum:.6f}",
        printable(layer.worst),
    )


def _tensor(one: TensorSimilarity) -> tuple[str, ...]:
    cosine = "-" if one.cosine is None else f"{one.cosine:.6f}"
    return (
        printable(one.name),
        one.qtype,
        one.reference_qtype,
        cosine,
        _relative(one.relative_error),
        f"{one.max_error:.4g}",
    )


def _relative(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.3f} %"
