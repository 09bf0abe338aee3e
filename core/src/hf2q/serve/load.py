"""`load`: a GGUF file becomes a `Model`. Every doubt about the file ends here, before the first token.

Order: header → family → tensors against the catalog → backend → memory → weights and graph → tokenizer, which is read
while a backend may still be busy with the weights. Weights are checked as they are read: scales, and values of float
types, are finite numbers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, cast

from hf2q.backends.select import AUTO, select_backend
from hf2q.backends.weights import Weights
from hf2q.errors import LoadError, UsageError, listing
from hf2q.formats.gguf import GgufFile, GgufModel, check_blocks, open_model
from hf2q.formats.tokenizer import Tokenizer, load_tokenizer
from hf2q.plugins import Plugins
from hf2q.serve.fit import AT_LEAST, check_fits, estimate
from hf2q.serve.loaded import announce, loaded_fields
from hf2q.types import HParams, Record, Shape, TensorSpec, resolve

if TYPE_CHECKING:
    from hf2q.backends.graph import DraftHead, EncoderGraph, ForwardGraph
    from hf2q.serve.model import Model
    from hf2q.serve.vision import Projector


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

    Errors: MissingFileError, FormatError for a broken file; UnknownNameError for an arch, qtype or backend that no
    plugin provides, saying what to install; LoadError for a well-formed file that cannot be run: tensors or keys that
    do not fit together, numbers that are not finite, more memory than there is.
    """
    plugins = Plugins.load() if plugins is None else plugins
    wanted = _Wanted(
        backend=backend,
        threads=threads,
        exact=exact,
        ctx=ctx,
        mmproj=mmproj,
        draft=draft,
        ignore_memory=ignore_memory,
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


class _Wanted(Record, frozen=True, kw_only=True):
    """What `load` was asked for."""

    backend: str
    threads: int | None
    exact: bool
    ctx: int | None
    mmproj: str | os.PathLike[str] | None
    draft: bool
    ignore_memory: bool


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
    entry = plugins.arch(file.arch)
    graph_entry = plugins.graph(file.arch)
    context_length = _chosen_length(_context_length(file), wanted.ctx)
    if wanted.draft and not graph_entry.draft:
        raise UsageError(f"{file.path}: the family {file.arch} has no draft head, so it cannot speculate")
    check_blocks(file)
    hparams = _read_hparams(file, plugins)
    tokenizer = None if wanted.mmproj is None else _read_tokenizer(file, plugins)
    with _projector(wanted.mmproj, file, tokenizer, plugins) as projector:  # checked before any weight is read
        ops = select_backend(plugins, wanted.backend, threads=wanted.threads, exact=wanted.exact)
        tokens = context_length if wanted.ctx is not None else min(context_length, AT_LEAST)
        needs = estimate(file, hparams, graph_entry, plugins.codec, ops, tokens=tokens, draft=wanted.draft)
        check_fits(str(file.path), needs, ops.available(), ops.name, ignore=wanted.ignore_memory)
        weights = Weights(file, plugins.codec, ops)
        make = cast("Callable[..., ForwardGraph | EncoderGraph]", resolve(graph_entry.graph))
        graph = make(hparams, weights, ops)
        if tokenizer is None:
            tokenizer = _read_tokenizer(file, plugins)
        if graph.n_vocab != tokenizer.n_vocab:
            raise LoadError(f"{file.path}: the tokenizer has {tokenizer.n_vocab} tokens, the model {graph.n_vocab}")
        vision = None if projector is None else projector.load(graph, ops)
    draft = None
    if wanted.draft:
        make_draft = cast("Callable[..., DraftHead]", resolve(graph_entry.draft))
        draft = make_draft(hparams, weights, ops, graph)
    from hf2q.serve.model import Model  # only now: what can be imported while weights are on their way, is

    weights.finish()
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
    for key, value in file.metadata.items():
        if key == "tokenizer.chat_template" or key.startswith("tokenizer.chat_template."):
            if not isinstance(value, str):
                raise LoadError(f"{file.path}: {key} is {type(value).__name__}, expected a text")
            ChatTemplate(value).close()


def _read_hparams(file: GgufModel | GgufFile, plugins: Plugins) -> HParams:
    """The numbers that describe the model, whose tensors are all there."""
    entry = plugins.arch(file.arch)
    hparams = cast("HParams", resolve(entry.hparams).from_metadata(file.metadata))
    check_tensors(file, plugins.catalog(entry.catalog).expand(hparams))
    return hparams


def _read_tokenizer(file: GgufModel | GgufFile, plugins: Plugins) -> Tokenizer:
    entry = plugins.arch(file.arch)
    known = [*entry.pre_tokenizers, *(pre for other in plugins.archs for pre in other.pre_tokenizers)]
    return load_tokenizer(file.metadata, known)


def _context_length(file: GgufModel | GgufFile) -> int:
    key = f"{file.arch}.context_length"
    value = file.metadata.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 2:
        raise LoadError(f"{file.path}: {key} is {value!r}, expected a number of tokens")
    return value


def _chosen_length(longest: int, ctx: int | None) -> int:
    if ctx is not None and not 2 <= ctx <= longest:
        raise UsageError(
            f"a context of {ctx} tokens was asked for; the model takes 2 to {longest}",
            hint="leave it out for the longest",
        )
    return longest if ctx is None else ctx


def check_tensors(file: GgufModel | GgufFile, specs: Iterable[TensorSpec]) -> None:
    """Compare a file's tensors with those the family expects: all there, none unknown, each of its shape.

    Sizes of 1 do not count: writers differ in whether they keep them; nor do those that metadata do
    not state. Errors: LoadError listing what is wrong.
    """
    expected = {spec.name: spec for spec in specs}
    problems = []
    missing = [name for name, spec in expected.items() if not spec.optional and name not in file.tensors]
    if missing:
        problems.append(f"{len(missing)} tensors are missing: {listing(missing)}")
    unknown = [name for name in file.tensors if name not in expected]
    if unknown:
        problems.append(f"{len(unknown)} tensors are not known to {file.arch}: {listing(unknown)}")
    wrong = [
        f"{name} is {tensor.shape}, expected {expected[name].shape}"
        for name, tensor in file.tensors.items()
        if name in expected and _squeezed(tensor.shape) != _squeezed(_stated(expected[name], tensor.shape))
    ]
    if wrong:
        problems.append(f"{len(wrong)} tensors have another shape: {listing(wrong)}")
    if problems:
        raise LoadError(
            f"{file.path}: {'; '.join(problems)}",
            hint="the file is incomplete, of a variant this plugin does not know, or disagrees with its metadata",
        )


def _stated(spec: TensorSpec, found: Shape) -> Shape:
    """The expected shape, with the sizes found where metadata state none."""
    if not spec.rule.unstated or len(found) != len(spec.shape):
        return spec.shape
    sizes = zip(spec.rule.shape, spec.shape, found, strict=True)
    return tuple(own if symbol in spec.rule.unstated else size for symbol, size, own in sizes)


def _squeezed(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1)
