"""The contract suites with this family's own data, for its tests and for ``hf2q plugins check``.

``reference/`` holds what transformers computed from the same weights; its PROVENANCE.md says how.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf2q.testing import ArchContract, CallsContract, GraphContract, ProjectorContract, TokenizerContract
from hf2q.types import HParams

REFERENCE = Path(__file__).parent / "reference"
TEXT: dict[str, Any] = {
    "model_type": "qwen3_vl_text",
    "vocab_size": 272,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "attention_bias": False,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000,
        "mrope_section": [4, 3, 1],
        "mrope_interleaved": True,
    },
}
VISION: dict[str, Any] = {
    "model_type": "qwen3_vl_vision",
    "depth": 5,
    "hidden_size": 24,
    "intermediate_size": 56,
    "num_heads": 3,
    "hidden_act": "gelu_pytorch_tanh",
    "in_channels": 3,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_position_embeddings": 36,
    "out_hidden_size": 48,
    "deepstack_visual_indexes": [1, 3],
    "rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0},
}
DENSE: dict[str, Any] = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "model_type": "qwen3_vl",
    "text_config": TEXT,
    "vision_config": VISION,
    "tie_word_embeddings": True,
}
MOE: dict[str, Any] = {
    **DENSE,
    "architectures": ["Qwen3VLMoeForConditionalGeneration"],
    "model_type": "qwen3_vl_moe",
    "text_config": {
        **TEXT,
        "model_type": "qwen3_vl_moe_text",
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 20,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "mlp_only_layers": [],
    },
    "tie_word_embeddings": False,
}
TOWER: dict[str, Any] = {
    **DENSE,
    "preprocessor_config": {
        "patch_size": 4,
        "merge_size": 2,
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.25, 0.5, 0.75],
    },
}
MOE_SHAPES: dict[str, tuple[str | int, ...]] = {
    "layers.{i}.mlp.experts.gate_up_proj": ("n_expert", "n_embd", "n_ff_expert_2"),
    "layers.{i}.mlp.experts.down_proj": ("n_expert", "n_ff_expert", "n_embd"),
}
TOWER_SHAPES: dict[str, tuple[str | int, ...]] = {
    "visual.patch_embed.proj.weight": ("n_embd", "n_channels", 2, "patch", "patch"),
}
READ_ELSEWHERE = ("tie_word_embeddings",)
"""Keys that the checkpoint's tensors decide, whatever the config says."""


def gate_up(parts: Mapping[str, Any], hparams: HParams) -> Any:
    """Packed experts: gate and up side by side on the last axis, (experts, inputs, outputs)."""
    gate, up = (parts[f"blk.{{i}}.ffn_{part}_exps.weight"] for part in ("gate", "up"))
    return np.concatenate([gate, up], axis=1).transpose(0, 2, 1)


def down(parts: Mapping[str, Any], hparams: HParams) -> Any:
    """Packed experts: (experts, inputs, outputs)."""
    return parts["blk.{i}.ffn_down_exps.weight"].transpose(0, 2, 1)


def patches(parts: Mapping[str, Any], hparams: HParams) -> Any:
    """The convolution over two frames."""
    return np.stack([parts["v.patch_embd.weight"], parts["v.patch_embd.weight.1"]], axis=2)


class TestDenseArch(ArchContract):
    """Tied embeddings, a tower beside the text model that the text file leaves out."""

    plugin, arch, config = "qwen3vl", "qwen3vl", DENSE
    harmless = READ_ELSEWHERE


class TestMoEArch(ArchContract):
    """Routed experts, packed and transposed; a separate output head."""

    plugin, arch, config = "qwen3vl", "qwen3vlmoe", MOE
    shapes = MOE_SHAPES
    harmless = READ_ELSEWHERE
    inverses = {  # noqa: RUF012 - a constant of the suite
        "layers.{i}.mlp.experts.gate_up_proj": gate_up,
        "layers.{i}.mlp.experts.down_proj": down,
    }


class TestDenseGraph(GraphContract):
    """The forward pass of `TestDenseArch`, for text alone."""

    plugin, arch, config = "qwen3vl", "qwen3vl", DENSE
    reference = REFERENCE / "dense.npz"


class TestMoEGraph(GraphContract):
    """The forward pass of `TestMoEArch`, for text alone."""

    plugin, arch, config = "qwen3vl", "qwen3vlmoe", MOE
    shapes = MOE_SHAPES
    reference = REFERENCE / "moe.npz"


class TestProjector(ProjectorContract):
    """A tower of five blocks, after two of which a deepstack merger taps."""

    plugin, arch, config = "qwen3vl", "qwen3vl", TOWER
    shapes = TOWER_SHAPES
    inverses = {"visual.patch_embed.proj.weight": patches}  # noqa: RUF012


class TestTokenizer(TokenizerContract):
    """All share their tokenizer."""

    plugin, arch = "qwen3vl", "qwen3vl"


class TestCalls(CallsContract):
    """JSON between markers."""

    plugin, name = "qwen3vl", "qwen3vl"
    examples = (
        (
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
            [("get_weather", {"city": "Paris"})],
        ),
    )

    def written(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """As the chat template does."""
        parts = (json.dumps({"name": name, "arguments": values}, ensure_ascii=False) for name, values in calls)
        return "\n".join(f"<tool_call>\n{part}\n</tool_call>" for part in parts)
