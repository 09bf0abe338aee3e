"""Which files of a source a conversion reads: those whose digests a receipt records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hf2q.convert.origin import Origin
from hf2q.convert.provenance import readable
from hf2q.convert.sidefiles import read_modules
from hf2q.formats.safetensors.shards import INDEX

NAMES = (
    "README.md",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    INDEX,
    "modules.json",
    "preprocessor_config.json",
    "processor_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
"""Files beside the weights that metadata, hparams and tokenizer are read from, where they exist."""


def selected_files(folder: Path | None, weights: Sequence[Path], origin: Origin | None = None) -> dict[str, Path]:
    """Files by their names in the source, with ``/``: of a checkpoint, `weights` and what lies beside them.

    Of a repository, everything that was taken.
    """
    if folder is None:
        return {readable(path.name): path for path in weights}
    found = {path.relative_to(folder).as_posix(): path for path in weights}
    found |= {path.relative_to(folder).as_posix(): path for path in _beside(folder) if path.is_file()}
    if origin is not None:
        found |= {file.path: folder / file.path for file in origin.files}
    return {readable(name): path for name, path in sorted(found.items())}


def _beside(folder: Path) -> Iterator[Path]:
    for name in NAMES:
        yield folder / name
    yield from (folder / "additional_chat_templates").glob("*.jinja")
    for module in read_modules(folder) or ():
        if module["config"] is not None:
            yield folder / module["path"] / "config.json"
