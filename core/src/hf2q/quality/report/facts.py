"""What a file is and how it was made: from its header, the receipt beside it, and its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hf2q.convert.provenance import PREFIX
from hf2q.convert.receipt import Receipt, read_receipt, receipt_path
from hf2q.errors import FormatError, MissingFileError
from hf2q.formats.digest import digest_file
from hf2q.formats.gguf import GgufModel, describe, open_model
from hf2q.quality.perplexity import Report as Progress
from hf2q.types import Record

GENERAL = ("general.name", "general.license", "general.file_type", "general.quantization_version")
"""Keys that are told besides ours, where a file has them."""


class StoredFile(Record, frozen=True, kw_only=True):
    """One file: its own name, its bytes, and their SHA-256."""

    name: str
    size: int
    sha256: str


class Total(Record, frozen=True, kw_only=True):
    """Of all tensors of one type."""

    qtype: str
    tensors: int
    parameters: int
    nbytes: int


class Facts(Record, frozen=True, kw_only=True):
    """What is known of one model.

    name     of the file, of the first of several, or of the directory;  files  all that it consists of
    size     of these together
    arch     None for a directory, as are all that follow, but for `parameters`
    types    totals by type, the largest first
    keys     those of our own making and a few others, as (key, value)
    base_model  the repository that it was made from, "" where that is not recorded
    receipt  the receipt, where there is one that fits the file: (what, value)
    """

    name: str
    files: tuple[StoredFile, ...]
    size: int
    arch: str | None = None
    parameters: int = 0
    tensor_bytes: int = 0
    types: tuple[Total, ...] = ()
    keys: tuple[tuple[str, str], ...] = ()
    base_model: str = ""
    receipt: tuple[tuple[str, str], ...] = ()

    @property
    def bits_per_weight(self) -> float | None:
        """Of the tensors, without header and padding."""
        return 8 * self.tensor_bytes / self.parameters if self.parameters and self.tensor_bytes else None


def gather(path: Path, progress: Progress | None = None) -> Facts:
    """The facts of a GGUF file, the first of several, or of a checkpoint's directory; every file is read once.

    Errors: what opening raises; FormatError for a receipt that tells of another file.
    """
    if path.is_dir():
        files = tuple(_stored(sorted(_weight_files(path)), progress))
        return Facts(name=path.resolve().name, files=files, size=sum(file.size for file in files))
    with open_model(path) as model:
        return _of_model(model, progress)


def _of_model(model: GgufModel, progress: Progress | None) -> Facts:
    found = describe(*model.files)
    files = tuple(_stored([Path(file.path) for file in model.files], progress))
    metadata = model.metadata
    keys = [key for key in metadata if key in GENERAL or key.startswith(PREFIX)]
    hub = metadata.get("hf2q.source.kind") == "hub"
    receipt = read_receipt(receipt_path(Path(model.path)))
    if receipt is not None:
        _check(receipt, files, model.path)
    return Facts(
        name=Path(model.path).name,
        files=files,
        size=model.size,
        arch=found["arch"],
        parameters=found["parameters"],
        tensor_bytes=found["tensor_bytes"],
        types=tuple(Total(qtype=qtype, **total) for qtype, total in found["qtypes"].items()),
        keys=tuple((key, str(metadata[key])) for key in keys),
        base_model=str(metadata.get("hf2q.source.name", "")) if hub else "",
        receipt=() if receipt is None else tuple(_told(receipt)),
    )


def _stored(paths: list[Path], progress: Progress | None) -> Iterator[StoredFile]:
    for number, path in enumerate(paths):
        if progress is not None:
            progress(f"SHA-256 of {path.name}", number, len(paths))
        digest = digest_file(path)
        yield StoredFile(name=path.name, size=digest.size, sha256=digest.sha256)


def _weight_files(folder: Path) -> Iterator[Path]:
    found = [path for path in folder.glob("*.safetensors") if path.is_file()]
    if not found:
        raise MissingFileError(f"{folder} holds no .safetensors file, expected a checkpoint")
    yield from found
    yield from (path for path in (folder / "config.json", folder / "tokenizer.json") if path.is_file())


def _check(receipt: Receipt, files: tuple[StoredFile, ...], path: str) -> None:
    told = {output.sha256 for output in receipt.outputs}
    wrong = next((file for file in files if file.sha256 not in told), None)
    if wrong is not None:
        raise FormatError(
            f"{path}: the receipt beside it tells of another file; {wrong.name} has the SHA-256 {wrong.sha256}, which "
            "is none of the receipt's",
            hint="the file was changed after it was made: convert it again, or move the receipt away",
        )


def _told(receipt: Receipt) -> Iterator[tuple[str, str]]:
    source, converter, used = receipt.source, receipt.converter, receipt.recipe
    yield "source", f"{source.kind} {source.canonical or source.name}"
    if source.revision:
        yield "revision", source.revision
    yield "converter", " ".join(filter(None, (converter.name, converter.version, converter.commit)))
    yield "recipe", used.name
    if used.via:
        yield "via", used.via
    yield "recipe digest", used.digest
    if used.imatrix is not None:
        yield "importance matrix", f"{Path(used.imatrix.path).name}, SHA-256 {used.imatrix.sha256}"
    yield "made", receipt.finished
    for file in source.files:
        yield f"source file {file.path}", f"SHA-256 {file.sha256}"


def as_data(facts: Facts) -> dict[str, Any]:
    """Ready for JSON."""
    import msgspec

    return {**msgspec.to_builtins(facts), "bits_per_weight": facts.bits_per_weight}
