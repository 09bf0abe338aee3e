"""What can be checked of a GGUF file besides its tensors: its keys against expected ones, and the bytes in between."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterator, Sequence
from typing import Literal

from hf2q.errors import ContractError, FormatError
from hf2q.formats.files import open_regular, read_bytes
from hf2q.formats.gguf import GgufFile, encode_header
from hf2q.formats.gguf.encode import encode_field
from hf2q.formats.gguf.layout import padded
from hf2q.types import MetadataField, Record, TensorPlan, ValueType


class KeyCheck(Record, frozen=True, kw_only=True):
    """A key that is not as it should be, with short texts of its values; None where there is none.

    status  ``differs`` (value or type), ``missing`` (from the file), ``extra`` (in it), ``order``
    """

    file: str
    key: str
    status: Literal["differs", "missing", "extra", "order"]
    found: str | None = None
    expected: str | None = None


class Problem(Record, frozen=True, kw_only=True):
    """Something about a file that is neither a tensor's data nor a key.

    what  ``header``, ``padding``, ``trailing``, ``order`` (of tensors), ``sha256`` or ``source``
    """

    file: str
    what: Literal["header", "padding", "trailing", "order", "sha256", "source"]
    message: str


def check_keys(file: GgufFile, expected: Sequence[MetadataField]) -> Iterator[KeyCheck]:
    """Every key of `file` that is not exactly, to the byte, what is expected."""
    wanted = {field.key: field for field in expected}
    for key in file.keys_in_order:
        found = file.field(key)
        if key not in wanted:
            yield KeyCheck(file=file.path, key=key, status="extra", found=_short(found))
        elif encode_field(found) != encode_field(wanted[key]):
            yield KeyCheck(file=file.path, key=key, status="differs", found=_short(found), expected=_short(wanted[key]))
    for key, field in wanted.items():
        if key not in file.metadata:
            yield KeyCheck(file=file.path, key=key, status="missing", expected=_short(field))
    common = [key for key in file.keys_in_order if key in wanted]
    right = [key for key in wanted if key in file.metadata]
    for number, (key, other) in enumerate(zip(common, right, strict=True)):
        if key != other:
            yield KeyCheck(file=file.path, key=key, status="order", found=f"place {number}", expected=other)
            return


def check_layout(file: GgufFile) -> Iterator[Problem]:
    """Bytes of `file` that hold nothing, or hold it in another way than the format's plain one.

    The header must be what its content encodes to; padding must be zero; nothing may follow.
    """
    descriptor, size = open_regular(file.path)
    try:
        yield from _header(file, descriptor)
        for tensor in file.tensors.values():
            end = tensor.offset + tensor.nbytes
            stop = file.data_offset + padded(end - file.data_offset, file.alignment)
            padding = read_bytes(descriptor, stop - end, end, file.path)
            if any(padding):
                at = next(index for index, byte in enumerate(padding) if byte)
                yield Problem(
                    file=file.path,
                    what="padding",
                    message=f"byte {end + at}, padding after {tensor.name}, is {padding[at]}, expected 0",
                )
        if size > file.data_end:
            yield Problem(
                file=file.path,
                what="trailing",
                message=f"{size - file.data_end} bytes follow the last tensor, from byte {file.data_end} on",
            )
    finally:
        os.close(descriptor)


def _header(file: GgufFile, descriptor: int) -> Iterator[Problem]:
    tensors = [
        TensorPlan(
            name=tensor.name,
            shape=tensor.shape,
            qtype=tensor.qtype,
            via=tensor.qtype,
            reason="",
            nbytes=tensor.nbytes,
            offset=tensor.offset - file.data_offset,
            inputs=(),
        )
        for tensor in file.tensors.values()
    ]
    try:
        again = encode_header([file.field(key) for key in file.keys_in_order], tensors)
    except (ContractError, FormatError) as error:
        yield Problem(file=file.path, what="header", message=f"cannot be written again: {error.message}")
        return
    there = read_bytes(descriptor, file.data_offset, 0, file.path)
    if there == again[: len(there)] and (len(there) == len(again) or not tensors):
        return
    at = next((i for i, (a, b) in enumerate(zip(there, again, strict=False)) if a != b), min(len(there), len(again)))
    yield Problem(
        file=file.path, what="header", message=f"byte {at} is not what its content encodes to, or is padding but not 0"
    )


def _short(field: MetadataField) -> str:
    kind = field.type.name if field.element is None else f"array of {field.element.name}"
    if field.type is ValueType.ARRAY:
        return f"{kind}, {len(field.value)} elements: {reprlib.repr(field.value)}"
    return f"{kind} {reprlib.repr(field.value)}"
