"""`load`: a GGUF file becomes a `Model`. Every doubt about the file ends here, before the first token.

Order: header → family → tensors against the catalog → backend → memory → weights and graph → tokenizer, which is read
while a backend may still be busy with the weights. Weights are checked as they are read: scales, and values of float
types, are finite numbers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, cast

from hf2q.backends.select import AUTO, select_backend
from hf2q.backends.weights import Weights
from hf2q.catalog import check_tensors
from hf2q.errors import LoadError, UsageError, about
from hf2q.formats.gguf import GgufFile, GgufModel, check_blocks, open_model
from hf2q.formats.tokenizer import Tokenizer, load_tokenizer
from hf2q.plugins import Plugins
from hf2q.serve.fit import AT_LEAST, check_fits, estimate
from hf2q.serve.loaded import announce, loaded_fields
from hf2q.serve.sampling import is_whole
from hf2q.types import HParams, Record, ValueType, resolve

if TYPE_CHECKING:
    from hf2q.backends.graph import DraftHead, EncoderGraph, ForwardGraph
    from hf2q.serve.model import Model
    from hf2q.serve.vision import Projector

TEMPLATE = "tokenizer.chat_template"


def load(
    path: str | os.PathLike[str],
    *,
    backend: str = AUTO,
    plugins: Plugins | None = None,
    threads: int | None = None,
    exact: bool = False,
    ctx: int | None = None,
    mmproj: str | os.PathLike[str] | None = None,
    draft: bool = False,
    warm_up: bool = False,
    ignore_memory: bool = False,
    later: bool = False,
) -> Model:
    """Load a GGUF file.

    backend  name of a backend, or "auto" for the best that can run here
    plugins  those to use; by default all that are installed
    threads  to compute with; default ``HF2Q_THREADS``, else the CPUs this process may run on
    exact    keep activations in float32 in every product; slower on the backend cpu, the same elsewhere
    ctx      most tokens of a sequence; default, and at most, what the model was made for
    mmproj   the projector of a model that sees (``mmproj-*.gguf``), which `Model.generate` needs for images
    draft    load the file's draft head (MTP) too, which `Model.generate` needs for ``speculative``
    warm_up  run the model once before returning, see `Model.warm_up`
    ignore_memory  load although weights and caches probably do not fit into memory. What must fit are the caches of
             one sequence of `ctx` tokens; without `ctx`, of `hf2q.serve.fit.AT_LEAST`, as they grow when needed
    later    leave reading the weights to the first forward pass, which then raises what is wrong with their numbers,
             and repacking them to the second: for whoever wants one token soon

    Errors: UsageError for arguments of another type, and numbers out of bounds; MissingFileError, FormatError for a
    broken file; UnknownNameError for an arch, qtype or backend that no
    plugin provides, saying what to install; LoadError for a well-formed file that cannot be run: tensors or keys that
    do not fit together, numbers that are not finite, more memory than there is.
    """
    _check_path("path", path)
    if mmproj is not None and not isinstance(mmproj, list | tuple):  # of those `Projector` says more
        _check_path("mmproj", mmproj)
    if not isinstance(backend, str):
        raise UsageError(f"backend is {backend!r:.60}, expected the name of one, or {AUTO!r}")
    plugins = Plugins.load() if plugins is None else plugins
    wanted = _Wanted(
        backend=backend,
        threads=threads,
        exact=exact,
        ctx=ctx,
        mmproj=mmproj,
        draft=draft,
        ignore_memory=ignore_memory,
        later=later,
    )
    file = open_model(path)
    try:
        model = _load(file, plugins, wanted)
        if warm_up and model.task == "generate":
            model.warm_up()
        return model
    except BaseException:
        file.close()
        raise


def _check_path(name: str, path: object) -> None:
    if not isinstance(path, str | os.PathLike) or not isinstance(text := os.fspath(path), str) or not text:
        raise UsageError(f"{name} is {path!r:.60}, expected the path of a GGUF file")


class _Wanted(Record, frozen=True, kw_only=True):
    """What `load` was asked for."""

    backend: str
    threads: int | None
    exact: bool
    ctx: int | None
    mmproj: str | os.PathLike[str] | None
    draft: bool
    ignore_memory: bool
    later: bool


def _projector(
    path: str | os.PathLike[str] | None, file: GgufModel, tokenizer: Tokenizer | None, plugins: Plugins
) -> AbstractContextManager[Projector | None]:
    if path is None or tokenizer is None:
        return nullcontext()
    from hf2q.serve.vision import Projector

    return Projector(path, file, tokenizer, plugins)


def _load(file: GgufModel, plugins: Plugins, wanted: _Wanted) -> Model:
    started = time.perf_counter()
    if file.arch == "clip":
        raise LoadError(
            f"{file.path} is a projector, which is no model of its own",
            hint="load the text model, and give this file with it as mmproj (--mmproj)",
        )
    with about(file.path):
        entry = plugins.arch(file.arch)
        graph_entry = plugins.graph(file.arch)
    context_length = _chosen_length(_context_length(file), wanted.ctx)
    if wanted.draft and not graph_entry.draft:
        raise UsageError(f"{file.path}: the family {file.arch} has no draft head, so it cannot speculate")
    check_blocks(file)
    _templates(file)
    hparams = _read_hparams(file, plugins)
    tokenizer = None if wanted.mmproj is None else _read_tokenizer(file, plugins)
    with _projector(wanted.mmproj, file, tokenizer, plugins) as projector:  # checked before any weight is read
        ops = select_backend(plugins, wanted.backend, threads=wanted.threads, exact=wanted.exact)
        tokens = context_length if wanted.ctx is not None else min(context_length, AT_LEAST)
        needs = estimate(file, hparams, graph_entry, plugins.codec, ops, tokens=tokens, draft=wanted.draft)
        check_fits(str(file.path), needs, ops.available(), ops.name, ignore=wanted.ignore_memory)
        weights = Weights(file, plugins.codec, ops, later=wanted.later)
        make = cast("Callable[..., ForwardGraph | EncoderGraph]", resolve(graph_entry.graph))
        with about(file.path):
            graph = make(hparams, weights, ops)
        if tokenizer is None:
            tokenizer = _read_tokenizer(file, plugins)
        if graph.n_vocab != tokenizer.n_vocab:
            raise LoadError(f"{file.path}: the tokenizer has {tokenizer.n_vocab} tokens, the model {graph.n_vocab}")
        vision = None if projector is None else projector.load(graph, ops)
    draft = None
    if wanted.draft:
        make_draft = cast("Callable[..., DraftHead]", resolve(graph_entry.draft))
        with about(file.path):
            draft = make_draft(hparams, weights, ops, graph)
    from hf2q.serve.model import Model  # only now: what can be imported while weights are on their way, is

    weights.finish()
    if not wanted.later:
        file.release_all()
    weights.log_summary()
    seconds = time.perf_counter() - started
    announce(loaded_fields(file, ops, weights, needs, context_length=context_length, seconds=seconds))
    return Model(
        path=file.path,
        arch=file.arch,
        hparams=hparams,
        metadata=file.metadata,
        tokenizer=tokenizer,
        context_length=context_length,
        graph=graph,
        task=graph_entry.task,
        ops=ops,
        chat_format=plugins.chat_format(entry.chat_format) if entry.chat_format else None,
        vision=vision,
        draft=draft,
        file=file,
        parameters=sum(tensor.elements for tensor in file.tensors.values()),
        file_size=file.size,
    )


def check_loadable(file: GgufModel | GgufFile, plugins: Plugins) -> None:
    """Everything that loading checks in a header: family, tensors, tokenizer, chat templates. No weight is read.

    Stricter than `load` in one thing: a special token outside the vocabulary is an error. Errors: as `load`.
    """
    _context_length(file)
    from hf2q.serve.chat.template import ChatTemplate

    _read_hparams(file, plugins)
    tokenizer = _read_tokenizer(file, plugins)
    for key, value in file.metadata.items():
        if key.startswith("tokenizer.ggml.") and key.endswith("_token_id") and value not in range(tokenizer.n_vocab):
            raise LoadError(f"{file.path}: {key} is {value}, the vocabulary has {tokenizer.n_vocab} tokens")
    for template in _templates(file):
        ChatTemplate(template).close()


def _templates(file: GgufModel | GgufFile) -> tuple[str, ...]:
    """The chat templates. Errors: LoadError for one that is no text."""
    keys = [key for key in file.metadata if key == TEMPLATE or key.startswith(f"{TEMPLATE}.")]
    for key in keys:
        kind = file.metadata.type_of(key)
        if kind is not ValueType.STRING:
            raise LoadError(f"{file.path}: {key} is of type {kind.name}, expected a text")
    return tuple(file.metadata[key] for key in keys)


def _read_hparams(file: GgufModel | GgufFile, plugins: Plugins) -> HParams:
    """The numbers that describe the model, whose tensors are all there."""
    entry = plugins.arch(file.arch)
    with about(file.path):
        hparams = cast("HParams", resolve(entry.hparams).from_metadata(file.metadata))
    check_tensors(file.path, file.arch, file.tensors, plugins.catalog(entry.catalog).expand(hparams))
    return hparams


def _read_tokenizer(file: GgufModel | GgufFile, plugins: Plugins) -> Tokenizer:
    entry = plugins.arch(file.arch)
    known = [*entry.pre_tokenizers, *(pre for other in plugins.archs for pre in other.pre_tokenizers)]
    with about(file.path):
        return load_tokenizer(file.metadata, known)


def _context_length(file: GgufModel | GgufFile) -> int:
    key = f"{file.arch}.context_length"
    value = file.metadata.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 2:
        raise LoadError(f"{file.path}: {key} is {value!r}, expected a number of tokens")
    return value


def _chosen_length(longest: int, ctx: int | None) -> int:
    if ctx is not None and not (is_whole(ctx) and 2 <= ctx <= longest):
        raise UsageError(
            f"a context of {ctx!r:.60} tokens was asked for; the model takes 2 to {longest}",
            hint="leave it out for the longest",
        )
    return longest if ctx is None else ctx
