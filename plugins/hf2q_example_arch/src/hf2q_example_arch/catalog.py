"""Every tensor of the family. A line: GGUF name, name in the checkpoint, shape (rows first)."""

from __future__ import annotations

from hf2q.types import TensorCatalog, TensorRule

MAP = "llama.cpp, gguf-py/gguf/tensor_mapping.py, TensorNameMap"

OUTSIDE = (
    ("token_embd.weight", "embed_tokens.weight", ("n_vocab", "n_embd")),
    ("output.weight", "lm_head.weight", ("n_vocab", "n_embd")),
    ("output_norm.weight", "norm.weight", ("n_embd",)),
)
BLOCK = (
    ("attn_norm.weight", "input_layernorm.weight", ("n_embd",)),
    ("attn_q.weight", "self_attn.q_proj.weight", ("n_q", "n_embd")),
    ("attn_k.weight", "self_attn.k_proj.weight", ("n_kv", "n_embd")),
    ("attn_v.weight", "self_attn.v_proj.weight", ("n_kv", "n_embd")),
    ("attn_output.weight", "self_attn.o_proj.weight", ("n_embd", "n_q")),
    ("ffn_norm.weight", "post_attention_layernorm.weight", ("n_embd",)),
    ("ffn_gate.weight", "mlp.gate_proj.weight", ("n_ff", "n_embd")),
    ("ffn_up.weight", "mlp.up_proj.weight", ("n_ff", "n_embd")),
    ("ffn_down.weight", "mlp.down_proj.weight", ("n_embd", "n_ff")),
)

CATALOG = TensorCatalog(
    name="example",
    strip=("model.",),
    ignore=((r".*\brotary_emb\.inv_freq$", "computed from the config"),),
    rules=(
        # a checkpoint with tied embeddings has no lm_head
        *(
            TensorRule(name=name, hf=(hf,), shape=shape, optional=hf == "lm_head.weight", source=MAP)
            for name, hf, shape in OUTSIDE
        ),
        *(
            TensorRule(name=f"blk.{{i}}.{name}", hf=(f"layers.{{i}}.{hf}",), shape=shape, layers=("dense",), source=MAP)
            for name, hf, shape in BLOCK
        ),
    ),
)
