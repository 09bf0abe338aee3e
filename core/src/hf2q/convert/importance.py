"""What is known about the importance of columns, for the tensors of one conversion. Below `choices`."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from hf2q.errors import UsageError, listing
from hf2q.types import MetadataField, Record, Shape, TypeChoice

if TYPE_CHECKING:
    from hf2q.formats.imatrix import Imatrix
    from hf2q.types import Float32

UNWEIGHTED = frozenset({"F32", "F16", "BF16", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"})
"""Types that are encoded alike with and without importance (ggml/src/ggml-quants.c, `quantize_q8_0` and others)."""


class Importance(Record, frozen=True, kw_only=True, eq=False):
    """An importance matrix, and the path by which the user gave it."""

    imatrix: Imatrix
    path: str

    def weights(self, name: str, shape: Shape) -> Float32 | None:
        """Float32 (matrices, columns) for a tensor, or None when nothing is known about it.

        Errors: TensorMismatchError when the matrix is about a tensor of another shape.
        """
        return self.imatrix.weights_for(name, shape)

    def known(self, name: str, shape: Shape, choice: TypeChoice) -> bool:
        """Whether the importance of a tensor that is to be encoded is known.

        Errors: UsageError when the type would ruin the tensor without it; TensorMismatchError.
        """
        known = self.weights(name, shape) is not None
        if choice.needs_importance and not known:
            raise UsageError(
                f"{name} gets the type {choice.qtype} ({choice.reason}), which ruins a tensor unless the importance of "
                f"its columns is known, and {self.path} does not know it",
                hint="--tensor-type PATTERN=TYPE gives it a larger type; blocks for multi-token prediction, which no "
                "matrix covers, can be left out of a checkpoint with --no-mtp",
            )
        return known

    def check_names(self, names: Collection[str]) -> None:
        """Errors: UsageError when the matrix knows tensors of blocks that are not among the model's `names`."""
        foreign = [name for name in self.imatrix.entries if name.startswith("blk.") and name not in names]
        if foreign:
            raise UsageError(
                f"{self.path} knows {len(foreign)} tensors that the model does not have: {listing(foreign)}",
                hint="the importance matrix was computed with another model; --exclude-weights leaves entries out",
            )

    def fields(self) -> tuple[MetadataField, ...]:
        """What is written into the model about the matrix."""
        return self.imatrix.provenance(self.path)


def read_importance(
    path: str | os.PathLike[str] | None, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> Importance | None:
    """The matrix in the file `path`, less the entries that `include` and `exclude` leave out; None without a path.

    Errors: UsageError for a choice of entries without a matrix or with nothing left; what `read_imatrix` raises.
    """
    if path is None:
        if include or exclude:
            flag = "--include-weights" if include else "--exclude-weights"
            raise UsageError(
                f"{flag} chooses entries of an importance matrix, and there is none", hint="--imatrix FILE"
            )
        return None
    from hf2q.formats.imatrix import read_imatrix

    return Importance(imatrix=read_imatrix(path).filter(include, exclude), path=os.fspath(path))
