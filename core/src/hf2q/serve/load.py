"""`load`: a GGUF file becomes a `Model`. Every doubt about the file ends here, before the first token.

Order: header → family → tensors against the catalog → tokenizer → backend → weights and graph.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

from hf2q.backends.select import AUTO, select_backend
from hf2q.backends.weights import Weights
from hf2q.errors import LoadError, listing
from hf2q.formats.gguf import GgufFile, check_blocks, open_gguf
from hf2q.formats.tokenizer import load_tokenizer
from hf2q.plugins import Plugins
from hf2q.serve.model import Model
from hf2q.types import HParams, Shape, TensorSpec, resolve

if TYPE_CHECKING:
    from hf2q.backends.graph import ForwardGraph

log = logging.getLogger(__name__)


def load(
    path: str | os.PathLike[str],
    *,
    backend: str = AUTO,
    plugins: Plugins | None = None,
    threads: int | None = None,
) -> Model:
    """Load a GGUF file.

    backend  name of a backend, or "auto" for the best that can run here
    plugins  those to use; by default all that are installed
    threads  for preparing weights; default ``HF2Q_THREADS``, else the CPUs this process may run on

    Errors: MissingFileError, FormatError for a broken file; UnknownNameError for an arch, qtype or backend that no
    plugin provides, saying what to install; LoadError for a well-formed file that cannot be run.
    """
    plugins = Plugins.load() if plugins is None else plugins
    file = open_gguf(path)
    try:
        return _load(file, backend, plugins, threads)
    except BaseException:
        file.close()
        raise


def _load(file: GgufFile, backend: str, plugins: Plugins, threads: int | None) -> Model:
    started = time.perf_counter()
    _refuse_parts(file)
    entry = plugins.arch(file.arch)
    graph_entry = plugins.graph(file.arch)
    check_blocks(file)
    hparams = cast("HParams", resolve(entry.hparams).from_metadata(file.metadata))
    check_tensors(file, plugins.catalog(entry.catalog).expand(hparams))
    known = [*entry.pre_tokenizers, *(pre for other in plugins.archs for pre in other.pre_tokenizers)]
    tokenizer = load_tokenizer(file.metadata, known)
    ops = select_backend(plugins, backend, threads=threads)
    weights = Weights(file, plugins.codec, ops)
    make = cast("Callable[..., ForwardGraph]", resolve(graph_entry.graph))
    graph = make(hparams, weights, ops)
    if graph.n_vocab != tokenizer.n_vocab:
        raise LoadError(f"{file.path}: the tokenizer has {tokenizer.n_vocab} tokens, the model {graph.n_vocab}")
    weights.log_summary()
    seconds = time.perf_counter() - started
    log.info("loaded %s (%s): %.1f MB in memory, %.1f s", file.path, file.arch, weights.nbytes / 1e6, seconds)
    return Model(
        path=file.path,
        arch=file.arch,
        hparams=hparams,
        metadata=file.metadata,
        tokenizer=tokenizer,
        context_length=_context_length(file),
        graph=graph,
        ops=ops,
        chat_format=plugins.chat_format(entry.chat_format) if entry.chat_format else None,
        file=file,
    )


def _refuse_parts(file: GgufFile) -> None:
    parts = file.metadata.get("split.count", 0)
    if isinstance(parts, int) and parts > 1:
        raise LoadError(
            f"{file.path} is one of {parts} parts of a model", hint="join the parts with llama.cpp's gguf-split --merge"
        )


def _context_length(file: GgufFile) -> int:
    key = f"{file.arch}.context_length"
    value = file.metadata.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 2:
        raise LoadError(f"{file.path}: {key} is {value!r}, expected a number of tokens")
    return value


def check_tensors(file: GgufFile, specs: Iterable[TensorSpec]) -> None:
    """Compare a file's tensors with those the family expects: all there, none unknown, each of its shape.

    Sizes of 1 do not count: writers differ in whether they keep them. Errors: LoadError listing what is wrong.
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
        if name in expected and _squeezed(tensor.shape) != _squeezed(expected[name].shape)
    ]
    if wrong:
        problems.append(f"{len(wrong)} tensors have another shape: {listing(wrong)}")
    if problems:
        raise LoadError(
            f"{file.path}: {'; '.join(problems)}",
            hint="the file is incomplete, of a variant this plugin does not know, or disagrees with its metadata",
        )


def _squeezed(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1)
