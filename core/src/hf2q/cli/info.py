"""``hf2q info``: what is in a GGUF file, from its header alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from hf2q.cli.output import print_json, print_table, printable, size
from hf2q.errors import UsageError


def command(
    file: Annotated[Path, Parameter(help="A GGUF file.")],
    /,
    *,
    tensors: Annotated[bool, Parameter(help="List every tensor.")] = False,
    json: Annotated[bool, Parameter(help="Print everything as JSON.")] = False,
) -> None:
    """Show header, metadata, types, sizes, tokenizer and chat template of a GGUF file, without loading weights."""
    from hf2q.formats.gguf.describe import describe
    from hf2q.formats.gguf.reader import open_gguf

    if file.is_dir():
        raise UsageError(
            f"{file} is a folder; info shows GGUF files",
            hint=f"hf2q convert {file} --quant q8_0 --dry-run shows what a checkpoint would become",
        )
    with open_gguf(file) as opened:
        facts = describe(opened)
    if json:
        print_json(facts)
    else:
        _print(facts, tensors)


def _print(facts: dict[str, Any], tensors: bool) -> None:
    bits = facts["bits_per_weight"]
    rows = [
        ("file", printable(facts["path"])),
        ("size", size(facts["size"])),
        ("format", f"GGUF version {facts['version']}, alignment {facts['alignment']}"),
        ("arch", printable(facts["arch"] or "(not named)")),
        ("parameters", f"{facts['parameters']:,}"),
        ("tensors", f"{len(facts['tensors'])}, {size(facts['tensor_bytes'])}"),
        ("bits per weight", f"{bits:.2f}" if bits is not None else "-"),
        ("tokenizer", _tokenizer(facts["tokenizer"])),
        ("chat template", _template(facts["chat_template"])),
    ]
    if facts["trailing_bytes"]:
        rows.append(("after tensors", f"{facts['trailing_bytes']} bytes that belong to no tensor"))
    print_table(rows)
    print("\ntypes")
    print_table(
        [
            (qtype, f"{total['tensors']} tensors", f"{total['parameters']:,} weights", size(total["nbytes"]))
            for qtype, total in facts["qtypes"].items()
        ],
        indent="  ",
    )
    print("\nmetadata")
    print_table([(printable(entry["key"]), _kind(entry), _value(entry)) for entry in facts["metadata"]], indent="  ")
    if tensors:
        print("\ntensors")
        print_table(
            [
                (
                    printable(tensor["name"]),
                    " x ".join(map(str, tensor["shape"])),
                    tensor["qtype"],
                    size(tensor["nbytes"]),
                )
                for tensor in facts["tensors"]
            ],
            indent="  ",
        )


def _tokenizer(found: dict[str, Any] | None) -> str:
    if found is None:
        return "none"
    parts = [printable(str(found["model"])), f"{found['tokens'] or 0:,} tokens"]
    if found["pre"] is not None:
        parts.insert(1, f"pre-tokenizer {printable(str(found['pre']))}")
    if found["merges"] is not None:
        parts.append(f"{found['merges']:,} merges")
    return ", ".join(parts)


def _template(found: dict[str, Any] | None) -> str:
    if found is None:
        return "none"
    parts = [] if found["length"] is None else [f"{found['length']:,} characters"]
    return ", ".join([*parts, *(printable(name) for name in found["named"])])


def _kind(entry: dict[str, Any]) -> str:
    if entry["type"] == "ARRAY":
        return f"{str(entry['element']).lower()}[{entry['length']}]"
    return str(entry["type"]).lower()


def _value(entry: dict[str, Any]) -> str:
    if entry["type"] == "ARRAY":
        shown = ", ".join(printable(str(value)) for value in entry["head"])
        return f"{shown} …".lstrip() if entry["length"] > len(entry["head"]) else shown
    if entry["type"] == "FLOAT32" and isinstance(entry["value"], float):
        return f"{entry['value']:.7g}"  # all that 32 bits hold
    return printable(str(entry["value"]), 80)
