"""Which file was measured: results on disk are for these bytes, and for no other file of the same name and size."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from hf2q.formats.digest import digest_file
from hf2q.formats.gguf import open_model

if TYPE_CHECKING:
    from hf2q.serve.model import Model


def digest_model(path: Path) -> str:
    """The SHA-256 of a GGUF file; of several, the SHA-256 over theirs. Errors: as `open_model`."""
    with open_model(path) as file:
        digests = [digest_file(Path(one.path)).sha256 for one in file.files]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def identity(model: Model, record: Path | None) -> str:
    """`digest_model` of what is measured, for a `record`; "" without one, and for a model that came from no file."""
    return digest_model(model.path) if record is not None and model.file_size else ""
