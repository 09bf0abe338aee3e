"""`BertHParams`: the sizes of one encoder, from ``config.json`` or from GGUF metadata.

Source of the keys and their order: llama.cpp, conversion/base.py `TextModel.set_gguf_parameters` and conversion/bert.py
`BertModel.set_gguf_parameters`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hf2q.errors import ConfigError, LoadError
from hf2q.types import MetadataField, Record, TensorInfo, ValueType
from hf2q_arch_bert.checkpoint import read_bert
from hf2q_arch_bert.families import ENCODER, NOMIC, NOMIC_CLASSES
from hf2q_arch_bert.keys import read_metadata
from hf2q_arch_bert.nomic import read_nomic


class BertHParams(Record, frozen=True, kw_only=True):
    """Sizes of one model.

    n_ctx      rows of BERT's table of positions; what Nomic-BERT was trained for
    norm_eps   of every LayerNorm
    rope_base  of Nomic-BERT; BERT has no RoPE (0)
    pooling    GGUF's ``pooling_type``, None when the checkpoint does not say
    labels     names of the classes of a classification head, usually none
    """

    arch: str
    n_layer: int
    n_vocab: int
    n_ctx: int
    n_embd: int
    n_ff: int
    n_head: int
    n_token_types: int
    norm_eps: float
    rope_base: float = 0.0
    pooling: int | None = None
    labels: tuple[str, ...] = ()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], tensors: Iterable[TensorInfo], *, mtp: bool = True) -> BertHParams:
        """From the parsed ``config.json``, with what ``modules.json`` says under that name, and the tensor list.

        Errors: ConfigError for what the family does not know; TensorMismatchError for a head that GGUF cannot express.
        """
        classes = config.get("architectures") or ()
        if any(name in NOMIC_CLASSES for name in classes):
            hparams = cls(**read_nomic(config))
        else:
            hparams = cls(**read_bert(config, [tensor.name for tensor in tensors]))
        problem = _disagreement(hparams)
        if problem:
            raise ConfigError(f"config.json: {problem}")
        return hparams

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> BertHParams:
        """From GGUF metadata. The vocabulary's size is the length of the token list.

        Errors: LoadError naming the key that is missing, of the wrong kind, or contradictory.
        """
        hparams = cls(**read_metadata(metadata))
        problem = _disagreement(hparams)
        if problem:
            raise LoadError(f"GGUF metadata of {hparams.arch}: {problem}")
        return hparams

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        """All blocks are alike."""
        return (ENCODER,) * self.n_layer

    @property
    def head_dim(self) -> int:
        """Size of an attention head; in Nomic-BERT all of it is rotated."""
        return self.n_embd // self.n_head

    @property
    def symbols(self) -> Mapping[str, int]:
        """Sizes by the symbols of the catalog's shapes."""
        return {
            "n_vocab": self.n_vocab,
            "n_ctx": self.n_ctx,
            "n_embd": self.n_embd,
            "n_qkv": 3 * self.n_embd,
            "n_ff": self.n_ff,
            "n_token_types": self.n_token_types,
            "n_labels": max(1, len(self.labels)),
        }

    def metadata(self) -> tuple[MetadataField, ...]:
        """The arch's GGUF keys in the order of llama.cpp's converter, ``general.file_type`` among them as 0."""
        a, u32, f32 = self.arch, MetadataField.u32, MetadataField.f32
        fields = [
            u32(f"{a}.block_count", self.n_layer),
            u32(f"{a}.context_length", self.n_ctx),
            u32(f"{a}.embedding_length", self.n_embd),
            u32(f"{a}.feed_forward_length", self.n_ff),
            u32(f"{a}.attention.head_count", self.n_head),
            *([f32(f"{a}.rope.freq_base", self.rope_base)] if self.arch == NOMIC else []),
            f32(f"{a}.attention.layer_norm_epsilon", self.norm_eps),
            u32("general.file_type", 0),
            MetadataField.boolean(f"{a}.attention.causal", False),
        ]
        if self.pooling is not None:
            fields.append(u32(f"{a}.pooling_type", self.pooling))
        if self.labels:
            fields.append(MetadataField.array(f"{a}.classifier.output_labels", ValueType.STRING, self.labels))
        return tuple(fields)


def _disagreement(h: BertHParams) -> str | None:
    """What is impossible about these sizes together, or None."""
    if h.n_embd % h.n_head:
        return f"a width of {h.n_embd} is no multiple of {h.n_head} heads"
    if h.arch == NOMIC and h.head_dim % 2:
        return f"heads of {h.head_dim} values cannot be rotated, expected an even number"
    return None
