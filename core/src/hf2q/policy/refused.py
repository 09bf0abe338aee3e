"""Names of recipes that mean something, but nothing that can be converted to; and what to do instead.

One table for each reason. Names: llama.cpp, tools/quantize/quantize.cpp, `QUANT_OPTIONS`, and include/llama.h,
`enum llama_ftype`; earlier releases of hf2q.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hf2q.errors import UnknownNameError

NUMBERS: Mapping[int, str] = MappingProxyType(
    {
        0: "f32",
        1: "f16",
        2: "q4_0",
        3: "q4_1",
        7: "q8_0",
        8: "q5_0",
        9: "q5_1",
        10: "q2_k",
        11: "q3_k_s",
        12: "q3_k_m",
        13: "q3_k_l",
        14: "q4_k_s",
        15: "q4_k_m",
        16: "q5_k_s",
        17: "q5_k_m",
        18: "q6_k",
        19: "iq2_xxs",
        20: "iq2_xs",
        21: "q2_k_s",
        22: "iq3_xs",
        23: "iq3_xxs",
        24: "iq1_s",
        25: "iq4_nl",
        26: "iq3_s",
        27: "iq3_m",
        28: "iq2_s",
        29: "iq2_m",
        30: "iq4_xs",
        31: "iq1_m",
        32: "bf16",
        36: "tq1_0",
        37: "tq2_0",
        38: "mxfp4_moe",
        39: "nvfp4",
        40: "q1_0",
        41: "q2_0",
    }
)
"""File types by the numbers that llama-quantize takes as well. A number says nothing to a reader; we want the name."""

APEX_TIERS = ("quality", "i-quality", "balanced", "i-balanced", "compact", "i-compact", "mini")

_TERNARY = (
    "a ternary type: weights that were not trained for three values would be destroyed",
    "--quant q2_k is small and keeps a model usable; --tensor-type PATTERN=TYPE gives the type to tensors made for it",
)
_NO_CODEC = ("no plugin of this release encodes its type", "--quant iq2_s and iq2_m are the smallest mixes there are")

REFUSED: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "tq1_0": _TERNARY,
        "tq2_0": _TERNARY,
        "mxfp4_moe": (
            "MXFP4 is for weights that were published in it; made from others it loses more than mixes of its size",
            "--quant auto keeps it where it was published; --tensor-type exps=mxfp4 gives the type to experts",
        ),
        "iq1_s": _NO_CODEC,
        "iq1_m": _NO_CODEC,
        "iq2_xxs": _NO_CODEC,
        "iq2_xs": ("no recipe of this release has that mix", "--quant iq2_s gives most tensors the type IQ2_XS"),
        "q1_0": _NO_CODEC,
        "q2_0": _NO_CODEC,
        "nvfp4": ("no plugin of this release encodes its type", "--quant q4_k_m is of about its size"),
        "copy": ("it converts nothing", "a copy of a GGUF file needs no converter"),
        "dwq": (
            "reserved for weights trained to be quantized, which needs a training pipeline",
            "--quant q4_k_m, with --imatrix FILE where there is an importance matrix",
        ),
        "apex": (
            "it names a family of mixes, not one of them",
            f"--quant apex-balanced; the others: {', '.join(f'apex-{tier}' for tier in APEX_TIERS)}",
        ),
        "apex-custom": ("a mix of one's own is given tensor by tensor", "--quant q5_k_m --tensor-type-file FILE"),
    }
)
"""Name -> why not, and what to do."""

RETIRED: Mapping[str, str] = MappingProxyType(
    {"q2": "q2_k", "q4": "q4_0", "q8": "q8_0", "int4": "q4_0", "int8": "q8_0", "fp16": "f16"}
)
"""Old or loose spellings and what is meant today."""


def refusal(name: str) -> UnknownNameError | None:
    """The error for a name that no plugin provides but that is understood; None for names that mean nothing."""
    wanted = name.lower()
    if wanted.isascii() and wanted.isdigit():
        return _for_number(name)
    if wanted in RETIRED:
        return UnknownNameError(f"no quant {name!r}", hint=f"--quant {RETIRED[wanted]}")
    reason, hint = REFUSED.get(wanted) or _of_family(wanted) or ("", "")
    return UnknownNameError(f"quant {name!r} cannot be converted to: {reason}", hint=hint) if reason else None


def _for_number(name: str) -> UnknownNameError:
    meant = NUMBERS.get(int(name)) if len(name) < 4 else None
    if meant is None:
        return UnknownNameError(f"quant {name!r} is a number that no file type has", hint="give a name, such as q4_k_m")
    other = refusal(meant)
    return other or UnknownNameError(
        f"quant {name!r} is the number of a file type; names are wanted, because they can be read",
        hint=f"--quant {meant}",
    )


def _of_family(wanted: str) -> tuple[str, str] | None:
    """Why not, for the longer names of families of names."""
    family, _, rest = wanted.partition("-")
    if family == "apex" and rest.removeprefix("i-") in ("nano", "micro"):
        return "this tier is not built", "--quant q2_k --tensor-type-file FILE gives a mix of one's own"
    if family == "apex":
        return "there is no such tier", f"the tiers: {', '.join(f'apex-{tier}' for tier in APEX_TIERS)}"
    if family == "dwq":
        return REFUSED["dwq"]
    if family == "imatrix":
        return "importance is an option, not a mix", f"--quant {rest or 'q4_k_m'} --imatrix FILE"
    if family == "dynamic":
        return (
            "mixed types are chosen by measurement now",
            "--quant auto-bpw=4.5, or auto-size=12GiB for the file's size",
        )
    if wanted.partition("=")[0] in ("auto-bpw", "auto-size"):
        return "types are searched for before a conversion, not by it", (
            "`hf2q convert --quant auto-bpw=4.5` does both; from Python, hf2q.quality.allocate.search gives a recipe "
            "and its PolicyOptions.tensor_types"
        )
    if family == "mixed":
        return "mixes of this kind are gone", "--quant q4_k_m, or --tensor-type PATTERN=TYPE for single tensors"
    return None
