"""The sizes of one model, from ``config.json`` when converting, from GGUF metadata when loading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hf2q.config import MAX_LAYERS, Config
from hf2q.errors import ConfigError, Hf2qError, LoadError
from hf2q.types import MetadataField, Record, TensorInfo

ARCH = "example"
KEYS: tuple[tuple[str, str, type], ...] = (
    ("n_layer", "block_count", int),
    ("n_ctx", "context_length", int),
    ("n_embd", "embedding_length", int),
    ("n_ff", "feed_forward_length", int),
    ("n_head", "attention.head_count", int),
    ("n_head_kv", "attention.head_count_kv", int),
    ("rope_base", "rope.freq_base", float),
    ("rms_eps", "attention.layer_norm_rms_epsilon", float),
    ("n_vocab", "vocab_size", int),
    ("n_rot", "rope.dimension_count", int),
)
"""Field, GGUF key, type. Source: llama.cpp, conversion/base.py, `TextModel.set_gguf_parameters`."""


class ExampleHParams(Record, frozen=True, kw_only=True):
    """Sizes of one model; `n_rot` is the size of a head, all of which is rotated."""

    n_layer: int
    n_vocab: int
    n_ctx: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    n_rot: int
    rope_base: float
    rms_eps: float

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], tensors: Iterable[TensorInfo], *, mtp: bool = True
    ) -> ExampleHParams:
        """From ``config.json``. Errors: ConfigError for a key that is missing, wrong or not known."""
        c = Config(config)
        n_head, n_embd = c.size("num_attention_heads"), c.size("hidden_size")
        for key, only in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
            c.expect(key, (only,), "nothing else is implemented")
        if c.flag("tie_word_embeddings", False) == any(tensor.name == "lm_head.weight" for tensor in tensors):
            raise ConfigError("config.json: tie_word_embeddings contradicts the checkpoint's tensors")
        rope = c.section("rope_parameters") or Config({})
        rope.expect("rope_type", ("default",), "nothing else is implemented")
        found = cls(
            n_layer=c.size("num_hidden_layers", most=MAX_LAYERS),
            n_vocab=c.size("vocab_size"),
            n_ctx=c.size("max_position_embeddings"),
            n_embd=n_embd,
            n_ff=c.size("intermediate_size"),
            n_head=n_head,
            n_head_kv=c.size("num_key_value_heads", n_head),
            n_rot=c.size("head_dim", n_embd // n_head),
            rope_base=rope.number("rope_theta", c.number("rope_theta", 10000.0)),
            rms_eps=c.number("rms_norm_eps"),
        )
        rope.done()
        c.done()
        return found.checked(ConfigError, "config.json")

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> ExampleHParams:
        """From GGUF metadata. Errors: LoadError naming the key that is missing or of another type."""
        values: dict[str, Any] = {field: metadata.get(f"{ARCH}.{key}") for field, key, _ in KEYS}
        for field, key, kind in KEYS:
            if type(values[field]) is not kind or values[field] <= 0:
                raise LoadError(f"GGUF key {ARCH}.{key} is {values[field]!r}, expected a positive {kind.__name__}")
        return cls(**values).checked(LoadError, "GGUF metadata")

    def checked(self, error: type[Hf2qError], where: str) -> ExampleHParams:
        """Itself, if the sizes go together."""
        if self.n_head % self.n_head_kv or self.n_rot % 2:
            raise error(f"{where}: {self.n_head} heads of {self.n_rot}, {self.n_head_kv} key heads do not go together")
        return self

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        """All blocks are alike."""
        return ("dense",) * self.n_layer

    @property
    def symbols(self) -> Mapping[str, int]:
        """Sizes by the symbols of the catalog's shapes."""
        n_q, n_kv = self.n_head * self.n_rot, self.n_head_kv * self.n_rot
        return {"n_vocab": self.n_vocab, "n_embd": self.n_embd, "n_ff": self.n_ff, "n_q": n_q, "n_kv": n_kv}

    def metadata(self) -> tuple[MetadataField, ...]:
        """The arch's GGUF keys."""
        make = {int: MetadataField.u32, float: MetadataField.f32}
        fields = [make[kind](f"{ARCH}.{key}", getattr(self, field)) for field, key, kind in KEYS]
        return (*fields, MetadataField.u32("general.file_type", 0))
