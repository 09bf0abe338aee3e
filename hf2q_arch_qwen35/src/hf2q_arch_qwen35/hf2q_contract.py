"""The contract suites with this family's own data, for its tests and for ``hf2q plugins check``.

``reference/`` holds logits that transformers computed from the same weights; its PROVENANCE.md says how.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf2q.testing import ArchContract, CallsContract, GraphContract, TokenizerContract
from hf2q.types import HParams

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

HEADS, KEY_ROWS = (2, 3, 12), 24
"""Key heads, value heads for each, and their size in `DENSE` and `MOE`; rows of q, and of k, in a fused projection."""

PLUS_ONE = (
    "norm.weight",
    "mtp.norm.weight",
    "mtp.pre_fc_norm_embedding.weight",
    "mtp.pre_fc_norm_hidden.weight",
    *(
        f"{block}{own}.weight"
        for block in ("layers.{i}.", "mtp.layers.{j}.")
        for own in ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm")
    ),
)
"""Norms that GGUF stores with 1 added."""


def grouped(x: Any, size: int, axis: int = 0) -> Any:
    """Value heads back from tiled to grouped by key head; a head has `size` entries along `axis`."""
    n_k, r, _ = HEADS
    shape = x.shape
    split = (*shape[:axis], r, n_k, size, *shape[axis + 1 :])
    return np.swapaxes(x.reshape(split), axis, axis + 1).reshape(shape)


def tail(x: Any) -> Any:
    """The rows of v back to grouped, those of q and k as they are."""
    return np.concatenate([x[: 2 * KEY_ROWS], grouped(x[2 * KEY_ROWS :], HEADS[2])])


def only(function: Callable[[Any], Any]) -> Callable[[Mapping[str, Any], HParams], Any]:
    """The inverse of a transform of one tensor to one."""
    return lambda parts, hparams: function(next(iter(parts.values())))


LINEAR_INVERSES = {
    "in_proj_qkv.weight": only(tail),
    "conv1d.weight": only(lambda x: tail(x)[:, None]),
    "in_proj_z.weight": only(lambda x: grouped(x, HEADS[2])),
    "out_proj.weight": only(lambda x: grouped(x, HEADS[2], 1)),
    "in_proj_a.weight": only(lambda x: grouped(x, 1)),
    "in_proj_b.weight": only(lambda x: grouped(x, 1)),
    "dt_bias": only(lambda x: grouped(x, 1)),
    "A_log": only(lambda x: np.log(-grouped(x, 1))),
}
DENSE_INVERSES = {
    **{name: only(lambda x: x - np.float32(1)) for name in PLUS_ONE},
    **{f"layers.{{i}}.linear_attn.{name}": inverse for name, inverse in LINEAR_INVERSES.items()},
}
MOE_INVERSES = {
    **DENSE_INVERSES,
    "layers.{i}.mlp.experts.gate_up_proj": lambda parts, hparams: np.concatenate(
        [parts[f"blk.{{i}}.ffn_{part}_exps.weight"] for part in ("gate", "up")], axis=1
    ),
    "layers.{i}.mlp.experts.down_proj": only(lambda x: x),
}
ROUNDOFF = 1e-6
"""Adding 1 and taking exponentials round."""

READ_ELSEWHERE = ("tie_word_embeddings", "mtp_num_hidden_layers")
"""Keys that the checkpoint's tensors decide, whatever the config says."""


class TestDenseArch(ArchContract):
    """Three value heads for each key head, tied embeddings, an MTP block in the file."""

    plugin, arch, config = "qwen35", "qwen35", DENSE
    shapes, leave_out, mtp = DENSE_SHAPES, NO_EMBEDDINGS, True
    harmless, inverses, roundoff = READ_ELSEWHERE, DENSE_INVERSES, ROUNDOFF


class TestMoEArch(ArchContract):
    """Routed and shared experts, a separate output head, no MTP."""

    plugin, arch, config = "qwen35", "qwen35moe", MOE
    shapes, leave_out = MOE_SHAPES, NO_EMBEDDINGS
    harmless, inverses, roundoff = READ_ELSEWHERE, MOE_INVERSES, ROUNDOFF


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


class TestCalls(CallsContract):
    """Both write calls alike."""

    plugin, name = "qwen35", "qwen"
    examples = (
        (
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
            [("get_weather", {"city": "Paris"})],
        ),
    )

    def written(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """As the chat template does."""
        return "\n".join(
            f"<tool_call>\n<function={name}>\n"
            + "".join(
                f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
                for key, value in values.items()
            )
            + "</function>\n</tool_call>"
            for name, values in calls
        )
