"""``hf2q gguf-patch``: other metadata for a file, the tensor bytes untouched."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from hf2q.cli.output import print_json, printable
from hf2q.cli.values import split_setting, typed
from hf2q.errors import Hf2qError, LoadError, UnknownNameError, UsageError
from hf2q.types import MetadataField

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hf2q.formats.gguf.reader import GgufFile

log = logging.getLogger(__name__)

MAX_TEXT = 16 << 20


def command(
    file: Annotated[Path, Parameter(help="A GGUF file.")],
    /,
    *,
    set: Annotated[
        list[str] | None,
        Parameter(
            help="KEY=VALUE, or KEY=TYPE:VALUE with a type of u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 bool str "
            "arr[TYPE]. An array is a JSON list. May be repeated.",
            negative=(),
        ),
    ] = None,
    set_file: Annotated[
        list[str] | None,
        Parameter(help="KEY=PATH: the text of a file, e.g. tokenizer.chat_template=chat.jinja.", negative=()),
    ] = None,
    remove: Annotated[list[str] | None, Parameter(help="KEY to leave out. May be repeated.", negative=())] = None,
    output: Annotated[
        Path | None, Parameter(name=["--output", "-o"], help="The new file (default: in place of the old one).")
    ] = None,
    dry_run: Annotated[bool, Parameter(help="Show what would change; write nothing.")] = False,
    force: Annotated[bool, Parameter(help="Replace an existing output.")] = False,
    json: Annotated[bool, Parameter(help="Print JSON.")] = False,
) -> None:
    """Set and remove metadata of a GGUF file. The tensor data is copied verbatim, and proven to be the same.

    What would no longer load is refused. The file is replaced in one step, when the new one is complete and on disk.
    """
    from hf2q.formats.gguf.patch import patched_fields, write_patched
    from hf2q.formats.gguf.reader import open_gguf

    if not (set or set_file or remove):
        raise UsageError("nothing to change", hint="--set KEY=VALUE, --set-file KEY=PATH or --remove KEY")
    target = file if output is None else output
    if output is not None and output.exists() and not force:
        raise UsageError(f"{output} exists already", hint="--force replaces it; without -o the file itself is changed")
    with open_gguf(file) as opened:
        changes = _changes(opened, set or (), set_file or ())
        fields = patched_fields(opened, changes, remove or ())
        steps = [_step(opened, field) for field in changes.values()]
        steps += [{"key": key, "removed": _shown(opened.metadata.field(key))} for key in remove or ()]
        result: dict[str, object] = {"file": str(target), "dry_run": dry_run, "changes": steps}
        if not dry_run:
            done = write_patched(opened, fields, str(target), check=_checker(opened))
            result |= {"nbytes": done.nbytes, "data_bytes": done.data_bytes, "data_sha256": done.data_sha256}
    if json:
        print_json(result)
        return
    for step in steps:
        if "removed" in step:
            print(f"removed  {printable(str(step['key']))} (was {step['removed']})")
        else:
            was = "new" if step["before"] is None else f"was {step['before']}"
            print(f"set      {printable(str(step['key']))} = {step['after']} ({step['type']}, {was})")
    if dry_run:
        print(f"dry run: {target} was not written")
    else:
        print(f"wrote    {target}, {result['data_bytes']:,} bytes behind the header unchanged")
        print(f"         sha256 of these {result['data_sha256']}")


def _changes(file: GgufFile, settings: Sequence[str], files: Sequence[str]) -> dict[str, MetadataField]:
    changes: dict[str, MetadataField] = {}

    def add(field: MetadataField) -> None:
        if field.key in changes:
            raise UsageError(f"{field.key} is set twice")
        changes[field.key] = field

    for text in settings:
        key, value = split_setting(text)
        add(typed(key, value, file.metadata.field(key) if key in file.metadata else None))
    for text in files:
        key, path = split_setting(text)
        if key in file.metadata and file.metadata.type_of(key).name != "STRING":
            raise UsageError(f"{key} is of type {file.metadata.type_of(key).name}; --set-file sets texts")
        add(MetadataField.string(key, _text(Path(path).expanduser())))
    return changes


def _text(path: Path) -> str:
    from hf2q.formats.tokenizer.files import read_bounded

    data = read_bounded(path, MAX_TEXT)
    if data is None:
        raise UsageError(f"{path} does not exist", hint="--set-file KEY=PATH takes the text of a file")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: {error}") from None


def _step(file: GgufFile, field: MetadataField) -> dict[str, object]:
    before = _shown(file.metadata.field(field.key)) if field.key in file.metadata else None
    kind = f"{field.element.name}[]" if field.element is not None else field.type.name
    return {"key": field.key, "type": kind.lower(), "before": before, "after": _shown(field)}


def _shown(field: MetadataField) -> str:
    if field.element is not None:
        return f"{len(field.value)} values of {field.element.name.lower()}"
    return printable(str(field.value), 80)


def _checker(before: GgufFile) -> Callable[[GgufFile], None]:
    """A check that the patched file loads, unless the file did not before."""
    from hf2q.plugins import Plugins
    from hf2q.serve.load import check_loadable

    plugins = Plugins.load()

    def problem(file: GgufFile) -> Hf2qError | None:
        try:
            check_loadable(file, plugins)
        except Hf2qError as error:
            return error
        return None

    def check(made: GgufFile) -> None:
        error = problem(made)
        if error is None:
            return
        if isinstance(error, UnknownNameError):
            log.warning("not checked whether it loads: %s", error.message)
        elif (old := problem(before)) is not None:
            log.warning("the file did not load before, and does not now: %s", old.message)
        else:
            raise LoadError(f"that change would break loading: {error.message}", hint=error.hint) from error

    return check
