"""What ``--quant`` may be called, and what to say of names that cannot be had.

A name is a recipe that a plugin provides, or known and refused for a stated reason (`hf2q.policy.refused`), or unknown.
"""

from __future__ import annotations

import difflib

from hf2q import known
from hf2q.errors import UnknownNameError, listing
from hf2q.plugins import Plugins
from hf2q.policy.refused import refusal
from hf2q.types import Recipe


def find_recipe(plugins: Plugins, name: str) -> Recipe:
    """The recipe of this name; case does not matter.

    Errors: UnknownNameError saying what is missing, what to install, or which names are near; DuplicateNameError.
    """
    wanted = name.lower()
    recipe = next((r for r in plugins.recipes if wanted in r.aliases), None) or plugins.recipes.get(wanted)
    if recipe is not None:
        return recipe
    if wanted in known.RECIPES:
        raise plugins.recipes.miss(wanted)
    if (error := refusal(name)) is not None:
        raise error
    here = f"here: {listing(plugins.recipes.names, 50)}"
    every = [*plugins.recipes.names, *known.RECIPES]
    near = difflib.get_close_matches(wanted, dict.fromkeys(every), n=3)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    raise UnknownNameError(f"no quant {name!r}{meant} ({here})", hint="hf2q plugins lists every recipe provided")
