"""What the commands that run models or measure their quality have in common: options, and how a file is opened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter, validators

from hf2q.cli.numbers import whole_number
from hf2q.errors import UsageError

if TYPE_CHECKING:
    from hf2q.serve.model import Model

POSITIVE = validators.Number(gte=1)

CorpusName = Annotated[str, Parameter(name="--corpus", help="A text file, or the name of a text that comes with hf2q.")]
Windows = Annotated[
    int,
    Parameter(name="--n-ctx", help="Tokens of a window.", converter=whole_number, validator=validators.Number(gte=2)),
]
Chunks = Annotated[
    int | None,
    Parameter(name="--chunks", help="Windows at most; default: all.", converter=whole_number, validator=POSITIVE),
]
How = Annotated[
    Literal["plain", "llama"],
    Parameter(
        name="--method",
        help="Which predictions count: all of a window (plain), or, as llama-perplexity does, those of its second "
        "half, after a BOS (llama). Numbers of the two must not be compared.",
    ),
]
Threads = Annotated[
    int | None,
    Parameter(
        name=["--threads", "-t"],
        help="Default: HF2Q_THREADS, else the CPUs there are.",
        converter=whole_number,
        validator=POSITIVE,
    ),
]
Backend = Annotated[str, Parameter(name="--backend", help="What to compute with.")]
Exact = Annotated[
    bool, Parameter(name="--exact", help="Compute with float32 activations throughout; slower.", negative=())
]
IgnoreMemory = Annotated[
    bool,
    Parameter(name="--ignore-memory", help="Load although it probably does not fit into memory.", negative=()),
]
Resume = Annotated[
    Path | None,
    Parameter(
        name="--record",
        help="A file that keeps the result of each window; a run that was interrupted goes on from it.",
    ),
]


def opened(path: Path, *, backend: str, threads: int | None, exact: bool) -> Model:
    """A model that generates. Errors: as `load`; UsageError for an embedding model."""
    from hf2q.codec import thread_count
    from hf2q.serve.load import load

    model = load(path, backend=backend, threads=thread_count(threads), exact=exact)
    if model.task != "generate":
        model.close()
        raise UsageError(f"{path} is an embedding model: it predicts no tokens")
    return model
