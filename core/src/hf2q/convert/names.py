"""What ``--quant`` may be called, and what to say of names that cannot be had.

A name is a recipe that a plugin provides, or known and missing for a stated reason, or unknown. Names and reasons:
llama.cpp, tools/quantize/quantize.cpp, `QUANT_OPTIONS`; earlier releases of hf2q.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from hf2q import known
from hf2q.errors import UnknownNameError, listing
from hf2q.plugins import Plugins
from hf2q.types import Recipe

NEEDS: Mapping[str, str] = MappingProxyType(
    {
        "iq2_xxs": "IQ2_XXS",
        "iq2_xs": "IQ2_XS",
        "iq1_s": "IQ1_S",
        "iq1_m": "IQ1_M",
        "mxfp4_moe": "MXFP4",
        "nvfp4": "NVFP4",
    }
)
"""Standard mixes that no known plugin provides, with the codec they would need."""

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "tq1_0": "a ternary type: ordinary weights would be destroyed, and there is no quantizer for it",
        "tq2_0": "a ternary type: ordinary weights would be destroyed, and there is no quantizer for it",
        "dwq": "reserved for weights trained to be quantized",
        "apex": "its tiers, for example apex-balanced, come with hf2q-quant-apex, which is not installed",
    }
)
"""Names that mean something, but nothing that can be converted to."""

RETIRED: Mapping[str, str] = MappingProxyType(
    {"q2": "q2_k", "q4": "q4_0", "q8": "q8_0", "auto": "q4_k_m", "int4": "q4_0", "int8": "q8_0", "fp16": "f16"}
)
"""Old or loose spellings and what is meant today."""


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
    here = f"here: {listing(plugins.recipes.names, 20)}"
    if wanted in NEEDS:
        raise UnknownNameError(
            f"quant {name!r} is known, but no plugin provides it: it needs the codec {NEEDS[wanted]} ({here})"
        )
    if wanted in REFUSED or wanted.partition("-")[0] in ("apex", "dwq"):
        reason = REFUSED.get(wanted) or REFUSED[wanted.partition("-")[0]]
        raise UnknownNameError(f"quant {name!r} cannot be converted to: {reason} ({here})")
    if wanted in RETIRED:
        raise UnknownNameError(f"no quant {name!r} ({here})", hint=f"--quant {RETIRED[wanted]}")
    every = [*plugins.recipes.names, *known.RECIPES, *NEEDS, *REFUSED]
    near = difflib.get_close_matches(wanted, dict.fromkeys(every), n=3)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    raise UnknownNameError(f"no quant {name!r}{meant} ({here})", hint="hf2q plugins lists every recipe provided")
