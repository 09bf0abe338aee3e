"""``hf2q embed``: texts to vectors with an embedding model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from hf2q.cli.measuring import Backend, Exact, IgnoreMemory, Threads
from hf2q.cli.output import print_json
from hf2q.errors import ConfigError, MissingFileError, UsageError

if TYPE_CHECKING:
    from hf2q.types import Float32


def command(
    model: Annotated[Path, Parameter(help="A GGUF file of an embedding model; of several, the first.")],
    /,
    *texts: Annotated[str, Parameter(help="Texts; after -- also those that begin with a hyphen.")],
    file: Annotated[
        Path | None,
        Parameter(help="A file with further texts, UTF-8, one a line; empty lines are left out."),
    ] = None,
    pooling: Annotated[
        str | None,
        Parameter(help="How a text's token vectors become one: mean, cls or last. Default: as the model file states."),
    ] = None,
    no_normalize: Annotated[bool, Parameter(help="Leave the vectors' lengths as they are.")] = False,
    truncate: Annotated[bool, Parameter(help="Cut texts that the model's context does not hold.")] = False,
    threads: Threads = None,
    backend: Backend = "auto",
    exact: Exact = False,
    ignore_memory: IgnoreMemory = False,
    json: Annotated[bool, Parameter(help="Print one JSON object.")] = False,
) -> None:
    """Turn texts into vectors with an embedding model.

    Each text gives a line of numbers, in order; vectors have length 1 unless --no-normalize is given. A prefix that the
    model expects ("search_query: ") is yours to write.
    """
    given = [*texts, *(_lines(file) if file is not None else ())]
    if not given:
        raise UsageError("there are no texts to embed", hint="give them after the file, or with --file")
    from hf2q.serve.load import load

    with load(model, backend=backend, threads=threads, exact=exact, ignore_memory=ignore_memory) as loaded:
        embedder = loaded.embedder()
        used = embedder.chosen(pooling)
        tokens = [embedder.tokens(text, truncate=truncate) for text in given]
        vectors = embedder.vectors(tokens, pooling=used, normalize=not no_normalize)
        about = {
            "model": loaded.name,
            "arch": loaded.arch,
            "backend": loaded.backend,
            "pooling": used,
            "normalized": not no_normalize,
        }
    if json:
        print_json(_facts(about, given, [len(ids) for ids in tokens], vectors), indent=None)
        return
    for vector in vectors:
        print(*map(str, vector))


def _lines(file: Path) -> list[str]:
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise MissingFileError(f"there is no file {file}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text: {error}") from error
    # not splitlines, which cuts at characters that are part of texts
    return [line for line in (line.removesuffix("\r") for line in text.split("\n")) if line.strip()]


def _facts(about: dict[str, Any], texts: list[str], counts: list[int], vectors: Float32) -> dict[str, Any]:
    return {
        **about,
        "dimensions": vectors.shape[1],
        "tokens": sum(counts),
        "embeddings": [
            # as short as float32 needs
            {"text": text, "tokens": count, "embedding": [float(str(value)) for value in vector]}
            for text, count, vector in zip(texts, counts, vectors, strict=True)
        ],
    }
