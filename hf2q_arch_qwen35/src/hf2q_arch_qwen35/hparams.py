"""`Qwen35HParams`: the sizes of one Qwen 3.5 model, dense or MoE, from ``config.json`` or from GGUF metadata.

Source of the keys and their order: llama.cpp, conversion/base.py `TextModel.set_gguf_parameters` and conversion/qwen.py
`Qwen2MoeModel`, `Qwen3NextModel`, `_QwenMtpMixin`, `_Qwen35MRopeMixin`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hf2q.errors import ConfigError, LoadError
from hf2q.types import MetadataField, Record, TensorInfo, ValueType
from hf2q_arch_qwen35.checkpoint import read_config
from hf2q_arch_qwen35.families import FULL, LINEAR, MOE, MTP, MTP_MORE
from hf2q_arch_qwen35.keys import read_metadata


class Qwen35HParams(Record, frozen=True, kw_only=True):
    """Sizes of one model.

    n_layer       blocks in the file, MTP blocks included; the last `n_mtp` are MTP blocks
    recurrent     for each block: whether it is linear attention (Gated DeltaNet)
    n_ff          width of the dense FFN; an MoE model has none, but may state one (else 0)
    d_k, d_v      head sizes of linear attention; n_k_heads, n_v_heads the numbers of heads
    rope_dim      rotated values of a head; rope_sections the M-RoPE sections (time, height, width, extra)
    sections_given  whether the checkpoint states them: decides where the converter writes their key
    rope_scaling  GGUF keys of a scaled RoPE, empty for the plain one; converting only, it is never loaded
    """

    arch: str
    n_layer: int
    n_mtp: int
    n_vocab: int
    n_ctx: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    rope_dim: int
    rope_sections: tuple[int, int, int, int]
    rope_base: float
    rms_eps: float
    recurrent: tuple[bool, ...]
    full_attention_interval: int
    conv_kernel: int
    d_k: int
    d_v: int
    n_k_heads: int
    n_v_heads: int
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_expert: int = 0
    n_ff_shared: int = 0
    sections_given: bool = True
    rope_scaling: tuple[MetadataField, ...] = ()

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], tensors: Iterable[TensorInfo], *, mtp: bool = True
    ) -> Qwen35HParams:
        """From the parsed ``config.json`` and the checkpoint's tensor list; `mtp` False leaves MTP blocks out.

        Errors: ConfigError for what the family does not know; TensorMismatchError when config and tensors disagree
        about MTP or about a separate output head.
        """
        hparams = cls(**read_config(config, [tensor.name for tensor in tensors], mtp=mtp))
        problem = _disagreement(hparams)
        if problem:
            raise ConfigError(f"config.json: {problem}")
        return hparams

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Qwen35HParams:
        """From GGUF metadata. The vocabulary's size is the length of the token list.

        Errors: LoadError naming the key that is missing, of the wrong kind, or contradictory.
        """
        hparams = cls(**read_metadata(metadata))
        problem = _disagreement(hparams)
        if problem:
            raise LoadError(f"GGUF metadata of {hparams.arch}: {problem}")
        return hparams

    @property
    def n_trunk(self) -> int:
        """Blocks of the model proper, without MTP."""
        return self.n_layer - self.n_mtp

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        """``linear_attention``, ``full_attention``, then ``mtp`` and for further MTP blocks ``mtp_more``."""
        trunk = tuple(LINEAR if linear else FULL for linear in self.recurrent[: self.n_trunk])
        return trunk + tuple(MTP_MORE if j else MTP for j in range(self.n_mtp))

    @property
    def symbols(self) -> Mapping[str, int]:
        """Sizes by the symbols of the catalog's shapes."""
        keys, values = self.d_k * self.n_k_heads, self.d_v * self.n_v_heads
        return {
            "n_vocab": self.n_vocab,
            "n_embd": self.n_embd,
            "n_embd_2": 2 * self.n_embd,
            "n_ff": self.n_ff,
            "n_q_gate": 2 * self.n_head * self.head_dim,
            "n_attn": self.n_head * self.head_dim,
            "n_kv": self.n_head_kv * self.head_dim,
            "head_dim": self.head_dim,
            "n_qkv": 2 * keys + values,
            "n_values": values,
            "n_v_heads": self.n_v_heads,
            "n_k_heads": self.n_k_heads,
            "d_k": self.d_k,
            "d_v": self.d_v,
            "conv_kernel": self.conv_kernel,
            "n_expert": self.n_expert,
            "n_ff_expert": self.n_ff_expert,
            "n_ff_shared": self.n_ff_shared,
        }

    def metadata(self) -> tuple[MetadataField, ...]:
        """The arch's GGUF keys in the order of llama.cpp's converter, ``general.file_type`` among them as 0."""
        a, u32, f32 = self.arch, MetadataField.u32, MetadataField.f32
        sections = MetadataField.array(f"{a}.rope.dimension_sections", ValueType.INT32, self.rope_sections)
        moe = self.arch == MOE
        fields = [
            u32(f"{a}.block_count", self.n_layer),
            u32(f"{a}.context_length", self.n_ctx),
            u32(f"{a}.embedding_length", self.n_embd),
            *([u32(f"{a}.feed_forward_length", self.n_ff)] if self.n_ff else []),
            u32(f"{a}.attention.head_count", self.n_head),
            u32(f"{a}.attention.head_count_kv", self.n_head_kv),
            *self.rope_scaling,
            *([sections] if self.sections_given else []),
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
            fields += [
                u32(f"{a}.expert_feed_forward_length", self.n_ff_expert),
                u32(f"{a}.expert_shared_feed_forward_length", self.n_ff_shared),
            ]
        if self.n_mtp:
            fields.append(u32(f"{a}.nextn_predict_layers", self.n_mtp))
        fields += [
            u32(f"{a}.ssm.conv_kernel", self.conv_kernel),
            u32(f"{a}.ssm.state_size", self.d_k),
            u32(f"{a}.ssm.group_count", self.n_k_heads),
            u32(f"{a}.ssm.time_step_rank", self.n_v_heads),
            u32(f"{a}.ssm.inner_size", self.d_v * self.n_v_heads),
            MetadataField.array(f"{a}.attention.recurrent_layers", ValueType.BOOL, self.recurrent),
            u32(f"{a}.full_attention_interval", self.full_attention_interval),
            u32(f"{a}.rope.dimension_count", self.rope_dim),
            *([] if self.sections_given else [sections]),
        ]
        return tuple(fields)


def _disagreement(h: Qwen35HParams) -> str | None:
    """What is impossible or unsupported about these sizes together, or None."""
    if h.d_k != h.d_v:
        # ssm.state_size is read for both (llama.cpp, src/models/qwen35.cpp)
        return f"linear attention with key heads of {h.d_k} and value heads of {h.d_v}; GGUF can only say one size"
    if h.n_v_heads % h.n_k_heads:
        return f"{h.n_v_heads} value heads of linear attention are no multiple of {h.n_k_heads} key heads"
    if h.n_head % h.n_head_kv:
        return f"{h.n_head} attention heads are no multiple of {h.n_head_kv} key/value heads"
    if not 0 < h.rope_dim <= h.head_dim or h.rope_dim % 2:
        return f"{h.rope_dim} rotated dimensions of a head of {h.head_dim}, expected an even number up to that"
    if not any(h.rope_sections):
        return "all M-RoPE sections are 0"
    if h.n_expert_used > h.n_expert:
        return f"{h.n_expert_used} experts used of {h.n_expert}"
    if h.n_mtp >= h.n_layer:
        return f"{h.n_mtp} MTP blocks of {h.n_layer} blocks leave no model"
    if len(h.recurrent) != h.n_layer or any(h.recurrent[h.n_trunk :]):
        return f"kinds of {len(h.recurrent)} blocks given for {h.n_layer}, the last {h.n_mtp} of them full attention"
    return None
