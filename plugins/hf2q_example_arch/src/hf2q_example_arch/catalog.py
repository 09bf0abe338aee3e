"""Every tensor of the family. A line: GGUF name, name in the checkpoint, shape (rows first)."""

from __future__ import annotations

from hf2q.types import TensorCatalog, TensorRule

TENSORS = (
    ("token_embd.weight", "embed_tokens.weight", ("n_vocab", "n_embd")),
    ("output.weight", "lm_head.weight", ("n_vocab", "n_embd")),
    ("output_norm.weight", "norm.weight", ("n_embd",)),
    ("blk.{i}.attn_norm.weight", "layers.{i}.input_layernorm.weight", ("n_embd",)),
    ("blk.{i}.attn_q.weight", "layers.{i}.self_attn.q_proj.weight", ("n_q", "n_embd")),
    ("blk.{i}.attn_k.weight", "layers.{i}.self_attn.k_proj.weight", ("n_kv", "n_embd")),
    ("blk.{i}.attn_v.weight", "layers.{i}.self_attn.v_proj.weight", ("n_kv", "n_embd")),
    ("blk.{i}.attn_output.weight", "layers.{i}.self_attn.o_proj.weight", ("n_embd", "n_q")),
    ("blk.{i}.ffn_norm.weight", "layers.{i}.post_attention_layernorm.weight", ("n_embd",)),
    ("blk.{i}.ffn_gate.weight", "layers.{i}.mlp.gate_proj.weight", ("n_ff", "n_embd")),
    ("blk.{i}.ffn_up.weight", "layers.{i}.mlp.up_proj.weight", ("n_ff", "n_embd")),
    ("blk.{i}.ffn_down.weight", "layers.{i}.mlp.down_proj.weight", ("n_embd", "n_ff")),
)


def _rule(name: str, hf: str, shape: tuple[str, ...]) -> TensorRule:
    layers = ("dense",) if "{i}" in name else ()
    tied = name == "output.weight"  # a checkpoint with tied embeddings has none
    source = "llama.cpp, gguf-py/gguf/tensor_mapping.py, TensorNameMap"
    return TensorRule(name=name, hf=(hf,), shape=shape, layers=layers, optional=tied, source=source)


CATALOG = TensorCatalog(name="example", strip=("model.",), rules=tuple(_rule(*line) for line in TENSORS))
