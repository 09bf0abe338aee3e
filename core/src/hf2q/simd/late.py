"""What needs numba or LLVM, named before either is imported.

Importing numba takes half a second and a hundred megabytes, and is of no use when all kernels come from the disk. So
the modules that define operations name what they need of it by a `Late`, at the place of an import:

    ir: Any = Late("llvmlite.ir")

Nothing at a module's top level may use it. Before the first operation of a module is built, `settle` puts the real
things in the place of those names, in that module.
"""

from __future__ import annotations

import importlib
from typing import Any


class Late:
    """The module "a.b", or "a.b:name" in it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def value(self) -> Any:
        """The real thing."""
        module, _, name = self.path.partition(":")
        found = importlib.import_module(module)
        return getattr(found, name) if name else found


def settle(names: dict[str, Any]) -> None:
    """Replace what is late among the names of a module."""
    for name, value in list(names.items()):
        if isinstance(value, Late):
            names[name] = value.value()
