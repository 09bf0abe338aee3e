"""What all contract suites share: the plugin under test, loaded through the door that users go through.

A suite is a plain class whose subclasses pytest collects. Checks whose data only the author has are skipped as "not
checked" when it is missing, never passed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection
from typing import ClassVar, NoReturn, cast

import numpy as np
import pytest

from hf2q.discovery import EntryPoint, discover, normalized
from hf2q.plugins import PluginInfo, Plugins
from hf2q.types import Record

HEAVY = frozenset(
    {
        "gguf",
        "huggingface_hub",
        "jinja2",
        "litestar",
        "llvmlite",
        "mlx",
        "numba",
        "numpy",
        "PIL",
        "safetensors",
        "tokenizers",
        "torch",
        "uvicorn",
    }
)
"""What importing a plugin must not import."""

NOT_CHECKED = "not checked: "


def not_checked(reason: str) -> NoReturn:
    """End the test without a verdict, because the data for one is missing."""
    pytest.skip(NOT_CHECKED + reason)


def normal(seed: int, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Standard normal float32 numbers, the same on every machine and numpy: `RandomState`'s stream is frozen."""
    return np.random.RandomState(seed).standard_normal(shape).astype(np.float32)


class Extra(Record, frozen=True, kw_only=True):
    """An entry point of no distribution."""

    name: str
    value: str
    dist: None = None


class Contract:
    """Checks of the plugin as a whole.

    plugin  its name (the entry point's) or its distribution's; it must be installed
    extra   further plugin modules to load beside it, for a plugin that builds on another
    """

    plugin: ClassVar[str] = ""
    extra: ClassVar[Collection[str]] = ()
    _plugins: ClassVar[Plugins]

    @classmethod
    def plugins(cls) -> Plugins:
        """Core, the plugin under test and `extra`, loaded strictly: whatever is wrong with them is raised."""
        if "_plugins" not in vars(cls):  # checks ask hundreds of times, and it reads every distribution's metadata
            assert cls.plugin, f"{cls.__name__}.plugin is not set"
            points = [*discover(), *(cast("EntryPoint", Extra(name=module, value=module)) for module in cls.extra)]
            cls._plugins = Plugins.load(only=[cls.plugin, *cls.extra], strict=True, entry_points=points)
        return cls._plugins

    @classmethod
    def infos(cls) -> list[PluginInfo]:
        """The records of the plugin under test (a distribution may bring several)."""
        wanted = normalized(cls.plugin)
        own = [info for info in cls.plugins().infos if info.module not in cls.extra]
        return [info for info in own if wanted in (normalized(info.name), normalized(info.distribution))]

    def test_the_plugin_loads(self) -> None:
        """It is installed, states the API version, and its hooks yield what they must."""
        infos = self.infos()
        assert any(info.provides for info in infos), f"{self.plugin} provides nothing"

    def test_importing_it_is_light(self) -> None:
        """Discovery imports every plugin, so importing one loads nothing heavy."""
        code = "import sys, json, {}; print(json.dumps(sorted({{m.partition('.')[0] for m in sys.modules}})))"
        for info in self.infos():
            module = info.module.partition(":")[0]
            done = subprocess.run([sys.executable, "-P", "-c", code.format(module)], capture_output=True, text=True)
            assert done.returncode == 0, f"import {module} failed: {done.stderr}"
            heavy = HEAVY & set(json.loads(done.stdout.splitlines()[-1]))
            assert not heavy, f"import {module} imports {sorted(heavy)}; name them as 'module:attribute' strings"
