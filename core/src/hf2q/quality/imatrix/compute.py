"""`compute`: a GGUF file reads a corpus, and what went into its weights becomes an importance matrix."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hf2q.backends.select import select_backend
from hf2q.errors import QualityError
from hf2q.formats.gguf import GgufModel, check_blocks, open_model
from hf2q.formats.imatrix import Imatrix
from hf2q.formats.imatrix.record import sorted_entries
from hf2q.formats.tokenizer import load_tokenizer
from hf2q.plugins import Plugins
from hf2q.quality.identity import digest_model
from hf2q.quality.imatrix.chunks import chunks
from hf2q.quality.imatrix.state import State
from hf2q.quality.imatrix.watched import NamedWeights, Watched
from hf2q.quality.perplexity import Report
from hf2q.quality.text import N_CTX, Corpus
from hf2q.serve.fit import check_fits, estimate
from hf2q.serve.load import check_loadable
from hf2q.types import HParams, resolve

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hf2q.backends.graph import EncoderGraph, ForwardGraph
    from hf2q.backends.ops import Ops

PIECE = 512
"""Tokens that go through the model together."""


def compute(
    path: str | os.PathLike[str],
    corpus: Corpus,
    *,
    n_ctx: int = N_CTX,
    skip: int = 0,
    most: int | None = None,
    output: bool = False,
    backend: str = "cpu",
    threads: int | None = None,
    record: Path | None = None,
    report: Report | None = None,
    plugins: Plugins | None = None,
) -> Imatrix:
    """The importance matrix of the model in `path`, a GGUF file, of several the first, over `corpus`.

    n_ctx    tokens of a chunk, each read from an empty context
    skip     chunks to leave out at the beginning;  most  chunks at most
    output   count what goes into ``output.weight`` too
    backend  what to compute with, with float32 activations in any case: one of `watched.BACKENDS`
    record   a file that keeps the sums, see `hf2q.quality.imatrix.state`

    Errors: as `hf2q.load` for the file; CorpusTooShortError, QualityError for chunks that the model does not take, for
    activations that are not finite, and for another's record.
    """
    plugins = Plugins.load() if plugins is None else plugins
    ops = select_backend(plugins, backend, threads=threads, exact=True)
    with open_model(path) as file:
        check_loadable(file, plugins)
        check_blocks(file)
        entry = plugins.arch(file.arch)
        pre_tokenizers = [*entry.pre_tokenizers, *(pre for other in plugins.archs for pre in other.pre_tokenizers)]
        cut = chunks(
            corpus,
            load_tokenizer(file.metadata, pre_tokenizers),
            n_ctx=n_ctx,
            context_length=int(file.metadata[f"{file.arch}.context_length"]),
            skip=skip,
            most=most,
        )
        key = {
            "model": Path(file.path).name,
            "sha256": "" if record is None else digest_model(Path(file.path)),
            "backend": ops.name,
            "corpus": corpus.sha256,
            "n_ctx": n_ctx,
            "skip": skip,
            "output": output,
        }
        state = State(record, key)
        if state.done > len(cut):
            raise QualityError(
                f"{record} holds the sums of {state.done} chunks, and {len(cut)} were asked for",
                hint="ask for as many at least, or take another file",
            )
        if state.done < len(cut):
            run = _model(file, ops, state, plugins, n_ctx=n_ctx, output=output)
            for number in range(state.done, len(cut)):
                if report is not None:
                    report(f"chunk {number + 1} of {len(cut)}", number, len(cut))
                run(cut[number])
                state.sums.check()
                state.advance(last=number == len(cut) - 1)
    return Imatrix(
        entries=sorted_entries(state.sums.entries()),
        datasets=(corpus.name,),
        chunk_count=len(cut),
        chunk_size=n_ctx,
    )


def _model(
    file: GgufModel, ops: Ops, state: State, plugins: Plugins, *, n_ctx: int, output: bool
) -> Callable[[NDArray[np.int32]], None]:
    """What runs the model over one chunk of ids (n_ctx,). MTP blocks are not loaded, so nothing is known of them."""
    graph_entry = plugins.graph(file.arch)
    hparams = cast("HParams", resolve(plugins.arch(file.arch).hparams).from_metadata(file.metadata))
    needs = estimate(file, hparams, graph_entry, plugins.codec, ops, tokens=n_ctx)
    check_fits(str(file.path), needs, ops.available(), ops.name, ignore=False)
    weights = NamedWeights(file, plugins.codec, ops)
    watched = Watched.of(ops, state.sums, weights, file.tensors.keys(), output=output)
    graph: Any = resolve(graph_entry.graph)(hparams, weights, watched)
    weights.finish()
    return _encoding(graph, watched) if graph_entry.task == "embed" else _decoding(graph, watched, output)


def _decoding(graph: ForwardGraph, ops: Ops, output: bool) -> Callable[[NDArray[np.int32]], None]:
    def run(ids: NDArray[np.int32]) -> None:
        cache = graph.new_cache()
        for start in range(0, len(ids), PIECE):
            hidden = graph.hidden(ids[None, start : start + PIECE], [cache])
            ops.eval(graph.head(hidden) if output else hidden)

    return run


def _encoding(graph: EncoderGraph, ops: Ops) -> Callable[[NDArray[np.int32]], None]:
    def run(ids: NDArray[np.int32]) -> None:
        ops.eval(graph.hidden(ids[None], [len(ids)]))

    return run
