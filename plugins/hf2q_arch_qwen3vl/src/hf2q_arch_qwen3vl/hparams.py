"""`Qwen3VLHParams`: the sizes of one Qwen 3-VL text model, dense or MoE, from ``config.json`` or from GGUF metadata.

Source of the keys and their order: llama.cpp, conversion/base.py `TextModel.set_gguf_parameters`, conversion/qwen.py
`Qwen2MoeModel` and conversion/qwen3vl.py `Qwen3VLTextModel`, `Qwen3VLMoeTextModel`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hf2q.errors import ConfigError, LoadError
from hf2q.types import MetadataField, Record, TensorInfo, ValueType
from hf2q_arch_qwen3vl.checkpoint import read_config
from hf2q_arch_qwen3vl.families import MOE, TEXT
from hf2q_arch_qwen3vl.keys import read_metadata


class Qwen3VLHParams(Record, frozen=True, kw_only=True):
    """Sizes of one model.

    n_ff          width of the dense FFN; an MoE model states one too, but has none (0 in a file that does not)
    n_deepstack   first blocks to whose output features of the vision tower's own blocks are added
    rope_sections the M-RoPE sections (time, height, width, extra); the whole head is rotated
    pooling       GGUF's pooling_type of an embedder, None for a model that gives text
    transposed    whether packed experts are (experts, inputs, outputs), as published, or (experts, outputs, inputs), as
                  transformers 5 saves them; converting only
    rope_scaling  GGUF keys of a scaled RoPE, empty for the plain one; converting only, it is never loaded
    """

    arch: str
    n_layer: int
    n_vocab: int
    n_ctx: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    rope_sections: tuple[int, int, int, int]
    rope_base: float
    rms_eps: float
    n_deepstack: int
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_expert: int = 0
    pooling: int | None = None
    transposed: bool = True
    rope_scaling: tuple[MetadataField, ...] = ()

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], tensors: Iterable[TensorInfo], *, mtp: bool = True
    ) -> Qwen3VLHParams:
        """From the parsed ``config.json`` and the checkpoint's tensor list. The family has no MTP.

        Errors: ConfigError for what the family does not know; TensorMismatchError when config and tensors disagree
        about a separate output head.
        """
        hparams = cls(**read_config(config, list(tensors)))
        problem = _disagreement(hparams)
        if problem:
            raise ConfigError(f"config.json: {problem}")
        return hparams

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Qwen3VLHParams:
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
        return (TEXT,) * self.n_layer

    @property
    def symbols(self) -> Mapping[str, int]:
        """Sizes by the symbols of the catalog's shapes."""
        return {
            "n_vocab": self.n_vocab,
            "n_embd": self.n_embd,
            "n_ff": self.n_ff,
            "n_attn": self.n_head * self.head_dim,
            "n_kv": self.n_head_kv * self.head_dim,
            "head_dim": self.head_dim,
            "n_expert": self.n_expert,
            "n_ff_expert": self.n_ff_expert,
            "n_ff_expert_2": 2 * self.n_ff_expert,
        }

    def metadata(self) -> tuple[MetadataField, ...]:
        """The arch's GGUF keys in the order of llama.cpp's converter, ``general.file_type`` among them as 0."""
        a, u32, f32 = self.arch, MetadataField.u32, MetadataField.f32
        moe = self.arch == MOE
        fields = [
            u32(f"{a}.block_count", self.n_layer),
            u32(f"{a}.context_length", self.n_ctx),
            u32(f"{a}.embedding_length", self.n_embd),
            u32(f"{a}.feed_forward_length", self.n_ff),
            u32(f"{a}.attention.head_count", self.n_head),
            u32(f"{a}.attention.head_count_kv", self.n_head_kv),
            *self.rope_scaling,
            MetadataField.array(f"{a}.rope.dimension_sections", ValueType.INT32, self.rope_sections),
            f32(f"{a}.rope.freq_base", self.rope_base),
            f32(f"{a}.attention.layer_norm_rms_epsilon", self.rms_eps),
        ]
        if moe:
            fields += [
                u32(f"{a}.expert_count", self.n_expert),
                u32(f"{a}.expert_used_count", self.n_expert_used),
            ]
        fields += [
            u32(f"{a}.attention.key_length", self.head_dim),
            u32(f"{a}.attention.value_length", self.head_dim),
            u32("general.file_type", 0),
        ]
        if moe:
            fields.append(u32(f"{a}.expert_feed_forward_length", self.n_ff_expert))
        if self.pooling is not None:
            fields.append(u32(f"{a}.pooling_type", self.pooling))
        fields.append(u32(f"{a}.n_deepstack_layers", self.n_deepstack))
        return tuple(fields)


def _disagreement(h: Qwen3VLHParams) -> str | None:
    """What is impossible or unsupported about these sizes together, or None."""
    if h.n_head % h.n_head_kv:
        return f"{h.n_head} attention heads are no multiple of {h.n_head_kv} key/value heads"
    if h.head_dim % 2:
        return f"heads of {h.head_dim}, expected an even number, for RoPE rotates pairs"
    if not any(h.rope_sections):
        return "all M-RoPE sections are 0"
    if h.n_expert_used > h.n_expert:
        return f"{h.n_expert_used} experts used of {h.n_expert}"
    if h.n_deepstack > h.n_layer:
        return f"features of {h.n_deepstack} blocks of the vision tower for {h.n_layer} blocks of text"
    return None
