"""What `hf2q convert` prints about a conversion: as JSON, or as tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf2q.cli import convert_auto
from hf2q.cli.output import print_json, print_table, size

if TYPE_CHECKING:
    from hf2q.convert import Summary
    from hf2q.quality.allocate.found import Found


def show(
    summary: Summary, *, json: bool, importance: bool, search: Found | None = None, types: Path | None = None
) -> None:
    """Print it; `importance` says that there was an importance matrix, `search` how types were chosen, when they were,
    and `types` where they are kept.
    """
    if json:
        told = _as_json(summary)
        print_json(told if search is None else told | {"search": convert_auto.as_json(search, types)})
        return
    if search is not None:
        convert_auto.show(search, types)
    _print(summary, importance=importance)
    if summary.projector is not None:
        print("\nprojector")
        _print(summary.projector, importance=False)


def _print(summary: Summary, *, importance: bool) -> None:
    if summary.dry_run:
        _print_tensors(summary, importance=importance)
    _print_summary(summary)


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
        "files": summary.files,
        "dry_run": summary.dry_run,
        "arch": plan.arch,
        "quant": plan.recipe,
        "via": plan.via or None,
        "parameters": plan.parameters,
        "tensor_bytes": plan.nbytes,
        "file_bytes": None if summary.dry_run else summary.nbytes,
        "bits_per_weight": summary.bits_per_weight,
        "qtypes": _totals(summary),
        "fallbacks": [{"name": t.name, "from": t.fallback_from, "to": t.qtype} for t in summary.fallbacks],
        "ignored": _ignored(summary),
        "sidecars": summary.sidecars,
        "receipt": summary.receipt,
        "seconds": summary.seconds,
        "projector": _as_json(summary.projector) if summary.projector is not None else None,
    }
    if summary.dry_run:
        told["tensors"] = [
            {
                "name": tensor.name,
                "shape": tensor.shape,
                "qtype": tensor.qtype,
                "via": tensor.via,
                "reason": tensor.reason,
                "importance": tensor.importance,
                "copied": tensor.copied,
                "fallback_from": tensor.fallback_from,
                "nbytes": tensor.nbytes,
                "offset": tensor.offset,
                "inputs": tensor.inputs,
            }
            for tensor in plan.tensors
        ]
    return told


def _print_tensors(summary: Summary, *, importance: bool) -> None:
    """One line for each tensor, with a column for importance when there is a matrix."""
    header = ("tensor", "shape", "type", "bytes", *(("importance",) if importance else ()), "why")
    rows = []
    for tensor in summary.plan.tensors:
        shape, used = " x ".join(map(str, tensor.shape)), "used" if tensor.importance else "-"
        why = f"{tensor.reason}; copied" if tensor.copied else tensor.reason
        rows.append((tensor.name, shape, tensor.qtype, f"{tensor.nbytes:,}", *((used,) if importance else ()), why))
    print_table(rows, header=header)
    print()


def _print_summary(summary: Summary) -> None:
    plan = summary.plan
    how = f"{plan.recipe} of {plan.arch}" + (f" via {plan.via}" if plan.via not in ("", plan.recipe) else "")
    weighted = sum(tensor.importance for tensor in plan.tensors)
    print_table(
        [
            ("would write" if summary.dry_run else "wrote", summary.output),
            ("what", how),
            *((("files", f"{len(summary.files)}"),) if len(summary.files) > 1 else ()),
            ("tensors", f"{len(plan.tensors)}, {plan.parameters:,} weights"),
            *((("importance", f"used for {weighted} tensors"),) if weighted else ()),
            ("tensor data" if summary.dry_run else "size", size(summary.nbytes)),
            ("bits per weight", f"{summary.bits_per_weight:.2f}"),
            *((("sidecars", ", ".join(Path(path).name for path in summary.sidecars)),) if summary.sidecars else ()),
            *((("receipt", summary.receipt),) if summary.receipt else ()),
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
