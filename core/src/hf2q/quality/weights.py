"""The weights of a GGUF file, or of what a checkpoint becomes as one, read a few rows at a time as float32."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hf2q.convert.gguf_source import stored_shape
from hf2q.convert.names import find_recipe
from hf2q.convert.prepare import Request, prepare
from hf2q.convert.projector import ARCH as PROJECTOR
from hf2q.convert.provenance import read_provenance
from hf2q.errors import UnknownNameError
from hf2q.formats.gguf import GgufModel, open_model
from hf2q.plugins import Plugins
from hf2q.types import PolicyOptions, Record, Rows, Shape

if TYPE_CHECKING:
    from hf2q.types import Float32


class Weight(Record, frozen=True, kw_only=True):
    """One tensor. `shape` has no outer sizes of 1, which ggml does not count; `qtype` and `nbytes` as it is stored,
    of a checkpoint as F32."""

    name: str
    shape: Shape
    qtype: str
    nbytes: int


class Weights(Record, frozen=True, kw_only=True, eq=False):
    """Opened weights. `read(name, start, stop)` gives matrix rows, float32 (stop - start, columns), and then lets go of
    the memory that reading took."""

    path: str
    tensors: Mapping[str, Weight]
    read: Callable[[str, int, int], Float32]


def from_model(model: GgufModel, plugins: Plugins, threads: int | None = None) -> Weights:
    """Those of an open GGUF file. Errors: UnknownNameError naming a tensor whose type no plugin decodes."""
    for tensor in model.tensors.values():
        try:
            plugins.codec(tensor.qtype)
        except UnknownNameError as error:
            raise UnknownNameError(f"{model.path}, tensor {tensor.name!r}: {error.message}", hint=error.hint) from error

    def read(name: str, start: int, stop: int) -> Float32:
        found = plugins.codec(model.tensors[name].qtype).decode(model.rows(name)[start:stop], threads=threads)
        model.release(name, start, stop)
        return found

    tensors = {
        tensor.name: Weight(name=tensor.name, shape=stored_shape(tensor), qtype=tensor.qtype, nbytes=tensor.nbytes)
        for tensor in model.tensors.values()
    }
    return Weights(path=model.path, tensors=tensors, read=read)


@contextmanager
def open_weights(
    path: str | os.PathLike[str], plugins: Plugins, *, like: GgufModel | None = None, threads: int | None = None
) -> Iterator[Weights]:
    """The weights of a GGUF file, or of a checkpoint's directory by the plan of a conversion to f32.

    like  a file made from the checkpoint: whether it is a projector, and whether it has blocks for multi-token
          prediction, decides what the checkpoint is planned as
    Errors: what opening and planning raise.
    """
    if not Path(path).expanduser().is_dir():
        with open_model(path) as model:
            yield from_model(model, plugins, threads)
        return
    projector = like is not None and like.metadata.get("general.architecture") == PROJECTOR
    request = Request(
        recipe=find_recipe(plugins, "f32"),
        options=PolicyOptions(),
        mtp=projector or like is None or has_mtp(like),  # about a projector it decides nothing, so is not asked for
        mmproj=projector,
        only_projector=projector,
    )
    with prepare(os.fspath(path), request, plugins) as prepared:
        planned = prepared.planned
        opened: dict[str, Rows] = {}

        def read(name: str, start: int, stop: int) -> Float32:
            if name not in opened:
                opened.clear()  # tensors are read one after another
                opened[name] = planned.rows(name)
            return opened[name].read(start, stop)

        tensors = {
            tensor.name: Weight(name=tensor.name, shape=_trimmed(tensor.shape), qtype="F32", nbytes=tensor.nbytes)
            for tensor in planned.plan.tensors
        }
        yield Weights(path=os.fspath(path), tensors=tensors, read=read)


def has_mtp(model: GgufModel) -> bool:
    """Whether a file was made with blocks for multi-token prediction: as it says itself, else by its tensors."""
    made = read_provenance(model.files[0])
    return made.settings.mtp if made is not None else any(".nextn." in name for name in model.tensors)


def _trimmed(shape: Shape) -> Shape:
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape or (1,)
