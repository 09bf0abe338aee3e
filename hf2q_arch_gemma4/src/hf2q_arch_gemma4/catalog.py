"""Every tensor of the text model: which checkpoint tensor it is, its shape, and where it belongs.

No values change on their way. KV-sharing blocks may carry keys and values of their own, which nothing computes with:
the converter writes them, and so does this one. Sources: llama.cpp, conversion/gemma.py (`Gemma4Model`),
gguf-py/gguf/tensor_mapping.py; src/models/gemma4.cpp (`load_arch_tensors`).
"""

from __future__ import annotations

from hf2q.types import TensorCatalog, TensorRule
from hf2q_arch_gemma4.families import ARCH, FULL, FULL_SHARED, SLIDING, SLIDING_SHARED

MAP = "llama.cpp, gguf-py/gguf/tensor_mapping.py, TensorNameMap"
GEMMA4 = "llama.cpp, conversion/gemma.py, Gemma4Model.modify_tensors"
FILTER = "llama.cpp, conversion/gemma.py, Gemma4Model.filter_tensors"
ROWS = "llama.cpp, conversion/gemma.py, Gemma3Model.modify_tensors"
EXTRA = "llama.cpp, conversion/gemma.py, Gemma4Model.generate_extra_tensors"
FIRST_ROWS = "hf2q_arch_gemma4.transforms:first_rows"
OWN, ALL = (SLIDING, FULL), (SLIDING, FULL, SLIDING_SHARED, FULL_SHARED)
IGNORE = (
    (r"vision_tower\.", "vision tower: a file of its own"),
    (r"vision_embedder\.", "vision embedder of a unified model: no part of the text model"),
    (r"embed_vision\.", "vision projection: in the vision tower's file"),
    (r"audio_tower\.", "audio tower: no part of the text model"),
    (r"embed_audio\.", "audio projection: no part of the text model"),
    (r".*\brotary_emb\.\w*inv_freq$", "computed from the config"),
)
STRIP = ("language_model.", "model.")


def text_catalog() -> TensorCatalog:
    """Tensors of ``gemma4``."""
    rules = (
        *_outside(),
        *_norms(),
        *_attention((SLIDING, SLIDING_SHARED), "swa"),
        *_attention((FULL, FULL_SHARED), "full"),
        *_ffn(OWN, "n_ff"),
        *_ffn((SLIDING_SHARED, FULL_SHARED), "n_ff_shared"),
        *_experts(),
        *_per_layer_inputs(),
    )
    return TensorCatalog(name=ARCH, rules=rules, ignore=IGNORE, strip=STRIP)


def _outside() -> tuple[TensorRule, ...]:
    return (
        TensorRule(
            name="rope_freqs.weight",
            hf=(),
            shape=("n_pairs",),
            transform="hf2q_arch_gemma4.transforms:rope_freqs",
            stored_as="F32",
            source=EXTRA,
        ),
        _table("token_embd.weight", "embed_tokens.weight", "n_embd"),
        _table("output.weight", "lm_head.weight", "n_embd", optional=True),
        TensorRule(name="output_norm.weight", hf=("norm.weight",), shape=("n_embd",), stored_as="F32", source=MAP),
        _table("per_layer_token_embd.weight", "embed_tokens_per_layer.weight", "n_ple_all", needs="n_ple"),
        TensorRule(
            name="per_layer_model_proj.weight",
            hf=("per_layer_model_projection.weight",),
            shape=("n_ple_all", "n_embd"),
            needs="n_ple",
            source=MAP,
        ),
        TensorRule(
            name="per_layer_proj_norm.weight",
            hf=("per_layer_projection_norm.weight",),
            shape=("n_ple",),
            needs="n_ple",
            stored_as="F32",
            source=MAP,
        ),
    )


def _table(name: str, hf: str, columns: str, *, needs: str = "", optional: bool = False) -> TensorRule:
    """A row for each token; rows that no token has are left out."""
    return TensorRule(
        name=name,
        hf=(hf,),
        shape=("n_vocab", columns),
        needs=needs,
        transform=FIRST_ROWS,
        optional=optional,
        source=ROWS,
    )


def _rule(
    name: str,
    hf: str,
    shape: tuple[str | int, ...],
    layers: tuple[str, ...] = ALL,
    *,
    needs: str = "",
    stored_as: str = "",
    optional: bool = False,
    source: str = MAP,
) -> TensorRule:
    return TensorRule(
        name=f"blk.{{i}}.{name}",
        hf=(f"layers.{{i}}.{hf}",),
        shape=shape,
        layers=layers,
        needs=needs,
        stored_as=stored_as,
        optional=optional,
        source=source,
    )


def _norm(
    name: str,
    hf: str,
    layers: tuple[str, ...] = ALL,
    size: str = "n_embd",
    *,
    needs: str = "",
    optional: bool = False,
) -> TensorRule:
    return _rule(f"{name}.weight", f"{hf}.weight", (size,), layers, needs=needs, stored_as="F32", optional=optional)


def _norms() -> tuple[TensorRule, ...]:
    return (
        _norm("attn_norm", "input_layernorm"),
        _norm("post_attention_norm", "post_attention_layernorm"),
        _norm("ffn_norm", "pre_feedforward_layernorm"),
        _norm("post_ffw_norm", "post_feedforward_layernorm"),
        _rule("layer_output_scale.weight", "layer_scalar", (1,), stored_as="F32", source=FILTER),
    )


def _attention(kinds: tuple[str, str], part: str) -> tuple[TensorRule, ...]:
    """`kinds`: blocks with keys and values of their own, and blocks that share those of others."""
    own, shared = kinds[:1], kinds[1:]
    q, kv, head = f"n_q_{part}", f"n_kv_{part}", f"head_dim_{part}"
    # where keys are values, which only blocks of full attention do, there is no attn_v
    reused = own[0] == FULL
    return (
        _rule("attn_q.weight", "self_attn.q_proj.weight", (q, "n_embd"), kinds),
        _norm("attn_q_norm", "self_attn.q_norm", kinds, head),
        _rule("attn_k.weight", "self_attn.k_proj.weight", (kv, "n_embd"), own),
        _norm("attn_k_norm", "self_attn.k_norm", own, head),
        _rule("attn_v.weight", "self_attn.v_proj.weight", (kv, "n_embd"), own, optional=reused),
        _rule("attn_k.weight", "self_attn.k_proj.weight", (kv, "n_embd"), shared, optional=True),
        _norm("attn_k_norm", "self_attn.k_norm", shared, head, optional=True),
        _rule("attn_v.weight", "self_attn.v_proj.weight", (kv, "n_embd"), shared, optional=True),
        _rule("attn_output.weight", "self_attn.o_proj.weight", ("n_embd", q), kinds),
    )


def _ffn(layers: tuple[str, ...], width: str) -> tuple[TensorRule, ...]:
    return (
        _rule("ffn_gate.weight", "mlp.gate_proj.weight", (width, "n_embd"), layers),
        _rule("ffn_up.weight", "mlp.up_proj.weight", (width, "n_embd"), layers),
        _rule("ffn_down.weight", "mlp.down_proj.weight", ("n_embd", width), layers),
    )


def _experts() -> tuple[TensorRule, ...]:
    """Experts beside the dense FFN; gate and up stay fused, the rows of gate first."""

    def scale(name: str, hf: str, size: str) -> TensorRule:
        return _rule(f"{name}.scale", hf, (size,), needs="n_expert", stored_as="F32", source=GEMMA4)

    def packed(name: str, hf: str, shape: tuple[str, ...]) -> TensorRule:
        both = (f"layers.{{i}}.experts.{hf}", f"layers.{{i}}.experts.{hf}.weight")
        return TensorRule(
            name=f"blk.{{i}}.{name}.weight", hf=both, shape=shape, layers=ALL, needs="n_expert", source=FILTER
        )

    return (
        _norm("post_ffw_norm_1", "post_feedforward_layernorm_1", needs="n_expert"),
        _norm("post_ffw_norm_2", "post_feedforward_layernorm_2", needs="n_expert"),
        _norm("pre_ffw_norm_2", "pre_feedforward_layernorm_2", needs="n_expert"),
        _rule("ffn_gate_inp.weight", "router.proj.weight", ("n_expert", "n_embd"), needs="n_expert", stored_as="F32"),
        scale("ffn_gate_inp", "router.scale", "n_embd"),
        scale("ffn_down_exps", "router.per_expert_scale", "n_expert"),
        packed("ffn_gate_up_exps", "gate_up_proj", ("n_expert", "n_ff_expert_2", "n_embd")),
        packed("ffn_down_exps", "down_proj", ("n_expert", "n_embd", "n_ff_expert")),
    )


def _per_layer_inputs() -> tuple[TensorRule, ...]:
    return (
        _rule("inp_gate.weight", "per_layer_input_gate.weight", ("n_ple", "n_embd"), needs="n_ple"),
        _rule("proj.weight", "per_layer_projection.weight", ("n_embd", "n_ple"), needs="n_ple"),
        _norm("post_norm", "post_per_layer_input_norm", needs="n_ple"),
    )
