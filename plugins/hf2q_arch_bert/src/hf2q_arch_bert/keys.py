"""From GGUF metadata to the fields of `BertHParams`.

Source: llama.cpp, src/models/bert.cpp and nomic-bert.cpp, `load_arch_hparams`; src/llama-vocab.cpp, `load`
(token_type_count).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf2q.config import MAX_LAYERS, refuse_scaled_rope
from hf2q.errors import LoadError
from hf2q_arch_bert.families import BERT, NOMIC

TOKEN_TYPES = "tokenizer.ggml.token_type_count"
MAX_POOLING = 4
"""Source: llama.cpp, include/llama.h, `llama_pooling_type`."""


def read_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `BertHParams`; see its `from_metadata`."""
    arch = metadata.get("general.architecture")
    if arch not in (BERT, NOMIC):
        raise LoadError(f"general.architecture is {arch!r}, expected {BERT!r} or {NOMIC!r}")
    keys = _Keys(metadata)
    causal = metadata.get(f"{arch}.attention.causal")
    if causal is not False:
        raise LoadError(f"{arch}.attention.causal is {causal!r}, expected False: an encoder sees the whole text")
    refuse_scaled_rope(metadata, arch)
    pooling = None
    if metadata.get(f"{arch}.pooling_type") is not None:
        pooling = keys.size(f"{arch}.pooling_type", least=0, most=MAX_POOLING)
    return {
        "arch": arch,
        "n_layer": keys.size(f"{arch}.block_count", most=MAX_LAYERS),
        "n_vocab": keys.length("tokenizer.ggml.tokens"),
        "n_ctx": keys.size(f"{arch}.context_length"),
        "n_embd": keys.size(f"{arch}.embedding_length"),
        "n_ff": keys.size(f"{arch}.feed_forward_length"),
        "n_head": keys.size(f"{arch}.attention.head_count"),
        "n_token_types": keys.size(TOKEN_TYPES),
        "norm_eps": keys.number(f"{arch}.attention.layer_norm_epsilon"),
        "rope_base": keys.number(f"{arch}.rope.freq_base") if arch == NOMIC else 0.0,
        "pooling": pooling,
        "labels": keys.texts(f"{arch}.classifier.output_labels"),
    }


class _Keys:
    """Typed access. Errors: LoadError naming the key, what it holds and what was expected."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata

    def size(self, key: str, *, least: int = 1, most: int = (1 << 32) - 1) -> int:
        """A whole number from `least` to `most`."""
        value = self._metadata.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._wrong(key, f"a whole number from {least} to {most}")
        return value

    def number(self, key: str) -> float:
        """A positive finite number."""
        value = self._metadata.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self._wrong(key, "a positive number")
        return float(value)

    def length(self, key: str) -> int:
        """Number of entries of a list that is not empty."""
        value = self._metadata.get(key)
        if not isinstance(value, Sequence) or isinstance(value, str) or not len(value):
            raise self._wrong(key, "a list")
        return len(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty when the key is absent."""
        value = self._metadata.get(key, ())
        if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(x, str) for x in value):
            raise self._wrong(key, "a list of texts")
        return tuple(value)

    def _wrong(self, key: str, expected: str) -> LoadError:
        value = self._metadata.get(key)
        found = "missing" if value is None else repr(value)
        return LoadError(f"GGUF key {key} is {found[:60]}, expected {expected}")
