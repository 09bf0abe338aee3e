"""The contract suites with this family's own data, for its tests and for ``hf2q plugins check``.

``reference/`` holds logits that transformers computed from the same weights; its PROVENANCE.md says how.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf2q.testing import ArchContract, GraphContract, TokenizerContract

REFERENCE = Path(__file__).parent / "reference"
NO_EMBEDDINGS = ("blk.{i}.nextn.embed_tokens.weight",)
DENSE_SHAPES: dict[str, tuple[str | int, ...]] = {"layers.{i}.linear_attn.conv1d.weight": ("n_qkv", 1, "conv_kernel")}
MOE_SHAPES: dict[str, tuple[str | int, ...]] = {
    **DENSE_SHAPES,
    "layers.{i}.mlp.experts.gate_up_proj": ("n_expert", 40, "n_embd"),
    "layers.{i}.mlp.experts.down_proj": ("n_expert", "n_embd", "n_ff_expert"),
}

DENSE: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 272,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
    "linear_conv_kernel_dim": 3,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "full_attention_interval": 3,
    "mtp_num_hidden_layers": 1,
    "tie_word_embeddings": True,
}
MOE: dict[str, Any] = {
    **{key: value for key, value in DENSE.items() if key != "intermediate_size"},
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 28,
    "mtp_num_hidden_layers": 0,
    "tie_word_embeddings": False,
}

READ_ELSEWHERE = ("tie_word_embeddings", "mtp_num_hidden_layers")
"""Keys that the checkpoint's tensors decide, whatever the config says."""


class TestDenseArch(ArchContract):
    """Three value heads for each key head, tied embeddings, an MTP block in the file."""

    plugin, arch, config = "qwen35", "qwen35", DENSE
    shapes, leave_out, mtp = DENSE_SHAPES, NO_EMBEDDINGS, True
    harmless = READ_ELSEWHERE


class TestMoEArch(ArchContract):
    """Routed and shared experts, a separate output head, no MTP."""

    plugin, arch, config = "qwen35", "qwen35moe", MOE
    shapes, leave_out = MOE_SHAPES, NO_EMBEDDINGS
    harmless = READ_ELSEWHERE


class TestTokenizer(TokenizerContract):
    """Both share their tokenizer."""

    plugin, arch = "qwen35", "qwen35"


class TestDenseGraph(GraphContract):
    """The forward pass of `TestDenseArch`."""

    plugin, arch, config = "qwen35", "qwen35", DENSE
    shapes, leave_out, mtp = DENSE_SHAPES, NO_EMBEDDINGS, True
    reference = REFERENCE / "dense.npz"


class TestMoEGraph(GraphContract):
    """The forward pass of `TestMoEArch`."""

    plugin, arch, config = "qwen35", "qwen35moe", MOE
    shapes, leave_out = MOE_SHAPES, NO_EMBEDDINGS
    reference = REFERENCE / "moe.npz"
