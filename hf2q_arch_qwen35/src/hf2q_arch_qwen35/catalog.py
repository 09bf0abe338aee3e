"""Every tensor of the family: which checkpoint tensors it is made of, its shape, and what happens to the values.

Sources: llama.cpp, conversion/qwen.py (`_QwenMtpMixin.filter_tensors`, `Qwen2MoeModel`, `Qwen3NextModel`,
`_LinearAttentionVReorderBase`), gguf-py/gguf/tensor_mapping.py; src/models/qwen35.cpp and qwen35moe.cpp
(`load_arch_tensors`).
"""

from __future__ import annotations

from collections.abc import Callable

from hf2q.types import TensorCatalog, TensorRule
from hf2q_arch_qwen35.families import DENSE, FULL, LINEAR, MOE, MTP, MTP_MORE

MAP = "llama.cpp, gguf-py/gguf/tensor_mapping.py, TensorNameMap"
NEXT = "llama.cpp, conversion/qwen.py, Qwen3NextModel.modify_tensors"
REORDER = "llama.cpp, conversion/qwen.py, _LinearAttentionVReorderBase.modify_tensors"
EXPERTS = "llama.cpp, conversion/qwen.py, Qwen2MoeModel.modify_tensors"
NEXTN = "llama.cpp, conversion/qwen.py, _QwenMtpMixin.filter_tensors"
PLUS_ONE = "hf2q_arch_qwen35.transforms:plus_one"
TRUNK, HEADS = (LINEAR, FULL), (MTP, MTP_MORE)
IGNORE = (
    (r"visual\.", "vision tower: a file of its own"),
    (r".*\brotary_emb\.inv_freq$", "computed from the config"),
)


def dense_catalog() -> TensorCatalog:
    """Tensors of ``qwen35``."""
    return _catalog(DENSE, _dense_ffn)


def moe_catalog() -> TensorCatalog:
    """Tensors of ``qwen35moe``."""
    return _catalog(MOE, _moe_ffn)


def _catalog(arch: str, ffn: Callable[[str, tuple[str, ...]], tuple[TensorRule, ...]]) -> TensorCatalog:
    trunk, mtp = "layers.{i}.", "mtp.layers.{j}."
    rules = (
        *_outside(),
        *_norms(trunk, TRUNK),
        *_linear_attention(trunk),
        *_full_attention(trunk, (FULL,)),
        *ffn(trunk, TRUNK),
        *_norms(mtp, HEADS),
        *_full_attention(mtp, HEADS),
        *ffn(mtp, HEADS),
        *_nextn(),
    )
    return TensorCatalog(name=arch, rules=rules, ignore=IGNORE, strip=("language_model.", "model."), mtp=r"mtp\.")


def _outside() -> tuple[TensorRule, ...]:
    return (
        TensorRule(name="token_embd.weight", hf=("embed_tokens.weight",), shape=("n_vocab", "n_embd"), source=MAP),
        TensorRule(
            name="output.weight", hf=("lm_head.weight",), shape=("n_vocab", "n_embd"), optional=True, source=MAP
        ),
        _norm("output_norm.weight", "norm.weight"),
    )


def _norm(
    name: str, hf: str, layers: tuple[str, ...] = (), size: str = "n_embd", *, optional: bool = False
) -> TensorRule:
    """A norm whose checkpoint weight is centred on zero: GGUF stores 1 + weight."""
    return TensorRule(
        name=name,
        hf=(hf,),
        shape=(size,),
        layers=layers,
        transform=PLUS_ONE,
        stored_as="F32",
        optional=optional,
        source=NEXT,
    )


def _plain(
    name: str, hf: str, shape: tuple[str | int, ...], layers: tuple[str, ...], *, stored_as: str = ""
) -> TensorRule:
    return TensorRule(name=f"blk.{{i}}.{name}", hf=(hf,), shape=shape, layers=layers, stored_as=stored_as, source=MAP)


def _norms(prefix: str, layers: tuple[str, ...]) -> tuple[TensorRule, ...]:
    return (
        _norm("blk.{i}.attn_norm.weight", f"{prefix}input_layernorm.weight", layers),
        _norm("blk.{i}.post_attention_norm.weight", f"{prefix}post_attention_layernorm.weight", layers),
    )


def _full_attention(prefix: str, layers: tuple[str, ...]) -> tuple[TensorRule, ...]:
    own = f"{prefix}self_attn."
    return (
        _plain("attn_q.weight", f"{own}q_proj.weight", ("n_q_gate", "n_embd"), layers),
        _plain("attn_k.weight", f"{own}k_proj.weight", ("n_kv", "n_embd"), layers),
        _plain("attn_v.weight", f"{own}v_proj.weight", ("n_kv", "n_embd"), layers),
        _plain("attn_output.weight", f"{own}o_proj.weight", ("n_embd", "n_attn"), layers),
        _norm("blk.{i}.attn_q_norm.weight", f"{own}q_norm.weight", layers, "head_dim"),
        _norm("blk.{i}.attn_k_norm.weight", f"{own}k_norm.weight", layers, "head_dim"),
    )


def _linear_attention(prefix: str) -> tuple[TensorRule, ...]:
    own = f"{prefix}linear_attn."

    def rule(
        name: str, hf: tuple[str, ...], shape: tuple[str | int, ...], transform: str = "", *, stored_as: str = ""
    ) -> TensorRule:
        return TensorRule(
            name=f"blk.{{i}}.{name}",
            hf=tuple(own + part for part in hf),
            shape=shape,
            layers=(LINEAR,),
            transform=f"hf2q_arch_qwen35.transforms:{transform}" if transform else "",
            stored_as=stored_as,
            source=REORDER if transform else MAP,
        )

    # the second names are the fused layout of Qwen3-Next, in which some fine-tunes are saved
    return (
        rule("attn_qkv.weight", ("in_proj_qkv.weight", "in_proj_qkvz.weight"), ("n_qkv", "n_embd"), "attn_qkv"),
        rule("attn_gate.weight", ("in_proj_z.weight", "in_proj_qkvz.weight"), ("n_values", "n_embd"), "attn_gate"),
        rule("ssm_beta.weight", ("in_proj_b.weight", "in_proj_ba.weight"), ("n_v_heads", "n_embd"), "ssm_beta"),
        rule("ssm_alpha.weight", ("in_proj_a.weight", "in_proj_ba.weight"), ("n_v_heads", "n_embd"), "ssm_alpha"),
        rule("ssm_a", ("A_log",), ("n_v_heads",), "ssm_a", stored_as="F32"),
        rule("ssm_dt.bias", ("dt_bias",), ("n_v_heads",), "ssm_dt", stored_as="F32"),
        rule("ssm_conv1d.weight", ("conv1d.weight",), ("n_qkv", "conv_kernel"), "ssm_conv1d", stored_as="F32"),
        # this norm's weight is not centred on zero
        rule("ssm_norm.weight", ("norm.weight",), ("d_v",), stored_as="F32"),
        rule("ssm_out.weight", ("out_proj.weight",), ("n_embd", "n_values"), "ssm_out"),
    )


def _dense_ffn(prefix: str, layers: tuple[str, ...]) -> tuple[TensorRule, ...]:
    own = f"{prefix}mlp."
    return (
        _plain("ffn_gate.weight", f"{own}gate_proj.weight", ("n_ff", "n_embd"), layers),
        _plain("ffn_up.weight", f"{own}up_proj.weight", ("n_ff", "n_embd"), layers),
        _plain("ffn_down.weight", f"{own}down_proj.weight", ("n_embd", "n_ff"), layers),
    )


def _moe_ffn(prefix: str, layers: tuple[str, ...]) -> tuple[TensorRule, ...]:
    own = f"{prefix}mlp."

    def experts(part: str, packed: str, shape: tuple[str | int, ...]) -> TensorRule:
        # packed names come with and without a suffix
        return TensorRule(
            name=f"blk.{{i}}.ffn_{part}_exps.weight",
            hf=(
                f"{own}experts.{packed}",
                f"{own}experts.{packed}.weight",
                f"{own}experts.{{e}}.{part}_proj.weight",
            ),
            shape=shape,
            layers=layers,
            transform=f"hf2q_arch_qwen35.transforms:{part}_experts",
            source=EXPERTS,
        )

    # down before gate before up: the order in which the converter writes experts that it stacked
    shared = f"{own}shared_expert."
    return (
        _plain("ffn_gate_inp.weight", f"{own}gate.weight", ("n_expert", "n_embd"), layers, stored_as="F32"),
        experts("down", "down_proj", ("n_expert", "n_embd", "n_ff_expert")),
        experts("gate", "gate_up_proj", ("n_expert", "n_ff_expert", "n_embd")),
        experts("up", "gate_up_proj", ("n_expert", "n_ff_expert", "n_embd")),
        _plain("ffn_gate_inp_shexp.weight", f"{own}shared_expert_gate.weight", (1, "n_embd"), layers, stored_as="F32"),
        _plain("ffn_gate_shexp.weight", f"{shared}gate_proj.weight", ("n_ff_shared", "n_embd"), layers),
        _plain("ffn_up_shexp.weight", f"{shared}up_proj.weight", ("n_ff_shared", "n_embd"), layers),
        _plain("ffn_down_shexp.weight", f"{shared}down_proj.weight", ("n_embd", "n_ff_shared"), layers),
    )


def _nextn() -> tuple[TensorRule, ...]:
    """What the first MTP block has besides its transformer block."""
    first = (MTP,)
    return (
        TensorRule(
            name="blk.{i}.nextn.eh_proj.weight",
            hf=("mtp.fc.weight",),
            shape=("n_embd", "n_embd_2"),
            layers=first,
            source=NEXTN,
        ),
        _norm("blk.{i}.nextn.enorm.weight", "mtp.pre_fc_norm_embedding.weight", first),
        _norm("blk.{i}.nextn.hnorm.weight", "mtp.pre_fc_norm_hidden.weight", first),
        # without it a loader takes output_norm: llama.cpp, src/models/qwen35.cpp, load_block_mtp
        _norm("blk.{i}.nextn.shared_head_norm.weight", "mtp.norm.weight", first, optional=True),
        TensorRule(
            name="blk.{i}.nextn.embed_tokens.weight",
            hf=("mtp.embed_tokens.weight",),
            shape=("n_vocab", "n_embd"),
            layers=first,
            optional=True,
            source="llama.cpp, src/models/qwen35.cpp, load_block_mtp",
        ),
    )
