"""``hf2q info``: what is in a GGUF file or a checkpoint, here or on the Hub, from headers alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from hf2q.cli.output import print_json, print_table, printable, size
from hf2q.errors import UsageError

if TYPE_CHECKING:
    from hf2q.hub import Reference


def command(
    file: Annotated[
        str,
        Parameter(
            help="A GGUF file; a checkpoint directory; a repository of the Hub, org/name or its address; a GGUF file "
            "in one, org/name:FILE."
        ),
    ],
    /,
    *,
    revision: Annotated[
        str | None, Parameter(help="For a repository: a branch, a tag or a commit (default: its main branch).")
    ] = None,
    tensors: Annotated[bool, Parameter(help="List every tensor.")] = False,
    json: Annotated[bool, Parameter(help="Print everything as JSON.")] = False,
) -> None:
    """Show header, metadata, types, sizes, tokenizer and chat template of a GGUF file, without loading weights.

    Of a checkpoint: architecture, sizes, dtypes, and how large it would be as GGUF. Of what is on the Hub only headers
    and small files are read.
    """
    from hf2q.hub import parse_reference

    reference = parse_reference(file, revision, files=True)
    if reference is None and revision is not None:
        raise UsageError(f"--revision {revision} cannot be used: {file} is meant as a file or directory here")
    if (reference is not None and not reference.file) or Path(file).is_dir():
        from hf2q.cli.checkpoint import print_checkpoint

        checkpoint = _checkpoint(file if reference is None else reference)
        print_json(checkpoint) if json else print_checkpoint(checkpoint, tensors=tensors)
        return
    facts = _facts(Path(file)) if reference is None else _remote(reference)
    if json:
        print_json(facts)
    else:
        _print(facts, tensors)


def _facts(path: Path) -> dict[str, Any]:
    from hf2q.formats.gguf.describe import describe
    from hf2q.formats.gguf.model import open_model
    from hf2q.formats.gguf.reader import open_gguf

    with open_gguf(path) as opened:
        facts = describe(opened)
    if facts["shard"] is None or facts["shard"]["index"] > 0:
        return facts
    with open_model(path) as model:
        return describe(*model.files)


def _remote(reference: Reference) -> dict[str, Any]:
    from hf2q.hub.repository import open_repository
    from hf2q.hub.skeleton import gguf_skeleton

    repository = open_repository(reference)
    with gguf_skeleton(repository, reference.file) as path:
        facts = _facts(path)
    folder = str(path).removesuffix(reference.file)

    def there(name: str) -> str:
        return f"{repository.listing.canonical}:{name.removeprefix(folder)}"

    files = [{**file, "path": there(file["path"])} for file in facts["files"]]
    return {**facts, "path": there(facts["path"]), "files": files, "commit": repository.listing.commit}


def _checkpoint(source: str | Reference) -> dict[str, Any]:
    from contextlib import nullcontext

    from hf2q.convert.describe import describe_checkpoint
    from hf2q.convert.hub_source import open_from_hub
    from hf2q.convert.source import open_source
    from hf2q.plugins import Plugins

    opening = nullcontext(open_source(source)) if isinstance(source, str) else open_from_hub(source, weights=False)
    with opening as opened:
        return describe_checkpoint(opened, Plugins.load())


def _print(facts: dict[str, Any], tensors: bool) -> None:
    bits = facts["bits_per_weight"]
    rows = [
        ("file", printable(facts["path"])),
        *((("commit", facts["commit"]),) if "commit" in facts else ()),
        *_shards(facts),
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


def _shards(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The further files of a model in several, or that this file alone is not one."""
    shard, (_, *others) = facts["shard"], facts["files"]
    if shard is not None and not others:
        return [("", f"shard {shard['index'] + 1} of {shard['count']}; the first holds the metadata of the model")]
    return [("", printable(other["path"])) for other in others]


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
