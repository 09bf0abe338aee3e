"""The forward pass: the laws of every graph, and the logits that transformers computes from the same weights."""

import re
from pathlib import Path

import numpy as np
import pytest
from hf2q.backends.reference import ReferenceOps
from hf2q.backends.weights import ArraySource, Weights
from hf2q.errors import LoadError
from hf2q.plugins import Plugins
from hf2q.testing import GraphContract
from hf2q_arch_qwen35.graph import Qwen35Graph

DATA = Path(__file__).parent / "data" / "graph"
MIXER = "layers.{i}.linear_attn."

DENSE = {
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
MOE = {
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


class TestDense(GraphContract):
    """Three value heads for each key head, tied embeddings, an MTP block in the file."""

    plugin = "qwen35"
    arch = "qwen35"
    config = DENSE
    shapes = {MIXER + "conv1d.weight": ("n_qkv", 1, "conv_kernel")}
    leave_out = ("blk.{i}.nextn.embed_tokens.weight",)
    mtp = True
    reference = DATA / "dense.npz"


class TestMoE(GraphContract):
    """Routed and shared experts, a separate output head, no MTP."""

    plugin = "qwen35"
    arch = "qwen35moe"
    config = MOE
    shapes = {
        MIXER + "conv1d.weight": ("n_qkv", 1, "conv_kernel"),
        "layers.{i}.mlp.experts.gate_up_proj": ("n_expert", 40, "n_embd"),
        "layers.{i}.mlp.experts.down_proj": ("n_expert", "n_embd", "n_ff_expert"),
    }
    leave_out = ("blk.{i}.nextn.embed_tokens.weight",)
    reference = DATA / "moe.npz"


def test_rope_sections_that_do_not_cover_the_head_are_refused():
    """Time, height and width must take turns over all rotary pairs: sources disagree about anything else."""
    hparams = TestDense.checkpoint().hparams
    weights = Weights(ArraySource({}), Plugins.load().codec, ReferenceOps(threads=1))
    wrong = hparams.__class__(**{**_fields(hparams), "rope_sections": (1, 1, 1, 1)})
    with pytest.raises(LoadError, match=re.escape("sections [1, 1, 1, 1] do not cover 4 rotary pairs")):
        Qwen35Graph(wrong, weights, ReferenceOps(threads=1))


def _fields(record):
    return {name: getattr(record, name) for name in record.__struct_fields__}


def test_the_recorded_logits_are_not_trivial():
    """The reference must move: a graph that ignored its input could not pass."""
    for name in ("dense", "moe"):
        with np.load(DATA / f"{name}.npz") as recorded:
            assert recorded["ids"].shape[1] > 128  # beyond two chunks of the gated delta rule
            assert len(set(recorded["logits"].argmax(-1).ravel().tolist())) > 20
