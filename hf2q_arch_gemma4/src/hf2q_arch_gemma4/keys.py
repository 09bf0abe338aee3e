"""From GGUF metadata to the fields of `Gemma4HParams`.

Source: llama.cpp, src/models/gemma4.cpp, `load_arch_hparams`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf2q.config import MAX_DISTANCE, MAX_EXPERTS, MAX_LAYERS, refuse_scaled_rope, vocabulary_size
from hf2q.errors import LoadError
from hf2q_arch_gemma4.families import ARCH


def read_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Gemma4HParams`; see its `from_metadata`."""
    arch = metadata.get("general.architecture")
    if arch != ARCH:
        raise LoadError(f"general.architecture is {arch!r}, expected {ARCH!r}")
    keys = _Keys(metadata)
    n_layer = keys.size("block_count", most=MAX_LAYERS)
    n_shared = keys.size("attention.shared_kv_layers", 0)
    sliding = keys.sliding("attention.sliding_window_pattern", n_layer)
    n_ff, double_wide = keys.widths("feed_forward_length", n_layer, n_shared)
    heads = keys.each("attention.head_count_kv", n_layer)
    head_dim = {part: keys.head_dim(part) for part in ("", "_swa")}
    n_expert = keys.size("expert_count", 0, most=MAX_EXPERTS)
    if metadata.get(f"{ARCH}.attention.causal", True) is not True:
        raise LoadError(
            f"{ARCH}.attention.causal is not true; this family's graph is causal only",
            hint="the model embeds text and does not generate; converting it works, running it does not",
        )
    refuse_scaled_rope(metadata, ARCH)
    return {
        "n_layer": n_layer,
        "n_vocab": keys.vocabulary(),
        "n_ctx": keys.size("context_length"),
        "n_embd": keys.size("embedding_length"),
        "n_ff": n_ff,
        "double_wide": double_wide,
        "n_head": keys.size("attention.head_count"),
        "n_head_kv_full": keys.of_kind("attention.head_count_kv", heads, sliding, kind=False),
        "n_head_kv_swa": keys.of_kind("attention.head_count_kv", heads, sliding, kind=True),
        "head_dim_full": head_dim[""],
        "head_dim_swa": head_dim["_swa"],
        "sliding": sliding,
        "n_window": keys.size("attention.sliding_window", most=MAX_DISTANCE),
        "n_shared_kv": n_shared,
        "n_ple": keys.size("embedding_length_per_layer_input", least=0),
        "rope_base_full": keys.number("rope.freq_base"),
        "rope_base_swa": keys.number("rope.freq_base_swa"),
        "rms_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "softcap": keys.number("final_logit_softcapping", optional=True),
        "n_expert": n_expert,
        "n_expert_used": keys.size("expert_used_count") if n_expert else 0,
        "n_ff_expert": keys.size("expert_feed_forward_length") if n_expert else 0,
    }


class _Keys:
    """Reads the arch's keys. Errors: LoadError naming the key."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata

    def size(self, key: str, default: int | None = None, *, least: int = 1, most: int = (1 << 32) - 1) -> int:
        """A whole number from `least` to `most`, 0 too when that is the `default`."""
        value = self._get(key, default)
        least = 0 if default == 0 else least
        if not _whole(value) or not least <= value <= most:
            raise self._wrong(key, f"a whole number from {least} to {most}")
        return int(value)

    def number(self, key: str, *, optional: bool = False) -> Any:
        """A positive finite number; None when it is `optional` and absent."""
        if optional and f"{ARCH}.{key}" not in self._metadata:
            return None
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self._wrong(key, "a positive number")
        return float(value)

    def sliding(self, key: str, n_layer: int) -> tuple[bool, ...]:
        """A truth value for each block."""
        value = self._get(key)
        if not _listed(value) or len(value) != n_layer or not all(isinstance(item, bool) for item in value):
            raise self._wrong(key, f"{n_layer} truth values")
        return tuple(value)

    def each(self, key: str, n_layer: int) -> tuple[int, ...]:
        """A positive number for each block: a list, or one for all."""
        value = self._get(key)
        values = tuple(value) if _listed(value) else (value,) * n_layer
        if len(values) != n_layer or not all(_whole(item) and 0 < item < 1 << 31 for item in values):
            raise self._wrong(key, f"a positive whole number, or {n_layer} of them")
        return values

    def of_kind(self, key: str, values: Sequence[int], sliding: Sequence[bool], *, kind: bool) -> int:
        """The one value of all blocks of a kind; without any, the other kind's."""
        mine = {value for value, swa in zip(values, sliding, strict=True) if swa == kind} or set(values)
        if len(mine) != 1:
            raise self._wrong(key, "the same number for all blocks of a kind")
        return mine.pop()

    def widths(self, key: str, n_layer: int, n_shared: int) -> tuple[int, bool]:
        """Width of the FFN, and whether blocks that share keys and values double it, which a list says."""
        values = self.each(key, n_layer)
        double = _listed(self._metadata.get(f"{ARCH}.{key}"))
        expected = tuple(values[0] * (2 if double and i >= n_layer - n_shared else 1) for i in range(n_layer))
        if n_shared < n_layer and values != expected:
            raise self._wrong(
                key, f"one width, doubled in the last {n_shared} blocks ({ARCH}.attention.shared_kv_layers)"
            )
        return values[0], double

    def head_dim(self, part: str) -> int:
        """Size of a head, stated for keys, values and rotated dimensions alike."""
        size = self.size(f"attention.key_length{part}")
        for key in (f"attention.value_length{part}", f"rope.dimension_count{part}"):
            if self.size(key) != size:
                raise LoadError(f"{ARCH}.{key} differs from {ARCH}.attention.key_length{part}, which is {size}")
        return size

    def vocabulary(self) -> int:
        """The length of the token list."""
        return vocabulary_size(self._metadata)

    def _get(self, key: str, default: int | None = None) -> Any:
        name = f"{ARCH}.{key}"
        if name not in self._metadata and default is None:
            raise LoadError(f"GGUF metadata lacks {name}", hint="the file is incomplete, or not of this family")
        return self._metadata.get(name, default)

    def _wrong(self, key: str, expected: str) -> LoadError:
        name = f"{ARCH}.{key}"
        return LoadError(f"{name} is {_short(self._metadata.get(name))}, expected {expected}")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _listed(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
