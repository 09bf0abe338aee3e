"""The contract suites with this family's own data, for its tests and for ``hf2q plugins check``.

``reference/`` holds logits that transformers computed from the same weights; its PROVENANCE.md says how.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf2q.testing import ArchContract, CallsContract, GraphContract, TokenizerContract

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hf2q.types import Float32, HParams

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "vocab_size": 272,
    "hidden_size": 48,
    "moe_intermediate_size": 20,
    "num_hidden_layers": 6,
    "num_hash_layers": 3,
    "num_nextn_predict_layers": 1,
    "compress_ratios": [0, 4, 128, 0, 4, 128, 0],
    "num_attention_heads": 6,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "qk_rope_head_dim": 4,
    "q_lora_rank": 28,
    "o_groups": 3,
    "o_lora_rank": 11,
    "sliding_window": 9,
    "rope_theta": 10000,
    "compress_rope_theta": 40000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 4,
        "original_max_position_embeddings": 128,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "n_routed_experts": 7,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "index_n_heads": 5,
    "index_head_dim": 12,
    "index_topk": 13,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "expert_dtype": "fp4",
}

GRAPH: dict[str, Any] = {
    **CONFIG,
    "num_hidden_layers": 3,
    "num_hash_layers": 1,
    "compress_ratios": [0, 4, 128],
    "num_nextn_predict_layers": 0,
    "qk_rope_head_dim": 8,
    "n_routed_experts": 5,
    "n_shared_experts": 1,
    "index_n_heads": 11,
    "index_topk": 5,
    "swiglu_limit": 0.5,
    "hc_sinkhorn_iters": 3,
}
"""Bounds that random weights reach: few entries to choose from, a low limit of SwiGLU, Sinkhorn before its end."""

READ_ELSEWHERE = ("num_nextn_predict_layers", "expert_dtype")
"""Keys that decide nothing here: MTP is left out, and the files tell how experts are stored."""


def _stack(part: str) -> Callable[[Mapping[str, Float32], HParams], Float32]:
    """Experts are stacked unchanged."""
    return lambda parts, hparams: parts[f"blk.{{i}}.ffn_{part}_exps.weight"]


def _table(parts: Mapping[str, Float32], hparams: HParams) -> Float32:
    """Stored as int32, whose bits arrive as float32."""
    return parts["blk.{i}.ffn_gate_tid2eid.weight"].view("<i4").astype("<f4")


class TestArch(ArchContract):
    """Every kind of block: three kinds of attention, each with both kinds of routing."""

    plugin, arch, config = "deepseek4", "deepseek4", CONFIG
    leave_out = ("blk.{i}.exp_probs_b_vl.bias",)
    harmless = READ_ELSEWHERE
    inverses = {  # noqa: RUF012 (read only)
        "layers.{i}.ffn.experts.{e}.w1.weight": _stack("gate"),
        "layers.{i}.ffn.experts.{e}.w2.weight": _stack("down"),
        "layers.{i}.ffn.experts.{e}.w3.weight": _stack("up"),
        "layers.{i}.ffn.gate.tid2eid": _table,
    }


class TestTokenizer(TokenizerContract):
    """Its pre-tokenizer."""

    plugin, arch = "deepseek4", "deepseek4"


class TestGraph(GraphContract):
    """Each kind of attention and routing, each part of YaRN's ramp; after 24 tokens the indexer must choose."""

    plugin, arch, config = "deepseek4", "deepseek4", GRAPH
    leave_out = ("blk.{i}.exp_probs_b_vl.bias",)
    reference = Path(__file__).parent / "reference" / "logits.npz"
    reach = 130


class TestCalls(CallsContract):
    """DSML: several calls in one block."""

    plugin, name = "deepseek4", "deepseek4"
    examples = (
        (
            '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n'
            '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
            [("get_weather", {"city": "Paris"})],
        ),
    )

    def written(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """As the chat template does."""
        parts = []
        for name, values in calls:
            parts.append(f'<｜DSML｜invoke name="{name}">\n')
            for key, value in values.items():
                said, text = ("true", value) if isinstance(value, str) else ("false", json.dumps(value))
                parts.append(f'<｜DSML｜parameter name="{key}" string="{said}">{text}</｜DSML｜parameter>\n')
            parts.append("</｜DSML｜invoke>\n")
        return f"<｜DSML｜tool_calls>\n{''.join(parts)}</｜DSML｜tool_calls>"
