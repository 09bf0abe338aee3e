"""What an importance matrix says, whichever file it came from. Middle of `hf2q.formats.imatrix`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from hf2q.errors import FormatError, UsageError
from hf2q.formats.imatrix import weights
from hf2q.types import MetadataField, Record, Shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hf2q.types import Float32

log = logging.getLogger(__name__)

USUAL_CHUNK = 512
"""Tokens of a chunk in llama-imatrix unless told otherwise (tools/imatrix/imatrix.cpp, `main`)."""

MAX_TEXT_BYTES = 127
"""Longest text of an overridden key (include/llama.h, `llama_model_kv_override`)."""


class Entry(Record, frozen=True, kw_only=True, eq=False):
    """What is known about one tensor.

    sums    float32 (n, width), finite and not negative: squared activations of each input column, summed
    counts  int64 (n,), not negative: how many activations were summed, for each expert of a stack

    A dense tensor has one count; `width` is its columns, or, when it holds several matrices, those of all of them.
    """

    sums: Float32
    counts: NDArray[np.int64]

    @property
    def covered(self) -> int:
        """How many of the counts are not zero."""
        return int(np.count_nonzero(self.counts))


class Imatrix(Record, frozen=True, kw_only=True, eq=False):
    """An importance matrix.

    entries      by tensor name, in byte order of names
    datasets     the texts it was computed from
    chunk_count  how many chunks of them were used; 0 when the file does not say
    chunk_size   tokens of a chunk; 0 when the file does not say, and counts are in chunks then (legacy files)
    """

    entries: Mapping[str, Entry]
    datasets: tuple[str, ...] = ()
    chunk_count: int = 0
    chunk_size: int = 0

    def weights_for(self, name: str, shape: Shape) -> Float32 | None:
        """Importance for the tensor `name` of `shape` (numpy order).

        Returns: a new float32 array (matrices, columns), one row for each matrix of the stack, all 1 for experts that
            were never used; None when nothing is known about the tensor.
        Errors: TensorMismatchError when the entry is about a tensor of another shape.
        """
        return weights.weights_for(self.entries, name, shape)

    def filter(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> Imatrix:
        """Without the entries whose names contain any of `exclude`, or with those only that contain any of `include`.

        Errors: UsageError when both are given, and when nothing is left.
        """
        if include and exclude:
            raise UsageError("--include-weights and --exclude-weights cannot be used together", hint="drop one")
        for part in (*include, *exclude):
            if not any(part in name for name in self.entries):
                log.warning("%r is in no name of the importance matrix's %d entries", part, len(self.entries))
        kept = {
            name: entry
            for name, entry in self.entries.items()
            if not any(part in name for part in exclude) and (not include or any(part in name for part in include))
        }
        if not kept:
            raise UsageError(
                "--include-weights or --exclude-weights leave nothing of the importance matrix",
                hint="`hf2q imatrix show FILE` lists its entries",
            )
        return msgspec.structs.replace(self, entries=MappingProxyType(kept))

    def in_tokens(self, chunk_size: int = USUAL_CHUNK) -> Imatrix:
        """The same with counts in tokens, where they are in chunks: as llama-imatrix reads a legacy file.

        For a `chunk_size` that is a power of two, `weights_for` gives exactly the same.

        Errors: FormatError when a sum becomes too large.
        """
        if self.chunk_size:
            return self
        entries = {}
        for name, entry in self.entries.items():
            with np.errstate(over="ignore"):
                sums = entry.sums * np.float32(chunk_size)
            check_sums(sums, f"the importance matrix with chunks of {chunk_size} tokens", name)
            entries[name] = Entry(sums=sums, counts=entry.counts * chunk_size)
        return msgspec.structs.replace(self, entries=MappingProxyType(entries), chunk_size=chunk_size)

    def provenance(self, file: str) -> tuple[MetadataField, ...]:
        """What llama-quantize writes into a model about the matrix it used; `file` is its path as the user gave it.

        Source: tools/quantize/quantize.cpp, `llama_quantize`. The first of several datasets is named.
        """
        fields = [MetadataField.string("quantize.imatrix.file", _cut(file))]
        if self.datasets:
            fields.append(MetadataField.string("quantize.imatrix.dataset", _cut(self.datasets[0])))
        fields.append(MetadataField.u32("quantize.imatrix.entries_count", len(self.entries)))
        if self.chunk_count > 0:
            fields.append(MetadataField.u32("quantize.imatrix.chunks_count", self.chunk_count))
        return tuple(fields)


def sorted_entries(entries: Mapping[str, Entry]) -> Mapping[str, Entry]:
    """Entries in byte order of their names, read-only."""
    return MappingProxyType(dict(sorted(entries.items(), key=lambda item: item[0].encode())))


def check_sums(sums: Float32, path: str, name: str) -> None:
    """Raise FormatError naming the first value of `sums` that no sum of squares can be."""
    if sums.size == 0 or (sums.min() >= 0 and sums.max() < np.inf):  # both comparisons fail for NaN
        return
    flat = sums.reshape(-1)
    position = int(np.flatnonzero(~((flat >= 0) & (flat < np.inf)))[0])
    raise FormatError(
        f"{path}: the importance of {name} holds {flat[position]} at position {position}, expected finite values "
        "that are not negative",
        hint="compute the matrix again; a model that overflows gives such values",
    )


def _cut(text: str) -> str:
    """At most `MAX_TEXT_BYTES` of a text, without a broken character at the end."""
    return text.encode("utf-8", "replace")[:MAX_TEXT_BYTES].decode("utf-8", "ignore")
