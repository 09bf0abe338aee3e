"""Planning for output formats with tensors of their own: the checkpoint is recognised by its family as always, and then
the format's layout decides. Below `prepare`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hf2q.catalog import claim
from hf2q.convert.names import find_recipe
from hf2q.convert.scaled import is_scaled
from hf2q.convert.sidefiles import with_side_files
from hf2q.convert.source import MAX_CONFIG_BYTES, Source
from hf2q.convert.tensors import build_rows
from hf2q.errors import FormatError, UsageError, WriteError
from hf2q.formats.tokenizer.files import read_bounded
from hf2q.plugins import Plugins
from hf2q.types import CheckpointView, FormatPlan, HParams, OutputFormat, Recipe, WriterEntry, resolve

MAX_TEXT_BYTES = 256 << 20
"""More than any tokenizer has."""


def recipe_for(name: str, entry: WriterEntry, plugins: Plugins) -> Recipe:
    """What ``--quant NAME`` means in a format. Errors: UnknownNameError."""
    if not entry.layout:
        return find_recipe(plugins, name)
    layout: OutputFormat = resolve(entry.layout)()
    return layout.recipe(name)


def make_layout(source: Source, recipe: Recipe, entry: WriterEntry, plugins: Plugins) -> FormatPlan:
    """The plan of a folder. `source` is completed.

    Errors: as `hf2q.convert.plan.make_plan`, for every tensor must be known to the family; UsageError for weights with
    scales; what the layout raises.
    """
    if is_scaled(source.checkpoint):
        raise UsageError(
            f"--format {entry.name} takes weights that are plain numbers, and those of {source.directory} have scales",
            hint="--format gguf writes them; or take a checkpoint in bf16",
        )
    family = plugins.arch_for(source.hf_architecture)
    config = with_side_files(source.directory, source.config, family.side_files)
    stored = source.checkpoint.tensors
    hparams: HParams = resolve(family.hparams).from_config(config, stored.values(), mtp=True)
    catalog = plugins.catalog(family.catalog)
    claims = claim(catalog, catalog.expand(hparams), stored.values())
    for one in claims.claimed:
        build_rows(one, source.checkpoint, hparams)  # for its errors: shapes that do not fit
    left_out = dict(claims.ignored)
    layout: OutputFormat = resolve(entry.layout)()
    return layout.plan(
        CheckpointView(
            arch=family.arch,
            config=source.config,
            tensors={name: tensor for name, tensor in stored.items() if name not in left_out},
            left_out=claims.ignored,
            rows=source.checkpoint.rows,
            text=lambda name: read_text(source.directory / name),
        ),
        recipe,
    )


def read_text(path: Path) -> str | None:
    """A file of the source; None when there is none. Errors: FormatError for what is not UTF-8; SourceError."""
    data = read_bounded(path, MAX_CONFIG_BYTES if path.name == "config.json" else MAX_TEXT_BYTES)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is not UTF-8: {error}") from None


def refuse_for_layout(entry: WriterEntry, asked: Mapping[str, bool]) -> None:
    """What decides nothing in this format must not be asked for. Errors: UsageError naming all of it."""
    flags = [flag for flag, given in asked.items() if given]
    if flags:
        raise UsageError(
            f"{' and '.join(flags)} cannot be used with --format {entry.name}",
            hint="it is for GGUF files, --format gguf",
        )


def folder_path(output: str | None, name: str, recipe: str, suffix: str) -> Path:
    """The folder to write: what the user named, or ``NAME-RECIPE`` with the format's ending, here.

    Errors: UsageError, WriteError for what cannot be a name.
    """
    if output is None:
        words = "".join("-" if c in "/\\ " or not c.isprintable() else c for c in name).lstrip(".") or "model"
        return Path(f"{words}-{recipe}{suffix}")
    if not output:
        raise UsageError("the output is named by an empty text", hint="-o FOLDER names it; without -o it goes here")
    try:
        return Path(output).expanduser()
    except RuntimeError as error:  # the home of a user that does not exist
        raise WriteError(f"{output} cannot be written: {error}") from None
