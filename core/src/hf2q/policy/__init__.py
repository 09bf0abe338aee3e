"""Which type each tensor of a file gets: what is the same for every recipe that follows llama-quantize.

    tensors  which tensors are quantized at all, and the role of each by its name
    shapes   what stands in for a type whose blocks do not fit a tensor's rows
    options  what a user asked for besides the recipe, and how it is spelled
    walk     `choose_types`: options, the recipe's own mix, and the shape, in the order in which they count
    refused  names of recipes that mean something, but nothing that can be converted to

A plugin that brings a recipe writes a mix, a function from one tensor to its type, and hands it to `choose_types`.
Sits on `hf2q.formats.ggml_types`; used by `hf2q.convert` and by plugins. Source: llama.cpp, src/llama-quant.cpp.
"""

from hf2q.policy.options import asked_for, parse_qtype, parse_tensor_type, read_tensor_types
from hf2q.policy.shapes import FALLBACK, fallback, fits
from hf2q.policy.tensors import Role, role_of, why_kept
from hf2q.policy.walk import Mix, choose_types

__all__ = [
    "FALLBACK",
    "Mix",
    "Role",
    "asked_for",
    "choose_types",
    "fallback",
    "fits",
    "parse_qtype",
    "parse_tensor_type",
    "read_tensor_types",
    "role_of",
    "why_kept",
]
