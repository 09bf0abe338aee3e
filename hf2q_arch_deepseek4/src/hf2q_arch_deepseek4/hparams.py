"""`DeepSeek4HParams`: the sizes of one DeepSeek-V4 model, from ``config.json`` or from GGUF metadata.

Source of the keys and their order: llama.cpp, conversion/base.py `TextModel.set_gguf_parameters` and
conversion/deepseek.py `DeepseekV4Model.set_gguf_parameters`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hf2q.errors import ConfigError, LoadError
from hf2q.types import MetadataField, Record, TensorInfo, ValueType
from hf2q_arch_deepseek4.checkpoint import read_config
from hf2q_arch_deepseek4.families import ARCH, HASH, RATIOS, TOP_K, kind
from hf2q_arch_deepseek4.keys import read_metadata

SQRT_SOFTPLUS = 4
"""llama.cpp, src/llama-hparams.h, `llama_expert_gating_func_type`."""


class Yarn(Record, frozen=True, kw_only=True):
    """Stretching of RoPE in blocks with compressed attention; None where nothing is said."""

    factor: float
    original: int
    beta_fast: float | None = None
    beta_slow: float | None = None


class DeepSeek4HParams(Record, frozen=True, kw_only=True):
    """Sizes of one model.

    compress_ratios  for each block how many tokens are compressed into one (0, 4 or 128); the list may go on with those
                     of MTP blocks, which are not part of the model
    n_hash           blocks from the first that route by token id
    d_head, d_rope   values of a head, and how many at its end are rotated;  d_index  values of an indexer head
    q_rank, o_rank   inner sizes of the query and of each group of the output projection
    n_streams        residual streams of hyper-connections
    swiglu_limit     bound of the gate and of both sides of the up projection
    """

    n_layer: int
    n_vocab: int
    n_ctx: int
    n_embd: int
    n_head: int
    d_head: int
    d_rope: int
    rope_base: float
    rope_base_compressed: float
    yarn: Yarn | None
    rms_eps: float
    n_expert: int
    n_expert_used: int
    n_expert_shared: int
    n_ff_expert: int
    expert_scale: float
    expert_norm: bool
    swiglu_limit: float
    q_rank: int
    o_groups: int
    o_rank: int
    window: int
    n_index_head: int
    d_index: int
    index_top_k: int
    compress_ratios: tuple[int, ...]
    n_streams: int
    sinkhorn: int
    hc_eps: float
    n_hash: int

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], tensors: Iterable[TensorInfo], *, mtp: bool = True
    ) -> DeepSeek4HParams:
        """From the parsed ``config.json``. MTP blocks are left out either way: GGUF keeps them in a file of their own.

        Errors: ConfigError for what the family does not know.
        """
        fields = read_config(config)
        yarn = fields.pop("yarn")
        hparams = cls(yarn=None if yarn is None else Yarn(**yarn), **fields)
        problem = _disagreement(hparams)
        if problem:
            raise ConfigError(f"config.json: {problem}")
        return hparams

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> DeepSeek4HParams:
        """From GGUF metadata. The vocabulary's size is the length of the token list.

        Errors: LoadError naming the key that is missing, of the wrong kind, or contradictory.
        """
        fields = read_metadata(metadata)
        yarn = fields.pop("yarn")
        hparams = cls(yarn=None if yarn is None else Yarn(**yarn), **fields)
        problem = _disagreement(hparams)
        if problem:
            raise LoadError(f"GGUF metadata of {ARCH}: {problem}")
        return hparams

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        """Attention and routing of each block, see `hf2q_arch_deepseek4.families.kind`."""
        return tuple(
            kind(RATIOS[ratio], HASH if i < self.n_hash else TOP_K)
            for i, ratio in enumerate(self.compress_ratios[: self.n_layer])
        )

    @property
    def symbols(self) -> Mapping[str, int]:
        """Sizes by the symbols of the catalog's shapes."""
        return {
            "n_vocab": self.n_vocab,
            "n_embd": self.n_embd,
            "n_head": self.n_head,
            "d_head": self.d_head,
            "two_heads": 2 * self.d_head,
            "n_q": self.n_head * self.d_head,
            "q_rank": self.q_rank,
            "n_group_in": self.n_head * self.d_head // self.o_groups,
            "n_groups_out": self.o_groups * self.o_rank,
            "n_index_head": self.n_index_head,
            "d_index": self.d_index,
            "two_index_heads": 2 * self.d_index,
            "n_index_q": self.n_index_head * self.d_index,
            "n_streams": self.n_streams,
            "n_state": self.n_streams * self.n_embd,
            "n_mix": (2 + self.n_streams) * self.n_streams,
            "n_expert": self.n_expert,
            "n_expert_used": self.n_expert_used,
            "n_ff_expert": self.n_ff_expert,
            "n_ff_shared": self.n_ff_expert * self.n_expert_shared,
        }

    def metadata(self) -> tuple[MetadataField, ...]:
        """The arch's GGUF keys in the order of llama.cpp's converter, ``general.file_type`` among them as 0."""
        u32, f32, clamp = MetadataField.u32, MetadataField.f32, (self.swiglu_limit,) * self.n_layer

        def key(name: str) -> str:
            return f"{ARCH}.{name}"

        return (
            u32(key("block_count"), self.n_layer),
            u32(key("context_length"), self.n_ctx),
            u32(key("embedding_length"), self.n_embd),
            u32(key("attention.head_count"), self.n_head),
            u32(key("attention.head_count_kv"), 1),
            *self._scaling(),
            f32(key("rope.freq_base"), self.rope_base),
            f32(key("attention.layer_norm_rms_epsilon"), self.rms_eps),
            u32(key("expert_count"), self.n_expert),
            u32(key("expert_used_count"), self.n_expert_used),
            u32(key("expert_gating_func"), SQRT_SOFTPLUS),
            u32(key("attention.key_length"), self.d_head),
            u32(key("attention.value_length"), self.d_head),
            u32("general.file_type", 0),
            u32(key("rope.dimension_count"), self.d_rope),
            u32(key("attention.q_lora_rank"), self.q_rank),
            u32(key("attention.sliding_window"), self.window),
            u32(key("expert_feed_forward_length"), self.n_ff_expert),
            u32(key("expert_shared_count"), self.n_expert_shared),
            f32(key("expert_weights_scale"), self.expert_scale),
            MetadataField.boolean(key("expert_weights_norm"), self.expert_norm),
            MetadataField.array(key("swiglu_clamp_exp"), ValueType.FLOAT32, clamp),
            MetadataField.array(key("swiglu_clamp_shexp"), ValueType.FLOAT32, clamp),
            u32(key("attention.indexer.head_count"), self.n_index_head),
            u32(key("attention.indexer.key_length"), self.d_index),
            u32(key("attention.indexer.top_k"), self.index_top_k),
            u32(key("attention.output_group_count"), self.o_groups),
            u32(key("attention.output_lora_rank"), self.o_rank),
            MetadataField.array(key("attention.compress_ratios"), ValueType.INT32, self.compress_ratios),
            f32(key("attention.compress_rope_freq_base"), self.rope_base_compressed),
            u32(key("hyper_connection.count"), self.n_streams),
            u32(key("hyper_connection.sinkhorn_iterations"), self.sinkhorn),
            f32(key("hyper_connection.epsilon"), self.hc_eps),
            u32(key("hash_layer_count"), self.n_hash),
            u32(key("embedding_length_out"), self.n_embd * self.n_streams),
        )

    def _scaling(self) -> tuple[MetadataField, ...]:
        if self.yarn is None:
            return ()
        prefix = f"{ARCH}.rope.scaling"
        betas = (("yarn_beta_fast", self.yarn.beta_fast), ("yarn_beta_slow", self.yarn.beta_slow))
        return (
            MetadataField.string(f"{prefix}.type", "yarn"),
            MetadataField.f32(f"{prefix}.factor", self.yarn.factor),
            MetadataField.u32(f"{prefix}.original_context_length", self.yarn.original),
            *(MetadataField.f32(f"{prefix}.{name}", value) for name, value in betas if value is not None),
        )


def _disagreement(h: DeepSeek4HParams) -> str | None:
    """What is impossible about these sizes together, or None."""
    if len(h.compress_ratios) < h.n_layer:
        return f"compression ratios of {len(h.compress_ratios)} blocks are given for {h.n_layer}"
    strange = [ratio for ratio in h.compress_ratios if ratio not in RATIOS]
    if strange:
        return f"a compression ratio of {strange[0]}, expected one of {', '.join(map(str, RATIOS))}"
    if h.n_hash > h.n_layer:
        return f"{h.n_hash} blocks that route by token id, of {h.n_layer} blocks"
    if not 0 < h.d_rope <= min(h.d_head, h.d_index) or h.d_rope % 2:
        return (
            f"{h.d_rope} rotated values of a head of {h.d_head} and an indexer head of {h.d_index}, expected an even "
            "number up to both"
        )
    if h.d_head % 2 or h.d_index % 2:
        return f"heads of {h.d_head} and indexer heads of {h.d_index} values, expected even numbers"
    if h.yarn is not None and h.rope_base_compressed <= 1:
        return f"a RoPE base of {h.rope_base_compressed} where RoPE is stretched, expected more than 1"
    if h.n_head * h.d_head % h.o_groups:
        return f"{h.n_head} heads of {h.d_head} values cannot be divided into {h.o_groups} groups"
    if h.n_expert_used > h.n_expert:
        return f"{h.n_expert_used} experts used of {h.n_expert}"
    return None
