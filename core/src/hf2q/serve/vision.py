"""`Vision`: how a model sees. Images in, embeddings out, and their place among the tokens of a prompt.

A projector is a GGUF file of its own, which belongs to one text model. That both fit is checked before any weight of
the projector is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from collections.abc import Sequence as Several
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from hf2q.backends.graph import SeeingGraph, VisionGraph
from hf2q.backends.media import ImageEmbeddings, PlacedImage
from hf2q.backends.weights import Weights
from hf2q.catalog import check_tensors
from hf2q.errors import LoadError, RequestError, UsageError, about
from hf2q.formats.gguf import GgufModel, open_model
from hf2q.formats.images import read_image
from hf2q.plugins import Plugins
from hf2q.types import HParams, ProjectorEntry, resolve

if TYPE_CHECKING:
    from types import TracebackType

    from hf2q.backends.ops import Ops
    from hf2q.formats.tokenizer import Tokenizer

ARCH = "clip"
"""GGUF's ``general.architecture`` of every projector."""

TYPE_KEYS = ("clip.projector_type", "clip.vision.projector_type")
WIDTH_KEY = "clip.vision.projection_dim"

ImageSource: TypeAlias = str | os.PathLike[str] | bytes | NDArray[np.uint8]
"""A file's path, the bytes of one, or RGB pixels uint8 (height, width, 3)."""


class Vision:
    """The vision tower of a model.

    placeholder  text of the token that stands for an image in a prompt;  token  its id
    marks        ids of the tokens that go before and after each image, () for none
    """

    def __init__(self, graph: VisionGraph, *, placeholder: str, token: int, marks: tuple[int, ...] = ()) -> None:
        self._graph = graph
        self.marks = marks
        self.placeholder = placeholder
        self.token = token

    def see(self, image: ImageSource) -> ImageEmbeddings:
        """An image as the text model takes it. Errors: as `hf2q.formats.images.read_image`."""
        return self._graph.embed(*self._graph.prepare(read_image(image)))

    def place(self, ids: Several[int], images: Several[ImageSource]) -> tuple[tuple[int, ...], tuple[PlacedImage, ...]]:
        """Put images in the places of a prompt: each placeholder becomes as many as its image has tokens, and `marks`.

        Returns the ids and the images with their positions. Errors: RequestError when there are not as many
        placeholders as images; as `see`.
        """
        places = [at for at, token in enumerate(ids) if token == self.token]
        if len(places) != len(images):
            raise RequestError(
                f"images to show: {len(images)}; places for them in the prompt: {len(places)}",
                hint=f"each image needs one {self.placeholder} in the prompt; the chat templates of models that see "
                "write it",
                param="image",
            )
        expanded: list[int] = []
        placed: list[PlacedImage] = []
        done = 0
        for at, source in zip(places, images, strict=True):
            image = self.see(source)
            expanded += [*ids[done:at], *self.marks[:1]]
            placed.append(PlacedImage(len(expanded), image))
            expanded += [*[self.token] * image.tokens, *self.marks[1:]]
            done = at + 1
        return (*expanded, *ids[done:]), tuple(placed)


class Projector:
    """An open projector file that was found to fit a text model. `load` reads its weights."""

    def __init__(self, path: str | os.PathLike[str], model: GgufModel, tokenizer: Tokenizer, plugins: Plugins) -> None:
        """Open `path` for the text model in the file `model`.

        Errors: MissingFileError, FormatError; UnknownNameError for a kind of projector that no plugin provides;
        LoadError for a file that is none, that is incomplete, that cannot be run, or that belongs to another model.
        """
        if isinstance(path, list | tuple):
            raise UsageError(f"{len(path)} projectors for one model, which takes one", hint="give one file")
        self._plugins = plugins
        self._file = open_model(path)
        try:
            self._check(model, tokenizer)
        except BaseException:
            self.close()
            raise

    def _check(self, model: GgufModel, tokenizer: Tokenizer) -> None:
        file, plugins = self._file, self._plugins
        with about(file.path):
            self.entry = _entry(file, plugins, model.arch)
        with about(file.path):
            self._hparams = cast("HParams", resolve(self.entry.hparams).from_metadata(file.metadata))
        check_tensors(file.path, ARCH, file.tensors, plugins.catalog(self.entry.catalog).expand(self._hparams))
        own, wanted = file.metadata.get(WIDTH_KEY), model.metadata.get(f"{model.arch}.embedding_length")
        if own != wanted:
            raise _other_model(file, f"{WIDTH_KEY} is {own}, the text model's embedding_length {wanted}")
        found = [tokenizer.id_of(text) for text in (self.entry.image, *self.entry.marks)]
        for text, token in zip((self.entry.image, *self.entry.marks), found, strict=True):
            if token is None:
                what = "stands for" if text == self.entry.image else "marks"
                raise _other_model(file, f"the text model's vocabulary has no {text}, which {what} an image")
        self._token, *self._marks = [token for token in found if token is not None]

    def load(self, graph: object, ops: Ops) -> Vision:
        """The tower on the backend of the text model, whose graph is `graph`.

        Errors: LoadError when it gives the text model more or less than that takes.
        """
        weights = Weights(self._file, self._plugins.codec, ops)
        make = cast("Callable[..., VisionGraph]", resolve(self.entry.graph))
        with about(self._file.path):
            tower = make(self._hparams, weights, ops)
        gives, takes = tower.n_deepstack, cast("SeeingGraph", graph).n_deepstack
        if gives != takes:
            raise _other_model(
                self._file, f"it gives features for {gives} layers of the text model, which takes them for {takes}"
            )
        weights.log_summary()
        return Vision(tower, placeholder=self.entry.image, token=self._token, marks=tuple(self._marks))

    def close(self) -> None:
        """Let the file go; a tower that was loaded runs on."""
        self._file.close()

    def __enter__(self) -> Projector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _entry(file: GgufModel, plugins: Plugins, arch: str) -> ProjectorEntry:
    if file.arch != ARCH:
        raise LoadError(
            f"{file.path} is no projector: general.architecture is {file.arch!r}, expected {ARCH!r}",
            hint="hf2q convert --mmproj writes the projector of a model",
        )
    found = [key for key in TYPE_KEYS if key in file.metadata]
    kind = file.metadata[found[0]] if found else None
    if not isinstance(kind, str):
        raise LoadError(f"{file.path}: {TYPE_KEYS[0]} is {kind!r}, expected the name of a kind of projector")
    entry = plugins.projector(kind)
    if plugins.arch(arch).projector != kind:
        own = plugins.arch(arch).projector
        raise _other_model(file, f"it is a {kind}, and {arch} models {f'need a {own}' if own else 'take no projector'}")
    if not entry.graph or not plugins.graph(arch).images:
        raise LoadError(f"{file.path}: hf2q cannot run projectors of the kind {kind} yet, only convert them")
    return entry


def _other_model(file: GgufModel, why: str) -> LoadError:
    return LoadError(
        f"{file.path} does not belong to the text model: {why}",
        hint="take the projector that was converted from the same checkpoint",
    )
