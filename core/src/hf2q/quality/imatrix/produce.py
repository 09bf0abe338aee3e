"""A file that runs, for a conversion that wants the importance of what it converts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hf2q.convert import convert
from hf2q.convert.gguf_source import is_gguf
from hf2q.errors import WriteError
from hf2q.formats.temporary import hint_for
from hf2q.plugins import Plugins
from hf2q.types import Plan, TensorPlan


@contextmanager
def runnable(
    source: str | os.PathLike[str] | None,
    folder: Path,
    *,
    repo: str | None = None,
    revision: str | None = None,
    pre: str | None = None,
    threads: int | None = None,
    plugins: Plugins | None = None,
    progress: Callable[[Plan, TensorPlan, int], None] | None = None,
    downloading: Callable[[str, int, int], None] | None = None,
) -> Iterator[Path]:
    """A GGUF file of `source`, which is what `hf2q.convert.convert` takes: itself, or a temporary one in `folder`.

    The temporary one is of the checkpoint's own types, as with ``--quant auto``, and without MTP blocks, which nothing
    runs. It is gone afterwards. Errors: as `convert`.
    """
    if repo is None and source is not None and is_gguf(os.fspath(source)):
        yield Path(source).expanduser()
        return
    try:
        temporary = tempfile.TemporaryDirectory(prefix=".hf2q-imatrix-", dir=folder)
    except OSError as error:
        raise WriteError(f"{folder} cannot be written to: {error.strerror}", hint=hint_for(error)) from error
    with temporary as place:
        made = convert(
            source,
            "auto",
            Path(place) / "model.gguf",
            repo=repo,
            revision=revision,
            mtp=False,
            pre=pre,
            threads=threads,
            provenance=False,
            sidecars=False,
            receipt=False,
            plugins=plugins,
            progress=progress,
            downloading=downloading,
        )
        yield Path(made.output)
