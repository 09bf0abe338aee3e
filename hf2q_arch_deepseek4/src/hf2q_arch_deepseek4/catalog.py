"""Every tensor of the family: which checkpoint tensors it is made of, its shape, and what happens to the values.

Three spellings are known: the published one (``layers.0.attn.wq_a.weight``), the one that transformers saves, which is
the same but for a few names, and that of transformers' classes (``layers.0.self_attn.q_a_proj.weight``).

Sources: llama.cpp, conversion/deepseek.py (`DeepseekV4Model._map_dsv4_tensor_name`, `generate_extra_tensors`) and
src/models/deepseek4.cpp (`load_arch_tensors`); transformers, conversion_mapping.py (``deepseek_v4``).
"""

from __future__ import annotations

from hf2q.types import TensorCatalog, TensorRule
from hf2q_arch_deepseek4.families import ARCH, HASH, HEAVY, SPARSE, TOP_K, kinds

MAP = "llama.cpp, conversion/deepseek.py, DeepseekV4Model._map_dsv4_tensor_name"
EXTRA = "llama.cpp, conversion/deepseek.py, DeepseekV4Model.generate_extra_tensors"
FILTER = "llama.cpp, conversion/deepseek.py, DeepseekV4Model.filter_tensors"
TRANSFORMS = "hf2q_arch_deepseek4.transforms"
IGNORE = (
    (r"mtp\.", "multi-token-prediction block: a model of its own"),
    (r"(vision|aligner)\.|image_", "vision tower: a file of its own"),
    (r"layers\.[0-2]\.ffn\.gate\.bias$", "scores choose no expert in blocks that route by token id"),
    (r".*\brotary_emb\.\w*inv_freq$", "computed from the config"),
)
TABLES, EXPERTS = 1, 2
"""What the converter writes before all others, in this order."""
ALL = kinds()


def catalog() -> TensorCatalog:
    """Tensors of ``deepseek4``."""
    rules = (*_outside(), *_streams(), *_attention(), *_compressors(), *_indexer(), *_ffn(), *_experts())
    return TensorCatalog(
        name=ARCH,
        rules=rules,
        ignore=IGNORE,
        strip=("language_model.", "model."),
        auto="hf2q_arch_deepseek4.mix:auto_type",
    )


def _rule(
    name: str,
    hf: tuple[str, ...],
    shape: tuple[str | int, ...],
    layers: tuple[str, ...] = ALL,
    *,
    stored_as: str = "",
    optional: bool = False,
) -> TensorRule:
    return TensorRule(
        name=f"blk.{{i}}.{name}",
        hf=tuple(f"layers.{{i}}.{part}" for part in hf),
        shape=shape,
        layers=layers,
        stored_as=stored_as,
        optional=optional,
        source=MAP,
    )


def _outside() -> tuple[TensorRule, ...]:
    def rule(name: str, hf: tuple[str, ...], shape: tuple[str | int, ...], stored_as: str = "") -> TensorRule:
        return TensorRule(name=name, hf=hf, shape=shape, stored_as=stored_as, source=MAP)

    return (
        rule("token_embd.weight", ("embed.weight", "embed_tokens.weight"), ("n_vocab", "n_embd")),
        rule("output.weight", ("head.weight", "lm_head.weight"), ("n_vocab", "n_embd")),
        rule("output_norm.weight", ("norm.weight",), ("n_embd",), "F32"),
        rule("output_hc_fn.weight", ("hc_head_fn", "hc_head.hc_fn"), ("n_streams", "n_state"), "F32"),
        rule("output_hc_base.weight", ("hc_head_base", "hc_head.hc_base"), ("n_streams",), "F32"),
        rule("output_hc_scale.weight", ("hc_head_scale", "hc_head.hc_scale"), (1,), "F32"),
    )


def _streams() -> tuple[TensorRule, ...]:
    """Hyper-connections around both halves of a block, and the norms of their inputs."""
    rules = []
    for part, norm in (("attn", "input_layernorm"), ("ffn", "post_attention_layernorm")):
        rules += [
            _rule(f"{part}_norm.weight", (f"{part}_norm.weight", f"{norm}.weight"), ("n_embd",), stored_as="F32"),
            _rule(f"hc_{part}_fn.weight", (f"hc_{part}_fn", f"{part}_hc.fn"), ("n_mix", "n_state"), stored_as="F32"),
            _rule(f"hc_{part}_base.weight", (f"hc_{part}_base", f"{part}_hc.base"), ("n_mix",), stored_as="F32"),
            _rule(f"hc_{part}_scale.weight", (f"hc_{part}_scale", f"{part}_hc.scale"), (3,), stored_as="F32"),
        ]
    return tuple(rules)


def _attention() -> tuple[TensorRule, ...]:
    def rule(
        name: str, own: tuple[str, ...], other: str, shape: tuple[str | int, ...], *, stored_as: str = ""
    ) -> TensorRule:
        return _rule(name, (*(f"attn.{part}" for part in own), f"self_attn.{other}"), shape, stored_as=stored_as)

    return (
        rule("attn_sinks.weight", ("attn_sink",), "sinks", ("n_head",), stored_as="F32"),
        rule("attn_q_a.weight", ("wq_a.weight",), "q_a_proj.weight", ("q_rank", "n_embd")),
        rule("attn_q_a_norm.weight", ("q_norm.weight",), "q_a_norm.weight", ("q_rank",), stored_as="F32"),
        rule("attn_q_b.weight", ("wq_b.weight",), "q_b_proj.weight", ("n_q", "q_rank")),
        rule("attn_kv.weight", ("wkv.weight",), "kv_proj.weight", ("d_head", "n_embd")),
        # transformers saves it under the name of another norm
        rule(
            "attn_kv_a_norm.weight", ("kv_norm.weight", "norm.weight"), "kv_norm.weight", ("d_head",), stored_as="F32"
        ),
        rule("attn_output_a.weight", ("wo_a.weight",), "o_a_proj.weight", ("n_groups_out", "n_group_in")),
        rule("attn_output_b.weight", ("wo_b.weight",), "o_b_proj.weight", ("n_embd", "n_groups_out")),
    )


def _compressor(
    name: str, own: str, other: str, width: str, head: str, ratio: int, layers: tuple[str, ...]
) -> tuple[TensorRule, ...]:
    return (
        _rule(f"{name}_kv.weight", (f"{own}.wkv.weight", f"{other}.kv_proj.weight"), (width, "n_embd"), layers),
        _rule(f"{name}_gate.weight", (f"{own}.wgate.weight", f"{other}.gate_proj.weight"), (width, "n_embd"), layers),
        _rule(f"{name}_ape.weight", (f"{own}.ape", f"{other}.position_bias"), (ratio, width), layers, stored_as="F32"),
        _rule(
            f"{name}_norm.weight", (f"{own}.norm.weight", f"{other}.kv_norm.weight"), (head,), layers, stored_as="F32"
        ),
    )


def _compressors() -> tuple[TensorRule, ...]:
    """Sparse attention compresses two overlapping windows, heavy attention one (`load_arch_tensors`)."""
    own, other = "attn.compressor", "self_attn.compressor"
    return (
        *_compressor("attn_compressor", own, other, "two_heads", "d_head", 4, kinds(attention=(SPARSE,))),
        *_compressor("attn_compressor", own, other, "d_head", "d_head", 128, kinds(attention=(HEAVY,))),
    )


def _indexer() -> tuple[TensorRule, ...]:
    own, other, layers = "attn.indexer", "self_attn.compressor.indexer", kinds(attention=(SPARSE,))
    return (
        *_compressor("indexer_compressor", f"{own}.compressor", other, "two_index_heads", "d_index", 4, layers),
        _rule(
            "indexer.proj.weight",
            (f"{own}.weights_proj.weight", f"{other}.scorer.weights_proj.weight"),
            ("n_index_head", "n_embd"),
            layers,
        ),
        _rule(
            "indexer.attn_q_b.weight",
            (f"{own}.wq_b.weight", f"{other}.q_b_proj.weight"),
            ("n_index_q", "q_rank"),
            layers,
        ),
    )


def _ffn() -> tuple[TensorRule, ...]:
    shared = (
        ("gate", "w1", ("n_ff_shared", "n_embd")),
        ("down", "w2", ("n_embd", "n_ff_shared")),
        ("up", "w3", ("n_ff_shared", "n_embd")),
    )
    return (
        _rule("ffn_gate_inp.weight", ("ffn.gate.weight", "mlp.gate.weight"), ("n_expert", "n_embd"), stored_as="F32"),
        _rule(
            "exp_probs_b.bias",
            ("ffn.gate.bias", "mlp.gate.e_score_correction_bias"),
            ("n_expert",),
            kinds(routing=(TOP_K,)),
            stored_as="F32",
        ),
        _rule("exp_probs_b_vl.bias", ("ffn.gate.bias_vl",), ("n_expert",), stored_as="F32", optional=True),
        *(
            _rule(
                f"ffn_{part}_shexp.weight",
                (f"ffn.shared_experts.{own}.weight", f"mlp.shared_experts.{part}_proj.weight"),
                shape,
            )
            for part, own, shape in shared
        ),
    )


def _experts() -> tuple[TensorRule, ...]:
    """Routed experts, and the tables that route to them."""

    def rule(part: str, own: str, packed: str, shape: tuple[str | int, ...]) -> TensorRule:
        return TensorRule(
            name=f"blk.{{i}}.ffn_{part}_exps.weight",
            hf=(f"layers.{{i}}.ffn.experts.{{e}}.{own}.weight", f"layers.{{i}}.mlp.experts.{packed}"),
            shape=shape,
            layers=ALL,
            transform=f"{TRANSFORMS}:{part}_experts",
            early=EXPERTS,
            source=EXTRA,
        )

    return (
        TensorRule(
            name="blk.{i}.ffn_gate_tid2eid.weight",
            hf=("layers.{i}.ffn.gate.tid2eid", "layers.{i}.mlp.gate.tid2eid"),
            shape=("n_vocab", "n_expert_used"),
            layers=kinds(routing=(HASH,)),
            transform=f"{TRANSFORMS}:routing_table",
            stored_as="I32",
            early=TABLES,
            source=EXTRA,
        ),
        rule("gate", "w1", "gate_up_proj", ("n_expert", "n_ff_expert", "n_embd")),
        rule("down", "w2", "down_proj", ("n_expert", "n_embd", "n_ff_expert")),
        rule("up", "w3", "gate_up_proj", ("n_expert", "n_ff_expert", "n_embd")),
    )
