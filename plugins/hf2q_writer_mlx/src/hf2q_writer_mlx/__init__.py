"""hf2q-writer-mlx: ``--format mlx``, a directory that mlx-lm loads.

    recipes    what --quant may be called, and which bits a module gets
    names      how mlx-lm calls the tensors of a checkpoint; one table of rules for each family
    layout     the plan of a directory: names, shapes, types (`MlxFormat`)
    config     config.json and the other text files
    affine     MLX's affine quantization, in numpy;  codec  the same as codecs, one for each width, group and scale type
    from_gguf  the plan of a directory from a GGUF file;  repack  its blocks in MLX's form, without loss
    changes    what mlx-lm does to tensors, as lazy rows
    shards     which tensor goes where in which file
    writer     the files on disk (`MlxWriter`)

Importing this package imports none of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from hf2q.hookspecs import hookimpl
from hf2q.types import WriterEntry

HF2Q_PLUGIN_API = 1


@hookimpl
def hf2q_writers() -> Iterator[WriterEntry]:
    """MLX."""
    yield WriterEntry(
        name="mlx",
        suffix=".mlx",
        writer="hf2q_writer_mlx.writer:MlxWriter",
        layout="hf2q_writer_mlx.layout:MlxFormat",
    )
