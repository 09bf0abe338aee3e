"""From GGUF metadata to the fields of `DeepSeek4HParams`.

Source: llama.cpp, src/models/deepseek4.cpp, `load_arch_hparams`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf2q.config import MAX_DISTANCE, MAX_EXPERTS, MAX_LAYERS, vocabulary_size
from hf2q.errors import LoadError
from hf2q_arch_deepseek4.families import ARCH, MAX_SINKHORN

HINT = "the file is incomplete, or not of this family"
FIXED = (("attention.head_count_kv", 1), ("expert_gating_func", 4), ("nextn_predict_layers", 0))
"""Keys whose value is the same in every file that can be loaded; the last one may be missing."""


def read_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `DeepSeek4HParams`, `yarn` as a dict of its fields or None; see its `from_metadata`."""
    arch = metadata.get("general.architecture")
    if arch != ARCH:
        raise LoadError(f"general.architecture is {arch!r}, expected {ARCH!r}")
    keys = _Keys(metadata)
    for name, value in FIXED:
        if keys.size(name, 0 if name == "nextn_predict_layers" else None) != value:
            raise keys.wrong(name, str(value))
    n_layer, d_head, n_embd = (
        keys.size("block_count", most=MAX_LAYERS),
        keys.size("attention.key_length"),
        keys.size("embedding_length"),
    )
    n_streams = keys.size("hyper_connection.count")
    for name, expected in (("attention.value_length", d_head), ("embedding_length_out", n_embd * n_streams)):
        if keys.size(name) != expected:
            raise keys.wrong(name, str(expected))
    return {
        "n_layer": n_layer,
        "n_vocab": keys.vocabulary(),
        "n_ctx": keys.size("context_length"),
        "n_embd": n_embd,
        "n_head": keys.size("attention.head_count"),
        "d_head": d_head,
        "d_rope": keys.size("rope.dimension_count"),
        "rope_base": keys.number("rope.freq_base"),
        "rope_base_compressed": keys.number("attention.compress_rope_freq_base"),
        "yarn": _yarn(keys),
        "rms_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "n_expert": keys.size("expert_count", most=MAX_EXPERTS),
        "n_expert_used": keys.size("expert_used_count"),
        "n_expert_shared": keys.size("expert_shared_count"),
        "n_ff_expert": keys.size("expert_feed_forward_length"),
        "expert_scale": keys.number("expert_weights_scale"),
        "expert_norm": keys.flag("expert_weights_norm"),
        "swiglu_limit": keys.limit(n_layer),
        "q_rank": keys.size("attention.q_lora_rank"),
        "o_groups": keys.size("attention.output_group_count"),
        "o_rank": keys.size("attention.output_lora_rank"),
        "window": keys.size("attention.sliding_window", most=MAX_DISTANCE),
        "n_index_head": keys.size("attention.indexer.head_count"),
        "d_index": keys.size("attention.indexer.key_length"),
        "index_top_k": keys.size("attention.indexer.top_k"),
        "compress_ratios": keys.ratios(),
        "n_streams": n_streams,
        "sinkhorn": keys.size("hyper_connection.sinkhorn_iterations", most=MAX_SINKHORN),
        "hc_eps": keys.number("hyper_connection.epsilon"),
        "n_hash": keys.size("hash_layer_count", least=0),
    }


def _yarn(keys: _Keys) -> dict[str, Any] | None:
    kind = keys.value("rope.scaling.type", "none")
    if kind == "none":
        factor = keys.value("rope.scaling.factor", 1.0)
        if f"{ARCH}.rope.scaling.type" not in keys.metadata and factor not in (0, 1):
            told = f"GGUF metadata lacks {ARCH}.rope.scaling.type, though there is a factor of {factor!r:.60}"
            raise LoadError(told, hint=HINT)
        return None
    if kind != "yarn":
        raise keys.wrong("rope.scaling.type", "'yarn' or nothing")
    return {
        "factor": keys.number("rope.scaling.factor"),
        "original": keys.size("rope.scaling.original_context_length"),
        "beta_fast": keys.optional_number("rope.scaling.yarn_beta_fast"),
        "beta_slow": keys.optional_number("rope.scaling.yarn_beta_slow"),
    }


class _Keys:
    """Typed access to the keys of the arch."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.metadata = metadata

    def value(self, key: str, default: Any = None) -> Any:
        """The value, or `default`; without one the key must be there."""
        name = f"{ARCH}.{key}"
        if name not in self.metadata and default is None:
            raise LoadError(f"GGUF metadata lacks {name}", hint=HINT)
        return self.metadata.get(name, default)

    def size(self, key: str, default: int | None = None, *, least: int = 1, most: int = (1 << 32) - 1) -> int:
        """A whole number from `least` to `most`; 0 as well when that is the default."""
        value = self.value(key, default)
        least = 0 if default == 0 else least
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(key, f"a whole number from {least} to {most}")
        return value

    def number(self, key: str) -> float:
        """A positive finite number."""
        value = self.value(key)
        if not _positive(value):
            raise self.wrong(key, "a positive number")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """The same, or None where there is no such key."""
        return self.number(key) if f"{ARCH}.{key}" in self.metadata else None

    def flag(self, key: str) -> bool:
        """A truth value."""
        value = self.value(key)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def limit(self, n_layer: int) -> float:
        """The bound of SwiGLU, which must be the same for every block and for both kinds of experts."""
        routed, shared = (
            self.value("swiglu_clamp_exp"),
            self.value("swiglu_clamp_shexp", self.value("swiglu_clamp_exp")),
        )
        for key, values in (("swiglu_clamp_exp", routed), ("swiglu_clamp_shexp", shared)):
            listed = isinstance(values, Sequence) and not isinstance(values, str | bytes)
            if not listed or len(values) != n_layer or not all(_positive(value) for value in values):
                raise self.wrong(key, f"{n_layer} positive numbers")
            if len(set(values)) != 1:
                raise self.wrong(key, "the same number for every block")
        if routed[0] != shared[0]:
            raise self.wrong("swiglu_clamp_shexp", f"{routed[0]}, as for routed experts")
        return float(routed[0])

    def ratios(self) -> tuple[int, ...]:
        """Whole numbers, as many as there are."""
        value = self.value("attention.compress_ratios")
        listed = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        if not listed or any(type(ratio) is not int for ratio in value) or len(value) > 2 * MAX_LAYERS:
            raise self.wrong("attention.compress_ratios", "a list of whole numbers")
        return tuple(value)

    def vocabulary(self) -> int:
        """The length of the token list."""
        return vocabulary_size(self.metadata)

    def wrong(self, key: str, expected: str) -> LoadError:
        """The error for a value that cannot be used."""
        name = f"{ARCH}.{key}"
        text = repr(self.metadata.get(name))
        return LoadError(f"{name} is {text if len(text) <= 60 else text[:57] + '…'}, expected {expected}")


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
