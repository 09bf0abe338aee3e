"""A checkpoint to convert: its directory, its config.json, its tensors. Weights are not read here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf2q.convert.origin import Origin
from hf2q.convert.quantized import read_quantization
from hf2q.convert.scaled import ScaledCheckpoint, expand_scales
from hf2q.errors import ConfigError, MissingFileError, SourceError
from hf2q.formats.safetensors import Checkpoint, open_checkpoint
from hf2q.formats.strict_json import parse
from hf2q.formats.tokenizer.files import read_bounded
from hf2q.types import Record

MAX_CONFIG_BYTES = 16 << 20


class Source(Record, frozen=True, kw_only=True):
    """An opened checkpoint; `config` is the parsed ``config.json``, untouched; `origin` None for a local directory."""

    directory: Path
    config: Mapping[str, Any]
    checkpoint: Checkpoint | ScaledCheckpoint
    origin: Origin | None = None

    @property
    def hf_architecture(self) -> str:
        """The class that decides the family: ``text_config``'s own where it names one.

        Source: llama.cpp, conversion/base.py, `get_model_architecture`.
        """
        text = self.config.get("text_config")
        own = text.get("architectures") if isinstance(text, Mapping) else None
        names = own or self.config.get("architectures")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise ConfigError(
                f"{self.directory / 'config.json'}: architectures is {names!r}, expected a list of class names"
            )
        return str(names[0])


def open_source(source: str) -> Source:
    """Open a local directory.

    Errors: MissingFileError when there is no such directory or no config.json; SourceError for what is not a
    directory; ConfigError for checkpoints that are quantized or rewritten already.
    """
    directory = _local_directory(source)
    config = read_config(directory)
    stated = read_quantization(directory, config)
    checkpoint = open_checkpoint(directory)
    mlx = [file for file, metadata in checkpoint.metadata.items() if metadata.get("format") == "mlx"]
    if mlx:
        raise SourceError(
            f"{directory / mlx[0]} was written by MLX, which stores some tensors changed (norms with 1 added, "
            "convolutions transposed, MTP dropped) without saying which",
            hint="convert the checkpoint that the MLX model was made from",
        )
    return Source(directory=directory, config=config, checkpoint=expand_scales(checkpoint, stated))


def read_config(directory: Path) -> Mapping[str, Any]:
    """The parsed config.json. Errors: MissingFileError, FormatError, SourceError, ConfigError for another value."""
    path = directory / "config.json"
    data = read_bounded(path, MAX_CONFIG_BYTES)
    if data is None:
        raise MissingFileError(f"{path} does not exist", hint="a checkpoint is a directory with config.json in it")
    config = parse(data, str(path))
    if not isinstance(config, dict):
        raise ConfigError(f"{path} holds a {type(config).__name__}, expected an object")
    return config


def _local_directory(source: str) -> Path:
    if not source:
        raise MissingFileError("the source is named by an empty text", hint="give the directory of a checkpoint")
    try:
        path = Path(source).expanduser()
        if path.is_dir():
            return path
        exists = path.exists()
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: the home of a user that does not exist
        raise MissingFileError(f"{source!r} cannot be opened: {error}") from None
    if exists:
        raise SourceError(
            f"{source} is a file, expected a checkpoint directory", hint="give the directory that holds config.json"
        )
    if re.match(r"https?://", source) or re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        repo = re.sub(r"^https?://[^/]+/", "", source).strip("/")
        raise MissingFileError(
            f"there is no directory {source}; checkpoints on a hub have to be downloaded first",
            hint=f"hf download {repo} --local-dir {repo.rpartition('/')[2]}",
        )
    raise MissingFileError(f"there is no directory {source}")
