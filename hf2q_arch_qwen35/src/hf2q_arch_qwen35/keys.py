"""From GGUF metadata to the fields of `Qwen35HParams`.

Source: llama.cpp, src/models/qwen35.cpp and qwen35moe.cpp, `load_arch_hparams`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf2q.config import MAX_EXPERTS, MAX_LAYERS, refuse_scaled_rope, vocabulary_size
from hf2q.errors import LoadError
from hf2q_arch_qwen35.families import DENSE, MOE


def read_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Qwen35HParams`; see its `from_metadata`."""
    arch = metadata.get("general.architecture")
    if arch not in (DENSE, MOE):
        raise LoadError(f"general.architecture is {arch!r}, expected {DENSE!r} or {MOE!r}")
    keys = _Keys(metadata, arch)
    moe = arch == MOE
    n_layer, n_mtp = keys.size("block_count", most=MAX_LAYERS), keys.size("nextn_predict_layers", 0)
    interval, head_dim = keys.size("full_attention_interval", 4), keys.size("attention.key_length")
    n_v_heads, inner = keys.size("ssm.time_step_rank"), keys.size("ssm.inner_size")
    if not (interval and n_v_heads) or inner % n_v_heads:
        raise LoadError(
            f"{arch}.ssm.inner_size is {inner}, ssm.time_step_rank {n_v_heads}, full_attention_interval {interval}: "
            "expected a multiple of a positive number of heads, and a positive interval"
        )
    refuse_scaled_rope(metadata, arch)
    if keys.size("attention.value_length", head_dim) != head_dim:
        raise LoadError(f"{arch}.attention.value_length differs from {arch}.attention.key_length, which is {head_dim}")
    return {
        "arch": arch,
        "n_layer": n_layer,
        "n_mtp": n_mtp,
        "n_vocab": keys.vocabulary(),
        "n_ctx": keys.size("context_length"),
        "n_embd": keys.size("embedding_length"),
        "n_ff": keys.size("feed_forward_length", 0 if moe else None),
        "n_head": keys.size("attention.head_count"),
        "n_head_kv": keys.size("attention.head_count_kv"),
        "head_dim": head_dim,
        "rope_dim": keys.size("rope.dimension_count"),
        "rope_sections": keys.sections("rope.dimension_sections"),
        "rope_base": keys.number("rope.freq_base"),
        "rms_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "recurrent": keys.recurrent(n_layer, n_mtp, interval),
        "full_attention_interval": interval,
        "conv_kernel": keys.size("ssm.conv_kernel"),
        "d_k": keys.size("ssm.state_size"),
        "d_v": inner // n_v_heads,
        "n_k_heads": keys.size("ssm.group_count"),
        "n_v_heads": n_v_heads,
        "n_expert": keys.size("expert_count", most=MAX_EXPERTS) if moe else 0,
        "n_expert_used": keys.size("expert_used_count") if moe else 0,
        "n_ff_expert": keys.size("expert_feed_forward_length") if moe else 0,
        "n_ff_shared": keys.size("expert_shared_feed_forward_length") if moe else 0,
    }


class _Keys:
    """Typed access to the keys of one arch."""

    def __init__(self, metadata: Mapping[str, Any], arch: str) -> None:
        self._metadata = metadata
        self._arch = arch

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
        if not _listed(value, int) or len(value) != 4 or min(value) < 0:
            raise self._wrong(key, "4 whole numbers")
        return tuple(value)

    def recurrent(self, n_layer: int, n_mtp: int, interval: int) -> tuple[bool, ...]:
        """Which blocks are linear attention: as listed, else by the interval."""
        value = self._metadata.get(f"{self._arch}.attention.recurrent_layers")
        if value is None:
            # bounded by the caller's check of block_count against the tensors present
            trunk = tuple((i + 1) % interval != 0 for i in range(n_layer - n_mtp))
            return trunk + (False,) * (n_layer - len(trunk))
        if not _listed(value, bool):
            raise self._wrong("attention.recurrent_layers", "a list of truth values")
        return tuple(value)

    def vocabulary(self) -> int:
        """The length of the token list."""
        return vocabulary_size(self._metadata)

    def _get(self, key: str, default: int | None = None) -> Any:
        name = f"{self._arch}.{key}"
        if name not in self._metadata and default is None:
            raise LoadError(f"GGUF metadata lacks {name}", hint="the file is incomplete, or not of this family")
        return self._metadata.get(name, default)

    def _wrong(self, key: str, expected: str) -> LoadError:
        name = f"{self._arch}.{key}"
        return LoadError(f"{name} is {_short(self._metadata.get(name))}, expected {expected}")


def _listed(value: Any, kind: type) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str | bytes)
        and all(isinstance(item, kind) and (kind is bool or not isinstance(item, bool)) for item in value)
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
