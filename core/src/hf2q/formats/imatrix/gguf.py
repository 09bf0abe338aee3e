"""``.imatrix.gguf``: two float32 tensors for each entry, ``NAME.in_sum2`` (n, width) and ``NAME.counts`` (n, 1).

Source: llama.cpp, tools/imatrix/imatrix.cpp, `save_imatrix`; common/imatrix-loader.cpp, `common_imatrix_load`. The
bytes written are those of llama-imatrix.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from hf2q.errors import FormatError, WriteError
from hf2q.formats.gguf import GgufFile, GgufWriter, open_gguf, plan_offsets
from hf2q.formats.gguf.layout import MAX_NAME_BYTES
from hf2q.formats.imatrix.record import Entry, Imatrix, check_sums, sorted_entries
from hf2q.types import MetadataField, Plan, TensorPlan, ValueType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hf2q.types import Float32, Shape

log = logging.getLogger(__name__)

SUMS, COUNTS = ".in_sum2", ".counts"
DATASETS, CHUNK_COUNT, CHUNK_SIZE = "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"
MAX_COUNT = 1 << 62


def read_gguf(path: str) -> Imatrix:
    """Read a file. Sums are read-only views of the mapped file, valid for as long as they are in use.

    Errors: FormatError naming tensor and position for what llama-quantize refuses, and for values and counts that no
    sum of squares can have.
    """
    with open_gguf(path) as file:
        datasets, chunk_count, chunk_size = _metadata(file)
        ends = {name: end for name in file.tensors for end in (SUMS, COUNTS) if name.endswith(end)}
        for name in file.tensors.keys() - ends.keys():
            log.info("%s: tensor %s is no part of an importance matrix that is understood; left out", path, name)
        names = {name.removesuffix(end) for name, end in ends.items()}
        if not names:
            raise FormatError(f"{path} holds no importance: no tensor's name ends in {SUMS}")
        return Imatrix(
            entries=sorted_entries({name: _entry(file, name) for name in names}),
            datasets=datasets,
            chunk_count=chunk_count,
            chunk_size=chunk_size,
        )


def write_gguf(path: str, imatrix: Imatrix) -> None:
    """Write a file; counts in chunks become counts in tokens first (`Imatrix.in_tokens`).

    Errors: WriteError, also for names that are too long for this format.
    """
    imatrix = imatrix.in_tokens()
    parts: dict[str, tuple[Shape, Float32]] = {}
    for name, entry in sorted_entries(imatrix.entries).items():
        if len(f"{name}{SUMS}".encode()) > MAX_NAME_BYTES:
            raise WriteError(f"{path}: {name!r} is too long a name for an importance matrix in GGUF")
        parts[f"{name}{SUMS}"] = _squeezed(entry.sums.shape), entry.sums
        parts[f"{name}{COUNTS}"] = _squeezed((len(entry.counts), 1)), entry.counts.astype(np.float32)
    offsets = plan_offsets(values.nbytes for _, values in parts.values())
    plan = Plan(
        arch="",
        recipe="",
        via="",
        metadata=(
            MetadataField.string("general.type", "imatrix"),
            MetadataField.array(DATASETS, ValueType.STRING, imatrix.datasets),
            MetadataField.u32(CHUNK_COUNT, imatrix.chunk_count),
            MetadataField.u32(CHUNK_SIZE, imatrix.chunk_size),
        ),
        tensors=tuple(
            TensorPlan(
                name=name,
                shape=shape,
                qtype="F32",
                via="F32",
                reason="",
                nbytes=values.nbytes,
                offset=offset,
                inputs=(),
            )
            for (name, (shape, values)), offset in zip(parts.items(), offsets, strict=True)
        ),
    )
    writer = GgufWriter(path, plan)
    try:
        for name, (_, values) in parts.items():
            writer.write(name, np.ascontiguousarray(values, "<f4").reshape(-1).view(np.uint8))
        writer.close()
    finally:
        writer.abort()


def _metadata(file: GgufFile) -> tuple[tuple[str, ...], int, int]:
    """Datasets, number of chunks and tokens of a chunk, all of which must be there."""
    missing = [key for key in (DATASETS, CHUNK_COUNT, CHUNK_SIZE) if key not in file.metadata]
    if missing:
        kind = file.metadata.get("general.type")
        what = f"a GGUF file of type {kind!r}" if kind != "imatrix" else "an importance matrix"
        raise FormatError(f"{file.path} is {what} without {' and '.join(missing)}, expected an importance matrix")
    sizes = []
    for key in (CHUNK_COUNT, CHUNK_SIZE):
        if file.metadata.type_of(key) is not ValueType.UINT32:
            raise FormatError(f"{file.path}: {key} is of type {file.metadata.type_of(key).name}, expected UINT32")
        sizes.append(int(file.metadata[key]))
    if sizes[1] == 0:
        raise FormatError(f"{file.path}: {CHUNK_SIZE} is 0, expected the number of tokens of a chunk")
    return file.array(DATASETS, ValueType.STRING), sizes[0], sizes[1]


def _entry(file: GgufFile, name: str) -> Entry:
    sums, counts = _values(file, f"{name}{SUMS}"), _values(file, f"{name}{COUNTS}")
    if sums.size % counts.size:
        raise FormatError(
            f"{file.path}: {name} has {sums.size} sums and {counts.size} counts, expected a multiple of the counts"
        )
    check_sums(sums, file.path, name)
    return Entry(sums=sums.reshape(counts.size, -1), counts=_rounded(counts, file.path, name))


def _values(file: GgufFile, name: str) -> Float32:
    tensor = file.tensors.get(name)
    if tensor is None:
        raise FormatError(f"{file.path}: there is no tensor {name}, expected {SUMS} and {COUNTS} for every entry")
    if tensor.qtype != "F32":
        raise FormatError(f"{file.path}: tensor {name} is {tensor.qtype}, expected F32")
    if not tensor.elements:
        raise FormatError(f"{file.path}: tensor {name} is empty")
    return file.rows(name).reshape(-1).view("<f4")


def _rounded(counts: Float32, path: str, name: str) -> NDArray[np.int64]:
    """Counts as whole numbers, halves away from zero as `std::lround` has it."""
    good = (counts >= 0) & (counts < MAX_COUNT)
    if not good.all():
        position = int(np.flatnonzero(~good)[0])
        raise FormatError(f"{path}: count {position} of {name} is {counts[position]}, expected a number from 0 to 2^62")
    return np.floor(counts.astype(np.float64) + 0.5).astype(np.int64)


def _squeezed(shape: Shape) -> Shape:
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape
