"""How a file says that it was made: by its receipt, else by its own keys, else by its ``general.file_type`` alone."""

from __future__ import annotations

import logging
from pathlib import Path

from hf2q.convert.automatic import AUTO
from hf2q.convert.names import find_recipe
from hf2q.convert.projector import ARCH as PROJECTOR
from hf2q.convert.provenance import PREFIX, Provenance, Settings, SourceName, read_provenance
from hf2q.convert.receipt import SUFFIX, OutputFile, Receipt, read_receipt, receipt_path
from hf2q.errors import FormatError, Hf2qError, UnknownNameError
from hf2q.formats.gguf import GgufFile
from hf2q.plugins import Plugins
from hf2q.policy.refused import NUMBERS
from hf2q.types import Recipe, Record

log = logging.getLogger(__name__)

IMATRIX_FILE = "quantize.imatrix.file"
"""Where llama-quantize writes the path of the importance matrix, as it was given."""


class Recorded(Record, frozen=True, kw_only=True):
    """What is known about a file's making.

    projector   it is a projector
    recipe      its recipe
    made        None when neither receipt nor keys say how
    stamped     the file carries our keys
    receipt     and where it lies
    outputs     what the receipt says of this file and its shards, in their order
    imatrix_path  the path of an importance matrix as it was given, "" when none was used or nothing says so
    """

    projector: bool
    recipe: Recipe
    made: Provenance | None
    stamped: bool
    receipt: Receipt | None
    receipt_path: Path | None
    outputs: tuple[OutputFile, ...]
    imatrix_path: str


def read_record(files: tuple[GgufFile, ...], plugins: Plugins, recipe: str | None = None) -> Recorded:
    """What is known about the model in `files`, its shards in order; `recipe` is taken in place of the recorded one.

    Errors: FormatError for a receipt or keys that are not understood, and for a file type that no recipe writes;
    UnknownNameError for a recipe that no plugin provides.
    """
    first = files[0]
    projector = first.arch == PROJECTOR
    receipt, path = _find_receipt(Path(first.path))
    outputs: tuple[OutputFile, ...] = ()
    made: Provenance | None
    if receipt is not None and path is not None:
        made, outputs = (
            _of_receipt(receipt, path, files, projector=projector),
            _outputs(receipt, path, files, projector),
        )
    else:
        made = read_provenance(first)
    given = first.metadata.get(IMATRIX_FILE, "")
    if receipt is not None:
        given = receipt.recipe.imatrix.path if receipt.recipe.imatrix is not None and not projector else ""
    if recipe is None and made is not None:
        recipe = made.recipe
    return Recorded(
        projector=projector,
        recipe=_by_file_type(first, plugins) if recipe is None else find_recipe(plugins, recipe),
        made=made,
        stamped=any(key.startswith(PREFIX) for key in first.metadata),
        receipt=receipt,
        receipt_path=path,
        outputs=outputs,
        imatrix_path=given if isinstance(given, str) else "",
    )


def _find_receipt(file: Path) -> tuple[Receipt | None, Path | None]:
    """The receipt of `file`: beside it under its name, or, for a projector, the model's."""
    own = receipt_path(file)
    found = read_receipt(own)
    if found is not None:
        return found, own
    for path in sorted(file.parent.glob(f"*{SUFFIX}")):
        try:
            found = read_receipt(path)
        except Hf2qError as error:
            log.info("%s is not looked at: %s", path, error.message)
            continue
        if found is not None and any(output.name == file.name for output in found.outputs):
            return found, path
    return None, None


def _outputs(receipt: Receipt, path: Path, files: tuple[GgufFile, ...], projector: bool) -> tuple[OutputFile, ...]:
    role = "projector" if projector else "model"
    outputs = tuple(output for output in receipt.outputs if output.role == role)
    if len(outputs) != len(files):
        raise FormatError(
            f"{path} lists {len(outputs)} files of the {role}, but there are {len(files)}",
            hint="move the receipt away to go without it, if it belongs to another file",
        )
    return outputs


def _of_receipt(receipt: Receipt, path: Path, files: tuple[GgufFile, ...], *, projector: bool) -> Provenance:
    source, used = receipt.source, receipt.recipe
    role = "projector" if projector else "model"
    plan = next((plan for plan in receipt.plans if plan.role == role), None)
    if plan is None:
        raise FormatError(f"{path} has no plan of the {role} {files[0].path}")
    alone = projector and receipt.plans[0] is not plan
    return Provenance(
        version=receipt.converter.version,
        source=SourceName(kind=source.kind, name=source.canonical or source.name, revision=source.revision or ""),
        recipe=plan.recipe if projector else used.name,
        via=plan.recipe if projector else used.via,
        settings=Settings() if alone else used.options,
        imatrix="" if projector or used.imatrix is None else used.imatrix.sha256,
    )


def _by_file_type(file: GgufFile, plugins: Plugins) -> Recipe:
    """The recipe that writes the file type; of several, the one that the number is named after."""
    number = file.metadata.get("general.file_type")
    found = [recipe for recipe in plugins.recipes if recipe.ftype == number and recipe.name != AUTO]
    named = NUMBERS.get(number, "") if isinstance(number, int) else ""
    found.sort(key=lambda recipe: recipe.name != named)
    if not found:
        raise UnknownNameError(
            f"{file.path}: no recipe of an installed plugin writes general.file_type {number!r}, and nothing else says "
            "how the file was made",
            hint="--quant NAME says it",
        )
    return found[0]
