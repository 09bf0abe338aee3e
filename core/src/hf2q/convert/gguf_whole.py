"""Is a GGUF file that is to be converted a whole model? Asked of families that are known, and of no others."""

from __future__ import annotations

import logging
from typing import cast

from hf2q.catalog import mismatch
from hf2q.convert.gguf_source import GgufSource
from hf2q.errors import ConfigError, LoadError
from hf2q.formats.gguf import GgufModel, check_blocks
from hf2q.plugins import Plugins
from hf2q.types import HParams, resolve

log = logging.getLogger(__name__)


def check_whole(source: GgufSource, plugins: Plugins) -> None:
    """Compare the file's blocks and tensors with those of its family.

    What else hf2q would not load is converted as it is, as llama-quantize does, with a warning: it may be of a variant
    that others run. Errors: LoadError, as when the file is loaded, for blocks without tensors and tensors without
    blocks, as in one of several files that has lost the keys that say so.
    """
    first = source.first
    if first.arch not in plugins.archs.names:
        log.info("%s: not checked whether all tensors are there: no plugin knows %s", first.path, first.arch)
        return
    check_blocks(GgufModel(source.files))
    if problem := _problem(source, plugins):
        log.warning("%s: hf2q cannot run it, nor what becomes of it: %s", first.path, problem)


def _problem(source: GgufSource, plugins: Plugins) -> str:
    first = source.first
    entry = plugins.arch(first.arch)
    try:
        hparams = cast("HParams", resolve(entry.hparams).from_metadata(first.metadata))
    except (LoadError, ConfigError) as error:
        return error.message
    tensors = {name: tensor for name, (_, tensor) in source.tensors.items()}
    return mismatch(tensors, plugins.catalog(entry.catalog).expand(hparams)).told(first.arch)
