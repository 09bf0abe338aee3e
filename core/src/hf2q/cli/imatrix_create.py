"""``hf2q imatrix MODEL --corpus TEXT``, or ``hf2q imatrix create``: compute an importance matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from hf2q.cli.measuring import POSITIVE, Chunks, CorpusName, Threads
from hf2q.cli.numbers import whole_number
from hf2q.cli.output import print_json, print_table, printable


def create(
    model: Annotated[Path, Parameter(help="A GGUF file; of several, the first. The less it is quantized, the better.")],
    /,
    *,
    corpus: CorpusName,
    output: Annotated[
        Path | None,
        Parameter(
            name=["--output", "-o"],
            help="The file to write, in the legacy format if it ends in .dat (default: MODEL.imatrix.gguf, here).",
        ),
    ] = None,
    n_ctx: Annotated[
        int, Parameter(name="--n-ctx", help="Tokens of a chunk.", converter=whole_number, validator=POSITIVE)
    ] = 512,
    chunks: Chunks = None,
    skip: Annotated[
        int,
        Parameter(
            help="Chunks to leave out at the beginning.", converter=whole_number, validator=validators.Number(gte=0)
        ),
    ] = 0,
    process_output: Annotated[
        bool, Parameter(help="Also for output.weight, where the model has one.", negative=())
    ] = False,
    record: Annotated[
        Path | None,
        Parameter(help="A file that keeps the sums as they grow; a run that was interrupted goes on from it."),
    ] = None,
    backend: Annotated[str, Parameter(help="What to compute with: cpu, mlx or reference.")] = "cpu",
    threads: Threads = None,
    force: Annotated[bool, Parameter(help="Replace an existing output.", negative=())] = False,
    json: Annotated[bool, Parameter(help="Print JSON.")] = False,
) -> None:
    """Compute an importance matrix: for each weight, the squared activations that go into it while a text is read.

    What is counted, and the file, are as with llama-imatrix. Every chunk is read from an empty context.
    """
    from hf2q.cli.progress import bar
    from hf2q.errors import UsageError
    from hf2q.formats.imatrix import write_imatrix
    from hf2q.quality.imatrix.compute import compute
    from hf2q.quality.shipped import open_corpus

    target = output or Path(f"{model.name.removesuffix('.gguf')}.imatrix.gguf")
    if target.exists():
        if target.is_dir() or (model.exists() and target.samefile(model)):
            raise UsageError(f"{target} cannot be the output", hint="choose another with -o")
        if not force:
            raise UsageError(f"{target} exists", hint="--force replaces it")
    text = open_corpus(corpus)
    with bar(shown=not json) as report:
        found = compute(
            model,
            text,
            n_ctx=n_ctx,
            skip=skip,
            most=chunks,
            output=process_output,
            backend=backend,
            threads=threads,
            record=record,
            report=report,
        )
    write_imatrix(target, found, "dat" if target.suffix == ".dat" else "gguf")
    partial = {name: entry for name, entry in found.entries.items() if entry.covered < len(entry.counts)}
    told = {
        "output": str(target),
        "model": str(model),
        "corpus": text.name,
        "corpus_sha256": text.sha256,
        "chunks": found.chunk_count,
        "n_ctx": found.chunk_size,
        "entries": len(found.entries),
        "partly_covered": {name: [entry.covered, len(entry.counts)] for name, entry in partial.items()},
    }
    if json:
        print_json(told)
        return
    print_table(
        [
            ("wrote", printable(str(target))),
            ("corpus", f"{printable(text.name)}, {found.chunk_count} chunks of {found.chunk_size} tokens"),
            ("entries", f"{len(found.entries)}"),
            *(
                (printable(name), f"{entry.covered} of {len(entry.counts)} experts were used")
                for name, entry in partial.items()
            ),
        ]
    )
