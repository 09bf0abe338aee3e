"""`FamilyContract`: what the suites of a family share, and how they change a configuration."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from copy import copy
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hf2q.testing.checkpoints import Shapes, TinyCheckpoint
from hf2q.testing.contract import Contract, not_checked


class FamilyContract(Contract):
    """What the suites of a family share: the tiny configuration, and the checkpoint made from it.

    arch       the GGUF architecture
    config     a tiny ``config.json``: its path, or the parsed object. Small sizes, all different, so that a swapped
               pair shows; a vocabulary of 265 or more
    shapes, leave_out, mtp   what the catalog alone does not tell about the checkpoint, see `TinyCheckpoint`
    projector  whether the checkpoint is the tower that the projector of `arch` is made from
    """

    arch: ClassVar[str] = ""
    config: ClassVar[Path | str | Mapping[str, Any] | None] = None
    shapes: ClassVar[Shapes | None] = None
    leave_out: ClassVar[Collection[str]] = ()
    mtp: ClassVar[bool] = False
    projector: ClassVar[bool] = False
    _checkpoint: ClassVar[TinyCheckpoint]

    @classmethod
    def parsed(cls) -> dict[str, Any]:
        """The configuration; ends the test when there is none."""
        if cls.config is None:
            not_checked("no tiny configuration; set `config`")
        if isinstance(cls.config, Mapping):
            return dict(cls.config)
        found: dict[str, Any] = json.loads(Path(cls.config).read_text(encoding="utf-8"))
        return found

    @classmethod
    def checkpoint(cls) -> TinyCheckpoint:
        """The tiny random checkpoint, made once: a check may give its copy other attributes, not change them."""
        if "_checkpoint" not in vars(cls):
            cls._checkpoint = TinyCheckpoint(
                cls.plugins(),
                cls.arch,
                cls.parsed(),
                shapes=cls.shapes,
                leave_out=cls.leave_out,
                mtp=cls.mtp,
                projector=cls.projector,
            )
        return copy(cls._checkpoint)


def replaced(config: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """`config` with another value at a path of keys."""
    head, *rest = path
    inner = replaced(config[head], tuple(rest), value) if rest else value
    return {**config, head: inner}


def at(config: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    """The object at a path of keys."""
    for key in path:
        config = config[key]
    return config


def others(value: Any) -> list[Any]:
    """Values unlike `value`, of its kind."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value + 2, value + 1]
    if isinstance(value, float):
        return [2 * value + 1, value / 3]
    if isinstance(value, list):
        return [[*value, *value[:1]], value[:-1], value[::-1]] if value else [[0], ["other"]]
    return [f"{value}_other"]


def comparable(value: Any) -> Any:
    """A metadata value as the file keeps it: floats in 32 bits, arrays as tuples."""
    if isinstance(value, float):
        return float(np.float32(value))
    if isinstance(value, list | tuple):
        return tuple(comparable(item) for item in value)
    return value
