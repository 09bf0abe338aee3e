"""Every tensor of a text model: which checkpoint tensors it is made of, its shape, and what happens to the values.

Sources: llama.cpp, conversion/qwen3vl.py (`Qwen3VLTextModel`, `Qwen3VLMoeTextModel`), conversion/qwen.py
(`Qwen2MoeModel`), gguf-py/gguf/tensor_mapping.py; src/models/qwen3vl.cpp and qwen3vlmoe.cpp (`load_arch_tensors`).
"""

from __future__ import annotations

from hf2q.types import TensorCatalog, TensorRule
from hf2q_arch_qwen3vl.families import DENSE, MOE, TEXT

MAP = "llama.cpp, gguf-py/gguf/tensor_mapping.py, TensorNameMap"
EXPERTS = "llama.cpp, conversion/qwen3vl.py, Qwen3VLMoeTextModel.modify_tensors"
LAYERS = (TEXT,)
IGNORE = (
    (r"visual\.", "vision tower: a file of its own, with --mmproj"),
    (r".*\brotary_emb\.inv_freq$", "computed from the config"),
)


def dense_catalog() -> TensorCatalog:
    """Tensors of ``qwen3vl``."""
    return _catalog(DENSE, _dense_ffn())


def moe_catalog() -> TensorCatalog:
    """Tensors of ``qwen3vlmoe``."""
    return _catalog(MOE, _moe_ffn())


def _catalog(arch: str, ffn: tuple[TensorRule, ...]) -> TensorCatalog:
    rules = (*_outside(), *_attention(), *ffn)
    return TensorCatalog(name=arch, rules=rules, ignore=IGNORE, strip=("thinker.", "language_model.", "model."))


def _outside() -> tuple[TensorRule, ...]:
    return (
        TensorRule(name="token_embd.weight", hf=("embed_tokens.weight",), shape=("n_vocab", "n_embd"), source=MAP),
        TensorRule(
            name="output.weight", hf=("lm_head.weight",), shape=("n_vocab", "n_embd"), optional=True, source=MAP
        ),
        TensorRule(name="output_norm.weight", hf=("norm.weight",), shape=("n_embd",), source=MAP),
    )


def _rule(name: str, hf: str, shape: tuple[str | int, ...], *, stored_as: str = "") -> TensorRule:
    return TensorRule(
        name=f"blk.{{i}}.{name}.weight",
        hf=(f"layers.{{i}}.{hf}.weight",),
        shape=shape,
        layers=LAYERS,
        stored_as=stored_as,
        source=MAP,
    )


def _attention() -> tuple[TensorRule, ...]:
    return (
        _rule("attn_norm", "input_layernorm", ("n_embd",)),
        _rule("ffn_norm", "post_attention_layernorm", ("n_embd",)),
        _rule("attn_q", "self_attn.q_proj", ("n_attn", "n_embd")),
        _rule("attn_k", "self_attn.k_proj", ("n_kv", "n_embd")),
        _rule("attn_v", "self_attn.v_proj", ("n_kv", "n_embd")),
        _rule("attn_output", "self_attn.o_proj", ("n_embd", "n_attn")),
        _rule("attn_q_norm", "self_attn.q_norm", ("head_dim",)),
        _rule("attn_k_norm", "self_attn.k_norm", ("head_dim",)),
    )


def _dense_ffn() -> tuple[TensorRule, ...]:
    return (
        _rule("ffn_gate", "mlp.gate_proj", ("n_ff", "n_embd")),
        _rule("ffn_up", "mlp.up_proj", ("n_ff", "n_embd")),
        _rule("ffn_down", "mlp.down_proj", ("n_embd", "n_ff")),
    )


def _moe_ffn() -> tuple[TensorRule, ...]:
    def experts(part: str, packed: str, shape: tuple[str | int, ...]) -> TensorRule:
        own = "layers.{i}.mlp.experts."
        return TensorRule(
            name=f"blk.{{i}}.ffn_{part}_exps.weight",
            # packed names come with and without a suffix
            hf=(f"{own}{packed}", f"{own}{packed}.weight", f"{own}{{e}}.{part}_proj.weight"),
            shape=shape,
            layers=LAYERS,
            transform=f"hf2q_arch_qwen3vl.transforms:{part}_experts",
            source=EXPERTS,
        )

    # down before gate before up: the order in which the converter writes experts that it stacked
    return (
        _rule("ffn_gate_inp", "mlp.gate", ("n_expert", "n_embd"), stored_as="F32"),
        experts("down", "down_proj", ("n_expert", "n_embd", "n_ff_expert")),
        experts("gate", "gate_up_proj", ("n_expert", "n_ff_expert", "n_embd")),
        experts("up", "gate_up_proj", ("n_expert", "n_ff_expert", "n_embd")),
    )
