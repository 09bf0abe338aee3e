"""Every tensor of the family.

Sources: llama.cpp, gguf-py/gguf/tensor_mapping.py (BERT, NOMIC_BERT); conversion/bert.py, `BertModel.filter_tensors`
(prefix, old names, what is left out) and conversion/base.py, `prepare_tensors` (tables that stay F32); transformers,
conversion_mapping.py, ``nomic_bert`` (its own names).
"""

from __future__ import annotations

from hf2q.types import TensorCatalog, TensorRule
from hf2q_arch_bert.families import BERT, ENCODER, NOMIC, PREFIXES

MAP = "llama.cpp, gguf-py/gguf/tensor_mapping.py, TensorNameMap"
NATIVE = f"{MAP}; transformers, conversion_mapping.py, nomic_bert"
HEAD = "llama.cpp, conversion/bert.py, BertModel.modify_tensors"

IGNORE = (
    (r"embeddings\.position_ids$", "counts from 0; a buffer, not a weight"),
    (r"pooler\.dense\.", "embeddings are pooled from the last hidden states, without it"),
    (r"cls\.predictions", "head of masked language modelling"),
    (r"cls\.seq_relationship", "head of next-sentence prediction"),
    (r".*\.rotary_emb\.inv_freq$", "computed from rope.freq_base; a buffer, not a weight"),
)


def bert_catalog() -> TensorCatalog:
    """BERT: a table of positions, separate projections, biases everywhere."""
    own = "encoder.layer.{i}."
    rules = (
        _plain("token_embd.weight", "embeddings.word_embeddings.weight", ("n_vocab", "n_embd")),
        _plain("position_embd.weight", "embeddings.position_embeddings.weight", ("n_ctx", "n_embd"), stored_as="F32"),
        _types(),
        *_norm("token_embd_norm", "embeddings.LayerNorm"),
        *_linear("attn_q", f"{own}attention.self.query", "n_embd", "n_embd"),
        *_linear("attn_k", f"{own}attention.self.key", "n_embd", "n_embd"),
        *_linear("attn_v", f"{own}attention.self.value", "n_embd", "n_embd"),
        *_linear("attn_output", f"{own}attention.output.dense", "n_embd", "n_embd"),
        *_norm("blk.{i}.attn_output_norm", f"{own}attention.output.LayerNorm"),
        *_linear("ffn_up", f"{own}intermediate.dense", "n_ff", "n_embd"),
        *_linear("ffn_down", f"{own}output.dense", "n_embd", "n_ff"),
        *_norm("blk.{i}.layer_output_norm", f"{own}output.LayerNorm"),
        _head("weight", ("n_labels", "n_embd")),
        _head("bias", ("n_labels",)),
    )
    return TensorCatalog(name=BERT, rules=rules, ignore=IGNORE, strip=PREFIXES)


def nomic_catalog() -> TensorCatalog:
    """Nomic-BERT: fused projections, a gated FFN, no biases; in Nomic's names or in those of transformers."""
    own, native = "encoder.layers.{i}.", "layers.{i}."
    qkv = "+".join(f"{native}self_attn.{part}_proj.weight" for part in "qkv")
    rules = (
        _plain("token_embd.weight", "embeddings.word_embeddings.weight", ("n_vocab", "n_embd")),
        _types(),
        *_norm("token_embd_norm", "emb_ln", "embeddings.LayerNorm"),
        TensorRule(
            name="blk.{i}.attn_qkv.weight",
            hf=(f"{own}attn.Wqkv.weight", qkv),
            shape=("n_qkv", "n_embd"),
            layers=(ENCODER,),
            transform="hf2q_arch_bert.transforms:attn_qkv",
            source=NATIVE,
        ),
        _nomic("attn_output", f"{own}attn.out_proj", f"{native}self_attn.o_proj", ("n_embd", "n_embd")),
        *_norm("blk.{i}.attn_output_norm", f"{own}norm1", f"{native}post_attention_layernorm"),
        # fc11 is the half that is not activated
        _nomic("ffn_up", f"{own}mlp.fc11", f"{native}mlp.up_proj", ("n_ff", "n_embd")),
        _nomic("ffn_gate", f"{own}mlp.fc12", f"{native}mlp.gate_proj", ("n_ff", "n_embd")),
        _nomic("ffn_down", f"{own}mlp.fc2", f"{native}mlp.down_proj", ("n_embd", "n_ff")),
        *_norm("blk.{i}.layer_output_norm", f"{own}norm2", f"{native}post_mlp_layernorm"),
    )
    return TensorCatalog(name=NOMIC, rules=rules, ignore=IGNORE, strip=PREFIXES)


def _plain(name: str, hf: str, shape: tuple[str, ...], *, stored_as: str = "") -> TensorRule:
    layers = (ENCODER,) if "{i}" in name else ()
    return TensorRule(name=name, hf=(hf,), shape=shape, layers=layers, stored_as=stored_as, source=MAP)


def _types() -> TensorRule:
    hf = "embeddings.token_type_embeddings.weight"
    return _plain("token_types.weight", hf, ("n_token_types", "n_embd"), stored_as="F32")


def _linear(part: str, hf: str, rows: str, columns: str) -> tuple[TensorRule, ...]:
    """Weight and bias of a linear layer of a block."""
    return (
        _plain(f"blk.{{i}}.{part}.weight", f"{hf}.weight", (rows, columns)),
        _plain(f"blk.{{i}}.{part}.bias", f"{hf}.bias", (rows,)),
    )


def _norm(name: str, *hf: str) -> tuple[TensorRule, ...]:
    """Weight and bias of a LayerNorm; checkpoints converted from TensorFlow call them gamma and beta."""
    layers = (ENCODER,) if "{i}" in name else ()
    return tuple(
        TensorRule(
            name=f"{name}.{part}",
            hf=tuple(f"{norm}.{word}" for norm in hf for word in (part, old)),
            shape=("n_embd",),
            layers=layers,
            source=f"{MAP}; conversion/bert.py, BertModel.filter_tensors",
        )
        for part, old in (("weight", "gamma"), ("bias", "beta"))
    )


def _nomic(part: str, hf: str, native: str, shape: tuple[str, ...]) -> TensorRule:
    return TensorRule(
        name=f"blk.{{i}}.{part}.weight",
        hf=(f"{hf}.weight", f"{native}.weight"),
        shape=shape,
        layers=(ENCODER,),
        source=NATIVE,
    )


def _head(part: str, shape: tuple[str, ...]) -> TensorRule:
    hf = (f"classifier.{part}",)
    return TensorRule(name=f"cls.output.{part}", hf=hf, shape=shape, optional=True, source=HEAD)
