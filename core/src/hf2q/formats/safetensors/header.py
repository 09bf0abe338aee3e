"""The header of one safetensors file, checked against the file before anything else is read.

::

    header length u64 | header: JSON object, begins with "{", may end in spaces | data

    "NAME": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [BEGIN, END]}     offsets count from the data's beginning
    "__metadata__": {"any": "text"}

The tensors must cover the data exactly once: no hole, no overlap. Source: safetensors, README.md and
safetensors/src/tensor.rs (`SafeTensors::read_metadata`, `Metadata::validate`, `Dtype`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hf2q.errors import FormatError
from hf2q.formats.files import Identity, changed, open_regular, read_bytes, refuse_lfs_pointer
from hf2q.formats.strict_json import parse
from hf2q.types import Record, TensorInfo

MAX_HEADER_BYTES = 100_000_000
"""The ceiling of the safetensors library (`MAX_HEADER_SIZE`)."""

MAX_DIMS = 64
"""Ours: what the frameworks that write these files can hold. It keeps products of sizes small."""

BITS: Mapping[str, int] = MappingProxyType(
    {
        "BOOL": 8,
        "F4": 4,
        "F6_E2M3": 6,
        "F6_E3M2": 6,
        "U8": 8,
        "I8": 8,
        "F8_E5M2": 8,
        "F8_E4M3": 8,
        "F8_E8M0": 8,
        "F8_E4M3FNUZ": 8,
        "F8_E5M2FNUZ": 8,
        "I16": 16,
        "U16": 16,
        "F16": 16,
        "BF16": 16,
        "I32": 32,
        "U32": 32,
        "F32": 32,
        "C64": 64,
        "F64": 64,
        "I64": 64,
        "U64": 64,
    }
)
"""Bits per value of every dtype that safetensors 0.8 knows."""

_FIELDS = frozenset({"dtype", "shape", "data_offsets"})
_METADATA = "__metadata__"


class Header(Record, frozen=True, kw_only=True):
    """A checked header: tensors sorted by name, and the text under ``__metadata__``."""

    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]
    identity: Identity


def read_header(directory: str, file: str) -> Header:
    """Read and check the header of `file`, a path relative to `directory`.

    Errors: MissingFileError, SourceError; FormatError for everything that the format forbids, naming file and tensor.
    """
    path = str(Path(directory, file))
    descriptor, size = open_regular(path)
    try:
        start = read_bytes(descriptor, min(size, 64), 0, path)
        refuse_lfs_pointer(start, path)
        if size < 8:
            raise FormatError(f"{path} has {size} bytes, fewer than the 8 of a safetensors header length")
        length = int.from_bytes(start[:8], "little")
        if length > MAX_HEADER_BYTES:
            raise FormatError(
                f"{path}: the header length is {length}, expected at most {MAX_HEADER_BYTES}",
                hint="the file is damaged or no safetensors file",
            )
        if length > size - 8:
            raise FormatError(
                f"{path}: the header needs {length} bytes after byte 8, but the file has only {size} bytes",
                hint="the file is cut short: download it again",
            )
        if start[8 : 8 + length][:1] != b"{":
            found = start[8 : 8 + length][:1]
            raise FormatError(f"{path}: the header of {length} bytes begins with {found!r}, expected b'{{'")
        raw = read_bytes(descriptor, length, 8, path)
        identity = Identity.of(descriptor)
        if identity.size != size:
            raise changed(path)
    finally:
        os.close(descriptor)
    entries = parse(raw, path)
    metadata = _check_metadata(entries.pop(_METADATA, {}), path)
    data = 8 + length
    tensors = {name: _check_tensor(name, entries[name], file, path, data, size) for name in sorted(entries)}
    _check_coverage(tensors, path, data, size)
    return Header(tensors=tensors, metadata=metadata, identity=identity)


def _check_metadata(found: Any, path: str) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise FormatError(f"{path}: {_METADATA} is {str(found)[:80]}, expected an object whose values are text")
    return found


def _check_tensor(name: str, entry: Any, file: str, path: str, data: int, size: int) -> TensorInfo:
    where = f"{path}: tensor {name[:200]!r}"
    if not isinstance(entry, dict) or entry.keys() != _FIELDS:
        found = str(sorted(entry) if isinstance(entry, dict) else entry)[:80]
        raise FormatError(f"{where} is described by {found}, expected {sorted(_FIELDS)}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise FormatError(f"{where} has the dtype {str(dtype)[:80]!r}, expected one of {', '.join(BITS)}")
    if not _sizes(shape) or len(shape) > MAX_DIMS:
        raise FormatError(f"{where} has the shape {str(shape)[:80]}, expected at most {MAX_DIMS} sizes from 0 to 2^63")
    if not _sizes(offsets) or len(offsets) != 2:
        raise FormatError(f"{where} has the data_offsets {str(offsets)[:80]}, expected two positions")
    begin, end = offsets
    if not begin <= end <= size - data:
        raise FormatError(
            f"{where} lies at bytes {begin} to {end} of the data, expected a range within its {size - data} bytes",
            hint="the file is cut short: download it again" if begin <= end else None,
        )
    bits = math.prod(shape) * BITS[dtype]
    if bits != (end - begin) * 8:
        raise FormatError(f"{where} has {end - begin} bytes, but {shape} values of {dtype} need {bits / 8:.10g}")
    return TensorInfo(name=name, shape=tuple(shape), dtype=dtype, file=file, offset=data + begin, nbytes=end - begin)


def _sizes(found: Any) -> bool:
    """Whether it is a list of integers from 0 to 2^63; true and false are no integers here."""
    return isinstance(found, list) and all(type(size) is int and 0 <= size < 1 << 63 for size in found)


def _check_coverage(tensors: Mapping[str, TensorInfo], path: str, data: int, size: int) -> None:
    position = data
    before = ""
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset < position:
            raise FormatError(f"{path}: tensors {before!r} and {tensor.name!r} overlap at byte {tensor.offset}")
        if tensor.offset > position:
            raise FormatError(
                f"{path}: bytes {position} to {tensor.offset}, before tensor {tensor.name!r}, belong to no tensor"
            )
        position = tensor.offset + tensor.nbytes
        before = tensor.name
    if position != size:
        raise FormatError(f"{path}: bytes {position} to {size}, at the end, belong to no tensor")
