"""The `loaded` event: one record of the log that says all about a model that is ready, for people and for programs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hf2q.serve.fit import Needs

if TYPE_CHECKING:
    from hf2q.backends.ops import Ops
    from hf2q.backends.weights import Weights
    from hf2q.formats.gguf import GgufModel

log = logging.getLogger(__name__)


def loaded_fields(
    file: GgufModel, ops: Ops, weights: Weights, needs: Needs, *, context_length: int, seconds: float
) -> Mapping[str, Any]:
    """What the event says.

    path, arch, backend, instructions (what the backend computes with), file_bytes, memory_bytes of the weights as the
    backend holds them, context, cache_tokens and cache_bytes (of one sequence of so many tokens; None where the family
    does not say), seconds since the header was open.
    """
    return {
        "path": str(file.path),
        "arch": file.arch,
        "backend": ops.name,
        "instructions": ops.instructions,
        "file_bytes": file.size,
        "memory_bytes": weights.nbytes,
        "context": context_length,
        "cache_tokens": needs.tokens,
        "cache_bytes": needs.caches,
        "seconds": round(seconds, 3),
    }


def announce(fields: Mapping[str, Any]) -> None:
    """Log the event: as a line of text, and with ``--log-format json`` as fields."""
    log.info(
        "loaded %s (%s) on %s (%s): %.1f MB in the file, %.1f MB in memory, context %d, %.1f s",
        fields["path"],
        fields["arch"],
        fields["backend"],
        fields["instructions"],
        fields["file_bytes"] / 1e6,
        fields["memory_bytes"] / 1e6,
        fields["context"],
        fields["seconds"],
        extra={"event": "loaded", "fields": fields},
    )
