"""The plan of an output format with tensors of its own, from a GGUF file. Below `prepare`, beside `layout`.

A GGUF file has no config.json and no tokenizer.json; those of the checkpoint must lie beside it, as `hf2q convert`
leaves them, and say what the file's metadata say.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf2q import rows
from hf2q.codec import QuantCodec
from hf2q.convert.gguf_source import GgufSource, stored_shape
from hf2q.convert.layout import read_text
from hf2q.convert.source import Source, read_config
from hf2q.convert.tensors import squeezed
from hf2q.errors import ConfigError, MissingFileError, TensorMismatchError, UnknownNameError, about, listing
from hf2q.formats.safetensors import Checkpoint
from hf2q.plugins import Plugins
from hf2q.types import (
    ArchEntry,
    FormatPlan,
    GgufView,
    HParams,
    OutputFormat,
    Recipe,
    Rows,
    TensorInfo,
    TensorSpec,
    WriterEntry,
    resolve,
)

if TYPE_CHECKING:
    from hf2q.types import Bytes

NOT_IN_CONFIG = ("general.file_type",)
"""Keys of hparams that say nothing about the model."""


def make_gguf_layout(
    source: GgufSource, recipe: Recipe, entry: WriterEntry, plugins: Plugins
) -> tuple[FormatPlan, tuple[Path, ...]]:
    """The plan of a folder, and the files beside the GGUF file that it is made of as well.

    Errors: MissingFileError without config.json; ConfigError when it is of another model; TensorMismatchError for
    tensors that the family does not expect; what the layout raises.
    """
    first = source.first
    folder = Path(first.path).parent
    family = plugins.arch(first.arch)
    with about(first.path):
        hparams: HParams = resolve(family.hparams).from_metadata(first.metadata)
    specs = {spec.name: spec for spec in plugins.catalog(family.catalog).expand(hparams)}
    _check_tensors(source, specs)
    used = {"config.json": folder / "config.json"}
    config = _config(source, folder, entry)
    tensors = tuple((specs[name], tensor.qtype) for name, (_, tensor) in source.tensors.items())
    _check_config(config, folder, family, [spec for spec, _ in tensors], first.metadata)

    def text(name: str) -> str | None:
        found = read_text(folder / name)
        if found is not None:
            used[name] = folder / name
        return found

    def codec(qtype: str) -> QuantCodec | None:
        try:
            return plugins.codec(qtype)
        except UnknownNameError:
            return None

    def view(name: str) -> Rows:
        made = source.rows(name, codec(source.tensors[name][1].qtype))
        return rows.View(specs[name].shape, made.dtype, made.read)

    def stored(name: str, start: int, stop: int) -> Bytes:
        return source.rows(name, codec(source.tensors[name][1].qtype)).stored(start, stop)

    layout: OutputFormat = resolve(entry.layout)()
    made = layout.plan_gguf(
        GgufView(
            arch=first.arch,
            hparams=hparams,
            config=config,
            tensors=tensors,
            rows=view,
            stored=stored,
            codec=codec,
            text=text,
        ),
        recipe,
    )
    return made, tuple(used.values())


def _check_tensors(source: GgufSource, specs: dict[str, TensorSpec]) -> None:
    path = source.first.path
    unknown = [name for name in source.tensors if name not in specs]
    missing = [name for name, spec in specs.items() if name not in source.tensors and not spec.optional]
    if unknown or missing:
        raise TensorMismatchError(
            f"{path}: {len(unknown)} tensors are not known to {source.first.arch} ({listing(unknown, 3)}), "
            f"{len(missing)} are missing ({listing(missing, 3)})"
        )
    for name, (_, tensor) in source.tensors.items():
        if stored_shape(tensor) != squeezed(specs[name].shape):
            raise TensorMismatchError(f"{path}: {name} has the shape {tensor.shape}, expected {specs[name].shape}")


def _config(source: GgufSource, folder: Path, entry: WriterEntry) -> Any:
    try:
        return read_config(folder)
    except MissingFileError as error:
        raise MissingFileError(
            f"--format {entry.name} needs config.json beside {source.first.path}, which a GGUF file does not hold",
            hint="copy config.json, tokenizer.json and tokenizer_config.json of the checkpoint there",
        ) from error


def _check_config(config: Any, folder: Path, family: ArchEntry, specs: Iterable[TensorSpec], metadata: Any) -> None:
    """Refuse a config.json of another model: what the family reads from it must be what the file says."""
    path = folder / "config.json"
    source = Source(directory=folder, config=config, checkpoint=Checkpoint(str(folder), {}, {}))
    if source.hf_architecture not in family.hf_architectures:
        raise ConfigError(f"{path} is of {source.hf_architecture}, expected {listing(family.hf_architectures)}")
    infos = [
        TensorInfo(name=name, shape=spec.shape, dtype="BF16", file="", offset=0, nbytes=0)
        for spec in specs
        for name in (spec.inputs[0] if spec.inputs else ())
    ]
    mtp = any(info.name.startswith("mtp") for info in infos)
    made: HParams = resolve(family.hparams).from_config(config, infos, mtp=mtp)
    wrong = [
        f"{field.key} would be {field.value!r}, the file says {metadata.get(field.key)!r}"
        for field in made.metadata()
        if field.key not in NOT_IN_CONFIG and not _same(field.value, metadata.get(field.key))
    ]
    if wrong:
        raise ConfigError(f"{path} is of another model than the file beside it: {listing(wrong, 3)}")


def _same(one: Any, other: Any) -> bool:
    """Whether two values of a key are equal; floats are compared as the 32 bits that a file keeps."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, float) or isinstance(other, float):
        return other is not None and bool(np.float32(one) == np.float32(other))
    return bool(one == other)
