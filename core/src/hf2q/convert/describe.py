"""What a checkpoint is, as plain data ready for JSON: the substance of `hf2q info` for one. Reads no weight."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from math import prod
from typing import Any

from hf2q.convert.family import completed
from hf2q.convert.names import find_recipe
from hf2q.convert.plan import make_plan
from hf2q.convert.source import Source
from hf2q.errors import ConfigError, Hf2qError
from hf2q.plugins import Plugins

QUANTS = ("bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k")
"""For which the size is told, as far as there are recipes."""

_KEYS: Mapping[str, tuple[str, ...]] = {
    # what it is called here, and in the configurations of families
    "hidden_size": ("hidden_size", "n_embd", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "attention_heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "vocab_size": ("vocab_size",),
    "context_length": ("max_position_embeddings", "n_positions"),
    "ffn_size": ("intermediate_size", "n_inner"),
    "experts": ("num_experts", "n_routed_experts", "num_local_experts"),
    "experts_used": ("num_experts_per_tok", "num_experts_per_token", "top_k_experts"),
    "expert_ffn_size": ("moe_intermediate_size",),
}


def describe_checkpoint(source: Source, plugins: Plugins) -> dict[str, Any]:
    """A summary of an opened checkpoint.

    Returns: a dict of

    path, origin    the folder, and of a repository {repo, revision, commit, endpoint}, else None
    architecture, model_type, arch   the class (told by the type, where none is named) and type of config.json; GGUF's
                    name, None when no plugin has it
    config          sizes by the names of `_KEYS` as far as config.json says them, and layer_types, sorted
    parameters, tensor_bytes, dtypes   of the tensors; dtypes is {dtype: {tensors, parameters, nbytes}}
    files           a list of {name, size}
    tensors         a list of {name, shape, dtype, nbytes, file}
    sizes           a list of {quant, nbytes}: of the tensors of the GGUF file that the checkpoint would become
    sizes_unknown   why there are none, else None
    """
    with suppress(Hf2qError):
        source = completed(source, plugins)
    tensors = tuple(source.checkpoint.tensors.values())
    dtypes: dict[str, dict[str, int]] = {}
    for tensor in tensors:
        total = dtypes.setdefault(tensor.dtype, {"tensors": 0, "parameters": 0, "nbytes": 0})
        total["tensors"] += 1
        total["parameters"] += prod(tensor.shape)
        total["nbytes"] += tensor.nbytes
    origin = source.origin
    architecture = _architecture(source)
    sizes, reason = _sizes(source, plugins)
    model_type = source.config.get("model_type")
    return {
        "path": str(source.directory) if origin is None else origin.canonical,
        "origin": None
        if origin is None
        else {
            "repo": origin.canonical,
            "revision": origin.revision,
            "commit": origin.commit,
            "endpoint": origin.endpoint,
        },
        "architecture": architecture,
        "model_type": model_type if isinstance(model_type, str) else None,
        "arch": _arch(architecture, plugins),
        "config": _config(source.config),
        "parameters": sum(total["parameters"] for total in dtypes.values()),
        "tensor_bytes": sum(total["nbytes"] for total in dtypes.values()),
        "dtypes": dict(sorted(dtypes.items(), key=lambda item: -item[1]["nbytes"])),
        "files": [{"name": file.name, "size": file.size} for file in source.checkpoint.files],
        "tensors": [
            {"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "nbytes": t.nbytes, "file": t.file}
            for t in tensors
        ],
        "sizes": sizes,
        "sizes_unknown": reason,
    }


def _architecture(source: Source) -> str | None:
    try:
        return source.hf_architecture
    except ConfigError:
        return None


def _arch(architecture: str | None, plugins: Plugins) -> str | None:
    try:
        return None if architecture is None else plugins.arch_for(architecture).arch
    except Hf2qError:
        return None


def _config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text model's keys come first, as when it is converted."""
    text = config.get("text_config")
    places = (text, config) if isinstance(text, Mapping) else (config,)

    def first(keys: tuple[str, ...]) -> Any:
        return next((place[key] for place in places for key in keys if place.get(key) is not None), None)

    found = {name: value for name, keys in _KEYS.items() if isinstance(value := first(keys), int | list)}
    kinds = first(("layer_types",))
    if isinstance(kinds, list) and kinds:
        found["layer_types"] = sorted({str(kind) for kind in kinds})
    elif first(("full_attention_interval",)) is not None:
        found["layer_types"] = ["full_attention", "linear_attention"]
    return found


def _sizes(source: Source, plugins: Plugins) -> tuple[list[dict[str, Any]], str | None]:
    sizes = []
    for quant in QUANTS:
        if plugins.recipes.get(quant) is None:
            continue
        try:
            plan = make_plan(source, find_recipe(plugins, quant), plugins).plan
        except Hf2qError as error:
            return [], error.message
        sizes.append({"quant": quant, "nbytes": plan.nbytes})
    return sizes, None
