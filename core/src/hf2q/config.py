"""`Config`: reading ``config.json`` so that every key is read, refused, or known to be harmless.

Families build their hparams with it. It remembers what was asked for; `done` refuses the rest, because a key that
nobody looked at may change what the model computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import Any

from hf2q.errors import ConfigError, FormatError, LoadError, listing

HARMLESS: Mapping[str, str] = {
    "architectures": "chose the family",
    "model_type": "chose the family",
    "torch_dtype": "the dtype stored in the files counts",
    "dtype": "the dtype stored in the files counts",
    "quantization_config": "read, or refused, when the checkpoint is opened",
    "compression_config": "read, or refused, when the checkpoint is opened",
    "transformers_version": "provenance",
    "_name_or_path": "provenance",
    "_commit_hash": "provenance",
    "auto_map": "names remote code, which is never run",
    "initializer_range": "training only",
    "attention_dropout": "training only",
    "use_cache": "how transformers runs it",
    "output_attentions": "how transformers runs it",
    "output_hidden_states": "how transformers runs it",
    "return_dict": "how transformers runs it",
    "_attn_implementation": "how transformers runs it",
    "_attn_implementation_autoset": "how transformers runs it",
    "attn_implementation": "how transformers runs it",
    "chunk_size_feed_forward": "how transformers runs it; the result is the same",
    "is_encoder_decoder": "true only for classes that no decoder family claims",
    "is_decoder": "true only for classes that no decoder family claims",
    "add_cross_attention": "true only for classes that no decoder family claims",
    "tie_encoder_decoder": "true only for classes that no decoder family claims",
    "torchscript": "how transformers runs it",
    "pruned_heads": "tensors of pruned heads would be missing, which is found",
    "problem_type": "classification only",
    "id2label": "classification only",
    "label2id": "classification only",
    "bos_token_id": "read with the tokenizer",
    "eos_token_id": "read with the tokenizer",
    "pad_token_id": "read with the tokenizer",
    **dict.fromkeys(
        ("do_sample", "temperature", "top_k", "top_p", "max_length", "min_length", "num_beams", "repetition_penalty"),
        "sampling, an old home; generation_config.json counts",
    ),
    "unsloth_fixed": "provenance",
    "unsloth_version": "provenance",
}
"""Keys of transformers' base class that never change a decoder's weights, with the reason."""

MAX_LAYERS, MAX_EXPERTS = 512, 1024
"""What llama.cpp can load (src/llama-hparams.h). Families name a tensor for each, so a wrong count must not get far."""

MAX_DISTANCE = (1 << 31) - 1
"""Between two tokens: positions are signed 32-bit numbers, in llama.cpp and here. A window must not be larger."""

_FLOAT32_MIN, _FLOAT32_MAX = 1.1754943508222875e-38, 3.4028234663852886e38
"""Outside of them float32, the type of numbers in GGUF, has zero, fewer bits, or infinity."""


class Config:
    """One JSON object of a config file; `where` names it in messages (``config.json``, ``config.json: rope…``).

    Errors: every method raises ConfigError naming the key, what it holds and what was expected.
    """

    def __init__(self, values: Mapping[str, Any], where: str = "config.json") -> None:
        self._values = values
        self._where = where
        self._read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def raw(self, key: str, default: Any = None) -> Any:
        """The value as parsed, or `default` when the key is absent. Counts as read."""
        self._read.add(key)
        return self._values.get(key, default)

    def size(self, key: str, default: int | None = None, *, least: int = 1, most: int = (1 << 32) - 1) -> int:
        """An integer from `least` to `most`. Without `default` the key must be there."""
        value = self._value(key, default, "an integer")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(key, f"an integer from {least} to {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number that float32 holds, for that is how GGUF stores it."""
        value = self._value(key, default, "a number")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not _FLOAT32_MIN <= value <= _FLOAT32_MAX:
            raise self.wrong(key, "a positive number that float32 holds")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """A truth value."""
        value = self._value(key, default, "true or false")
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def expect(self, key: str, allowed: Iterable[Any], why: str, *, default: Any = None) -> Any:
        """One of `allowed`, or absent (giving `default`); `why` says what another value would need."""
        value = self.raw(key, default)
        choices = list(allowed)
        if key in self._values and not any(value == choice and type(value) is type(choice) for choice in choices):
            shown = " or ".join(repr(choice) for choice in choices)
            raise ConfigError(f"{self._where}: {key} is {_short(value)}, expected {shown}: {why}")
        return value

    def section(self, key: str) -> Config | None:
        """A nested object, or None when it is absent or null. Its own `done` must be called."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(key, "an object")
        return Config(value, f"{self._where}: {key}")

    def wrong(self, key: str, expected: str) -> ConfigError:
        """The error for a value that cannot be used."""
        return ConfigError(f"{self._where}: {key} is {_short(self._values.get(key))}, expected {expected}")

    def done(self, harmless: Mapping[str, str] = HARMLESS) -> None:
        """Refuse keys that were neither read nor are `harmless`. A null says nothing and passes."""
        unknown = [
            f"{key} = {_short(value)}"
            for key, value in self._values.items()
            if key not in self._read and key not in harmless and value is not None
        ]
        if unknown:
            raise ConfigError(
                f"{self._where} has keys that this family does not know: {listing(unknown)}",
                hint="a newer variant of the model, or a plugin to be upgraded; converting without understanding them "
                "could give a wrong model",
            )

    def _value(self, key: str, default: Any, what: str) -> Any:
        value = self.raw(key, default)
        if value is None:
            found = "null" if key in self._values else "missing"
            raise ConfigError(f"{self._where}: {key} is {found}, expected {what}")
        return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def overlaid(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text model's config: ``text_config`` laid over the root, whose keys it wins against.

    Source: llama.cpp, conversion/base.py, `TextModel.__init__`.
    Errors: ConfigError when ``text_config`` is there but no object.
    """
    text = config.get("text_config")
    if text is None:
        return dict(config)
    if not isinstance(text, Mapping):
        raise ConfigError(f"config.json: text_config is a {type(text).__name__}, expected an object")
    return {**{key: value for key, value in config.items() if key != "text_config"}, **text}


def vocabulary_size(metadata: Mapping[str, Any]) -> int:
    """The length of a model file's token list, which is not read for it where the file's header knows.

    Errors: LoadError when there is no such list, or nothing in it.
    """
    key, length_of = "tokenizer.ggml.tokens", getattr(metadata, "length_of", None)
    if length_of is not None and key in metadata:
        try:
            length = int(length_of(key))
        except FormatError:  # it is no list
            length = 0
    else:
        tokens = metadata.get(key)
        length = 0 if isinstance(tokens, str) or not isinstance(tokens, Sized) else len(tokens)
    if not length:
        raise LoadError("tokenizer.ggml.tokens is missing or empty; the size of the vocabulary is not known")
    return length


def refuse_scaled_rope(metadata: Mapping[str, Any], arch: str) -> None:
    """For graphs that have no scaled RoPE. Errors: LoadError when GGUF metadata ask for one.

    A factor without a type means linear scaling. Source: llama.cpp, src/llama-model.cpp, `load_hparams`.
    """
    kind = metadata.get(f"{arch}.rope.scaling.type")
    factors = [f"{arch}.rope.scaling.factor", f"{arch}.rope.scale_linear"] if kind is None else []
    found = [key for key in factors if metadata.get(key, 1) not in (0, 1)]
    if kind not in (None, "none"):
        found = [f"{arch}.rope.scaling.type"]
    if found:
        raise LoadError(
            f"{found[0]} is {metadata[found[0]]!r:.60}; this family's graph has unscaled RoPE only",
            hint="convert the checkpoint with the rope_parameters it was published with",
        )
