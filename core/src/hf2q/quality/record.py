"""Results of windows as they come, on disk: a run that was interrupted goes on where it stopped.

A file of JSON lines. The first says what was measured (`key`); a file of another measurement is refused. Each of the
others is the result of one window, in order. A line that was cut off by a kill is dropped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import msgspec

from hf2q.errors import QualityError, WriteError

Result = TypeVar("Result")


class Recorded(Generic[Result]):
    """Results so far (`results`), and `add` for the next. Without a path nothing is kept on disk.

    Errors: QualityError for a file of another measurement, WriteError when it cannot be written.
    """

    def __init__(self, path: Path | None, key: Mapping[str, Any], kind: type[Result]) -> None:
        self.results: list[Result] = []
        self._file: Any = None
        if path is None:
            return
        head = msgspec.json.encode(dict(key))
        kept = head + b"\n"
        for number, line in enumerate(_lines(path)):
            if number == 0:
                self._same(path, msgspec.json.decode(line), msgspec.json.decode(head))
                continue
            try:
                self.results.append(msgspec.json.decode(line, type=kind))
            except msgspec.MsgspecError as error:
                raise QualityError(
                    f"{path}, line {number + 1}: no result of this measurement ({error})", hint="take another file"
                ) from error
            kept += line + b"\n"
        try:
            temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            temporary.write_bytes(kept)
            temporary.replace(path)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise WriteError(f"{path} cannot be written: {error}") from error

    def add(self, result: Result) -> None:
        """Keep the next result."""
        self.results.append(result)
        if self._file is None:
            return
        try:
            self._file.write(msgspec.json.encode(result) + b"\n")
        except OSError as error:
            raise WriteError(f"{self._file.name} cannot be written: {error}") from error

    def __enter__(self) -> Recorded[Result]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    @staticmethod
    def _same(path: Path, found: Any, wanted: Mapping[str, Any]) -> None:
        if not isinstance(found, dict):
            raise QualityError(f"{path} holds no results of a measurement", hint="take another file")
        other = [name for name in {*found, *wanted} if found.get(name) != wanted.get(name)]
        if other:
            name = "measurement" if "measurement" in other else min(other)
            raise QualityError(
                f"{path} holds results of another measurement: {name} is {found.get(name)!r} there, "
                f"{wanted.get(name)!r} here",
                hint="take another file, or remove it to begin anew",
            )


def _lines(path: Path) -> Iterator[bytes]:
    """Whole lines; the one that a kill cut off has no end."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise QualityError(f"{path} cannot be read: {error}") from error
    lines: Sequence[bytes] = data.split(b"\n")
    yield from lines[:-1]
