"""Does a model fit into memory? Estimated from the header, before any weight is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from math import prod
from typing import TYPE_CHECKING, cast

from hf2q.errors import LoadError
from hf2q.types import GraphEntry, HParams, Record, resolve

if TYPE_CHECKING:
    from hf2q.backends.ops import Ops
    from hf2q.backends.weights import Stored
    from hf2q.codec import QuantCodec
    from hf2q.formats.gguf import GgufModel

AT_LEAST = 4096
"""Tokens whose caches must fit when no context is asked for: caches grow with the sequence."""

IGNORE = "HF2Q_IGNORE_MEMORY"
"""The environment variable that lets anything load."""

MTP = "mtp"
"""What the kinds of MTP blocks begin with, see `HParams.layer_kinds`."""


class Needs(Record, frozen=True, kw_only=True):
    """Bytes of memory: for the weights, and for the caches of `tokens` tokens; None where the family does not say."""

    weights: int
    caches: int | None
    tokens: int

    @property
    def total(self) -> int:
        """Both together, as far as known."""
        return self.weights + (self.caches or 0)


def estimate(
    file: GgufModel,
    hparams: HParams,
    entry: GraphEntry,
    codec: Callable[[str], QuantCodec],
    ops: Ops,
    *,
    tokens: int,
    draft: bool = False,
) -> Needs:
    """What the model will take on the backend `ops`, for one sequence of `tokens` tokens.

    MTP blocks count only with `draft`. Errors: UnknownNameError for a qtype that no plugin provides.
    """
    kinds = hparams.layer_kinds
    unused = frozenset[str]()
    if not draft:
        unused = frozenset(f"blk.{index}." for index, kind in enumerate(kinds) if kind.startswith(MTP))
    weights = held(_used(file.tensors.items(), unused), codec, ops)
    return Needs(weights=weights, caches=cache_bytes(entry, hparams, tokens), tokens=tokens)


def _used(tensors: Iterable[tuple[str, Stored]], unused: Collection[str]) -> list[Stored]:
    return [tensor for name, tensor in tensors if not any(name.startswith(prefix) for prefix in unused)]


def held(tensors: Iterable[Stored], codec: Callable[[str], QuantCodec], ops: Ops) -> int:
    """Bytes that tensors take as the backend holds them."""
    total = 0
    for tensor in tensors:
        if len(tensor.shape) > 1:
            total += ops.matrix_bytes(codec(tensor.qtype), tensor.shape)
        else:
            total += 4 * prod(tensor.shape)
    return total


def cache_bytes(entry: GraphEntry, hparams: HParams, tokens: int) -> int | None:
    """What a sequence of `tokens` tokens keeps, or None where the family does not say."""
    if not entry.cache_bytes:
        return None
    return cast("Callable[[HParams, int], int]", resolve(entry.cache_bytes))(hparams, tokens)


def check_fits(path: str, needs: Needs, available: int | None, backend: str, *, ignore: bool) -> None:
    """Errors: LoadError with all numbers when less is available, unless that is to be ignored."""
    if available is None or needs.total <= available or ignore or os.environ.get(IGNORE, "") not in ("", "0"):
        return
    caches = "" if needs.caches is None else f", caches for {needs.tokens} tokens {_size(needs.caches)}"
    raise LoadError(
        f"{path} does not fit into memory: it takes {_size(needs.total)} on the backend {backend} "
        f"(weights {_size(needs.weights)}{caches}), {_size(available)} are available",
        hint="take a smaller quantization or a smaller context (--ctx), or free memory; "
        f"--ignore-memory or {IGNORE}=1 loads it all the same",
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e7 else f"{count / 1e6:.2f} MB"
