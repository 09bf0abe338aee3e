"""From GGUF metadata to the fields of `Qwen3VLHParams`, and typed access to keys.

Source: llama.cpp, src/models/qwen3vl.cpp and qwen3vlmoe.cpp, `load_arch_hparams`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf2q.config import MAX_EXPERTS, MAX_LAYERS, refuse_scaled_rope, vocabulary_size
from hf2q.errors import LoadError
from hf2q_arch_qwen3vl.families import DENSE, MOE


def read_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Qwen3VLHParams`; see its `from_metadata`."""
    arch = metadata.get("general.architecture")
    if arch not in (DENSE, MOE):
        raise LoadError(f"general.architecture is {arch!r}, expected {DENSE!r} or {MOE!r}")
    keys = Keys(metadata, arch)
    moe = arch == MOE
    head_dim = keys.size("attention.key_length")
    if keys.size("attention.value_length", head_dim) != head_dim:
        raise LoadError(f"{arch}.attention.value_length differs from {arch}.attention.key_length, which is {head_dim}")
    refuse_scaled_rope(metadata, arch)
    return {
        "arch": arch,
        "n_layer": keys.size("block_count", most=MAX_LAYERS),
        "n_vocab": keys.vocabulary(),
        "n_ctx": keys.size("context_length"),
        "n_embd": keys.size("embedding_length"),
        "n_ff": keys.size("feed_forward_length", 0 if moe else None),
        "n_head": keys.size("attention.head_count"),
        "n_head_kv": keys.size("attention.head_count_kv"),
        "head_dim": head_dim,
        "rope_sections": keys.sections("rope.dimension_sections"),
        "rope_base": keys.number("rope.freq_base"),
        "rms_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "n_deepstack": keys.size("n_deepstack_layers", 0, most=MAX_LAYERS),
        "pooling": None if keys.size("pooling_type", 0, most=4) == 0 else keys.size("pooling_type", most=4),
        "n_expert": keys.size("expert_count", most=MAX_EXPERTS) if moe else 0,
        "n_expert_used": keys.size("expert_used_count") if moe else 0,
        "n_ff_expert": keys.size("expert_feed_forward_length") if moe else 0,
    }


class Keys:
    """Typed access to the keys that begin with `prefix`. Errors: LoadError naming the key."""

    def __init__(self, metadata: Mapping[str, Any], prefix: str) -> None:
        self._metadata = metadata
        self._prefix = prefix

    def size(self, key: str, default: int | None = None, *, most: int = (1 << 32) - 1) -> int:
        """A whole number up to `most`: positive, unless `default` is 0."""
        value = self._get(key, default)
        least = 0 if default == 0 else 1
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._wrong(key, f"a whole number from {least} to {most}")
        return value

    def number(self, key: str) -> float:
        """A positive finite number."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self._wrong(key, "a positive number")
        return float(value)

    def sections(self, key: str) -> tuple[int, ...]:
        """Four sizes."""
        value = self._get(key)
        if not is_list(value, int) or len(value) != 4 or min(value) < 0:
            raise self._wrong(key, "4 whole numbers")
        return tuple(value)

    def colours(self, key: str) -> tuple[float, ...]:
        """Three numbers, one for each colour."""
        value = self._get(key)
        if not is_list(value, int | float) or len(value) != 3 or not all(0 <= v < float("inf") for v in value):
            raise self._wrong(key, "3 numbers")
        return tuple(float(v) for v in value)

    def vocabulary(self) -> int:
        """The length of the token list."""
        return vocabulary_size(self._metadata)

    def _get(self, key: str, default: int | None = None) -> Any:
        name = f"{self._prefix}.{key}"
        if name not in self._metadata and default is None:
            raise LoadError(f"GGUF metadata lacks {name}", hint="the file is incomplete, or not of this family")
        return self._metadata.get(name, default)

    def _wrong(self, key: str, expected: str) -> LoadError:
        name = f"{self._prefix}.{key}"
        return LoadError(f"{name} is {_short(self._metadata.get(name))}, expected {expected}")


def is_list(value: Any, kind: Any) -> bool:
    """Whether it is a list of values of that type; truth values are no numbers."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str | bytes)
        and all(isinstance(item, kind) and (kind is bool or not isinstance(item, bool)) for item in value)
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
