"""``hf2q ppl``: how surprised a model file is by a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from hf2q.cli.measuring import Backend, Chunks, CorpusName, Exact, How, Resume, Threads, Windows, opened
from hf2q.cli.output import print_json


def command(
    model: Annotated[Path, Parameter(help="A GGUF file; of several, the first.")],
    /,
    *,
    corpus: CorpusName,
    n_ctx: Windows = 512,
    chunks: Chunks = None,
    method: How = "plain",
    record: Resume = None,
    backend: Backend = "auto",
    threads: Threads = None,
    exact: Exact = False,
    json: Annotated[bool, Parameter(help="Print JSON.")] = False,
) -> None:
    """Measure the perplexity of a text.

    The text is cut into windows, each read from an empty context. The lower, the better the model predicts it; numbers
    of different tokenizers, windows or methods cannot be compared.
    """
    from hf2q.cli.progress import bar
    from hf2q.quality.perplexity import measure
    from hf2q.quality.shipped import open_corpus

    text = open_corpus(corpus)
    with opened(model, backend=backend, threads=threads, exact=exact) as loaded, bar(shown=not json) as report:
        found = measure(loaded, text, n_ctx=n_ctx, method=method, most=chunks, record=record, report=report)
        name, ran_on = str(loaded.path), loaded.backend
    if json:
        print_json({"model": name, "backend": ran_on, **msgspec.to_builtins(found)})
        return
    print(f"perplexity {found.perplexity:.4f} ± {found.error:.4f}")
    print(f"{found.tokens} tokens in {found.windows} windows of {found.n_ctx}, method {found.method}, on {ran_on}")
