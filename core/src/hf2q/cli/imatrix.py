"""``hf2q imatrix``: compute an importance matrix, show and compare what is in some, write them in the other format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from hf2q.cli.imatrix_compare import compare
from hf2q.cli.imatrix_create import create
from hf2q.cli.output import print_json, print_table, printable

if TYPE_CHECKING:
    from hf2q.formats.imatrix import Imatrix

app = App(name="imatrix", help="Compute, show, compare and convert importance matrices.", help_format="plaintext")
app.default(create)
app.command(create, name="create")
app.command(compare, name="compare")


@app.command(name="show")
def show(
    file: Annotated[Path, Parameter(help="An importance matrix, .imatrix.gguf or .dat.")],
    *,
    json: Annotated[bool, Parameter(help="Print JSON.")] = False,
) -> None:
    """Show what an importance matrix was computed from, and each of its entries."""
    from hf2q.formats.imatrix import imatrix_format, read_imatrix

    facts = {"path": str(file), "format": imatrix_format(file), **_facts(read_imatrix(file))}
    if json:
        print_json(facts)
        return
    unit = "tokens" if facts["chunk_size"] else "chunks"
    print_table(
        [
            ("file", printable(facts["path"])),
            ("format", "GGUF" if facts["format"] == "gguf" else "legacy"),
            ("datasets", ", ".join(printable(name, 80) for name in facts["datasets"]) or "not named"),
            ("chunks", f"{facts['chunk_count'] or 'not said'}"),
            ("chunk size", f"{facts['chunk_size']} tokens" if facts["chunk_size"] else "not said"),
            ("entries", f"{len(facts['entries'])}"),
        ]
    )
    print()
    print_table(
        [
            (
                printable(entry["name"]),
                f"{entry['counts']} x {entry['width']}",
                f"{entry['least']:,}" + ("" if entry["least"] == entry["most"] else f" to {entry['most']:,}"),
                "all" if entry["covered"] == entry["counts"] else f"{entry['covered']} of {entry['counts']}",
                f"{entry['mean']:.4g}",
                f"{entry['largest']:.4g}",
            )
            for entry in facts["entries"]
        ],
        header=("tensor", "values", unit, "covered", "mean", "largest"),
    )


@app.command(name="convert")
def convert(
    source: Annotated[Path, Parameter(help="An importance matrix, .imatrix.gguf or .dat.")],
    output: Annotated[Path, Parameter(help="The file to write.")],
    *,
    form: Annotated[
        Literal["gguf", "dat"] | None,
        Parameter(name="--format", help="Default: by the ending of OUTPUT, .gguf or .dat."),
    ] = None,
    chunk_size: Annotated[
        int | None,
        Parameter(help="Tokens of a chunk, which legacy files do not say (default: 512, as llama-imatrix)."),
    ] = None,
    force: Annotated[bool, Parameter(help="Replace an existing OUTPUT.")] = False,
    json: Annotated[bool, Parameter(help="Print the result as JSON.")] = False,
) -> None:
    """Write an importance matrix in the other format, or in the same one in canonical order.

    The bytes are those of llama-imatrix. A legacy file holds means only: counts by expert and all datasets but the
    last are lost in it, and entries without any data are left out.
    """
    from hf2q.errors import UsageError
    from hf2q.formats.imatrix import read_imatrix, write_imatrix

    form = form or _by_ending(output)
    if output.exists():
        if source.exists() and output.samefile(source):
            raise UsageError(f"{output} is the file to convert", hint="choose another output")
        if not force:
            raise UsageError(f"{output} exists", hint="--force replaces it")
    imatrix = read_imatrix(source)
    if chunk_size is not None:
        if imatrix.chunk_size or form == "dat":
            why = "the source says it itself" if imatrix.chunk_size else "a legacy file does not hold it"
            raise UsageError(f"--chunk-size {chunk_size} would change nothing: {why}", hint="leave --chunk-size out")
        if not 1 <= chunk_size < 1 << 31:
            raise UsageError(f"--chunk-size is {chunk_size}, expected a number of tokens from 1 to 2^31")
        imatrix = imatrix.in_tokens(chunk_size)
    write_imatrix(output, imatrix, form)
    written = _facts(read_imatrix(output))
    written["entries"] = len(written["entries"])
    result = {"output": str(output), "format": form, **written, "left_out": len(imatrix.entries) - written["entries"]}
    if json:
        print_json(result)
        return
    print_table(
        [
            ("wrote", printable(str(output))),
            ("entries", f"{result['entries']}"),
            *([("left out", f"{result['left_out']} entries without data")] if result["left_out"] else []),
        ]
    )


def _by_ending(output: Path) -> Literal["gguf", "dat"]:
    from hf2q.errors import UsageError

    if output.suffix == ".gguf":
        return "gguf"
    if output.suffix == ".dat":
        return "dat"
    raise UsageError(f"{output} ends neither in .gguf nor in .dat", hint="say which with --format gguf or --format dat")


def _facts(imatrix: Imatrix) -> dict[str, Any]:
    from hf2q.formats.imatrix.weights import mean_squares

    entries = []
    for name, entry in imatrix.entries.items():
        means = mean_squares(entry)
        entries.append(
            {
                "name": name,
                "counts": len(entry.counts),
                "width": entry.sums.shape[1],
                "covered": entry.covered,
                "least": int(entry.counts.min()),
                "most": int(entry.counts.max()),
                "mean": float(means.mean()),
                "largest": float(means.max()),
            }
        )
    return {
        "datasets": list(imatrix.datasets),
        "chunk_count": imatrix.chunk_count or None,
        "chunk_size": imatrix.chunk_size or None,
        "entries": entries,
    }
