"""``hf2q convert``: parse, show progress, call `hf2q.convert`, print what was made."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from hf2q.cli.output import print_json, print_table, size

if TYPE_CHECKING:
    from hf2q.convert import Summary
    from hf2q.types import Plan, TensorPlan


def command(
    source: Annotated[str, Parameter(help="A checkpoint directory, with config.json and safetensors files in it.")],
    *,
    quant: Annotated[
        str, Parameter(help="What to convert to: f32, f16, bf16, q8_0, q4_k_m, … (`hf2q plugins` lists them).")
    ],
    output: Annotated[
        str | None,
        Parameter(
            name=["--output", "-o"], help="The file, or a directory for a file of the usual name (default: here)."
        ),
    ] = None,
    via: Annotated[
        Literal["auto", "f16", "bf16", "f32"],
        Parameter(help="The type that values pass through before they are quantized, as with llama.cpp's two steps."),
    ] = "auto",
    no_mtp: Annotated[bool, Parameter(help="Leave multi-token-prediction blocks out.")] = False,
    threads: Annotated[int | None, Parameter(help="Default: HF2Q_THREADS, else the CPUs there are.")] = None,
    dry_run: Annotated[bool, Parameter(help="Show what would be written; read no weights, write nothing.")] = False,
    json: Annotated[bool, Parameter(help="Print the result as JSON.")] = False,
    force: Annotated[bool, Parameter(help="Replace an existing output.")] = False,
    no_fallback: Annotated[bool, Parameter(help="Refuse when a tensor's shape does not fit the chosen type.")] = False,
    pre: Annotated[
        str | None, Parameter(help="Name of the pre-tokenizer, instead of recognising it from tokenizer.json.")
    ] = None,
) -> None:
    """Convert a Hugging Face checkpoint to a quantized GGUF file.

    The bytes are those of llama.cpp's converter followed by its quantizer, whatever the machine and the number of
    threads. The file appears under its name only when it is complete.
    """
    from hf2q.convert import convert

    with _progress(shown=not (dry_run or json) and sys.stderr.isatty()) as progress:
        summary = convert(
            source,
            quant,
            output,
            via=via,
            mtp=not no_mtp,
            threads=threads,
            force=force,
            dry_run=dry_run,
            no_fallback=no_fallback,
            pre=pre,
            progress=progress,
        )
    if json:
        print_json(_as_json(summary))
        return
    if dry_run:
        _print_tensors(summary)
    _print_summary(summary)


@contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[Plan, TensorPlan, int], None] | None]:
    """A callback that draws a bar on stderr, or None where nobody would see it."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def update(plan: Plan, tensor: TensorPlan, written: int) -> None:
            bar.update(task, total=plan.nbytes, completed=written, description=tensor.name)

        yield update


def _totals(summary: Summary) -> dict[str, dict[str, int]]:
    """Tensors, weights and bytes by type, the type with most bytes first."""
    totals: dict[str, dict[str, int]] = {}
    for tensor in summary.plan.tensors:
        total = totals.setdefault(tensor.qtype, {"tensors": 0, "parameters": 0, "nbytes": 0})
        total["tensors"] += 1
        total["parameters"] += tensor.parameters
        total["nbytes"] += tensor.nbytes
    return dict(sorted(totals.items(), key=lambda item: -item[1]["nbytes"]))


def _ignored(summary: Summary) -> dict[str, int]:
    """How many checkpoint tensors were left out, by reason."""
    reasons: dict[str, int] = {}
    for _, reason in summary.plan.ignored:
        reasons[reason] = reasons.get(reason, 0) + 1
    return reasons


def _as_json(summary: Summary) -> dict[str, Any]:
    plan = summary.plan
    told: dict[str, Any] = {
        "output": summary.output,
        "dry_run": summary.dry_run,
        "arch": plan.arch,
        "quant": plan.recipe,
        "via": plan.via,
        "parameters": plan.parameters,
        "tensor_bytes": plan.nbytes,
        "file_bytes": None if summary.dry_run else summary.nbytes,
        "bits_per_weight": summary.bits_per_weight,
        "qtypes": _totals(summary),
        "fallbacks": [{"name": t.name, "from": t.fallback_from, "to": t.qtype} for t in summary.fallbacks],
        "ignored": _ignored(summary),
        "seconds": summary.seconds,
    }
    if summary.dry_run:
        told["tensors"] = [
            {
                "name": tensor.name,
                "shape": tensor.shape,
                "qtype": tensor.qtype,
                "via": tensor.via,
                "reason": tensor.reason,
                "fallback_from": tensor.fallback_from,
                "nbytes": tensor.nbytes,
                "offset": tensor.offset,
                "inputs": tensor.inputs,
            }
            for tensor in plan.tensors
        ]
    return told


def _print_tensors(summary: Summary) -> None:
    print_table(
        [
            (tensor.name, " x ".join(map(str, tensor.shape)), tensor.qtype, f"{tensor.nbytes:,}", tensor.reason)
            for tensor in summary.plan.tensors
        ],
        header=("tensor", "shape", "type", "bytes", "why"),
    )
    print()


def _print_summary(summary: Summary) -> None:
    plan = summary.plan
    how = f"{plan.recipe} of {plan.arch}" + (f" via {plan.via}" if plan.via != plan.recipe else "")
    print_table(
        [
            ("would write" if summary.dry_run else "wrote", summary.output),
            ("what", how),
            ("tensors", f"{len(plan.tensors)}, {plan.parameters:,} weights"),
            ("tensor data" if summary.dry_run else "size", size(summary.nbytes)),
            ("bits per weight", f"{summary.bits_per_weight:.2f}"),
            *(("left out", f"{count} tensors: {reason}") for reason, count in _ignored(summary).items()),
            *(() if summary.dry_run else (("time", f"{summary.seconds:.1f} s"),)),
        ]
    )
    print("\ntypes")
    print_table(
        [
            (qtype, f"{total['tensors']} tensors", f"{total['parameters']:,} weights", size(total["nbytes"]))
            for qtype, total in _totals(summary).items()
        ],
        indent="  ",
    )
    if summary.fallbacks:
        print("\nother types than the mix would give, because of their shape")
        rows = [(t.name, f"{t.shape[-1]} columns", f"{t.fallback_from} → {t.qtype}") for t in summary.fallbacks]
        print_table(rows, indent="  ")
