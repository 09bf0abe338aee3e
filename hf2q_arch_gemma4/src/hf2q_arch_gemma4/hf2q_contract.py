"""The contract suites with this family's own data, for its tests and for ``hf2q plugins check``.

``reference/`` holds logits that transformers computed from the same weights; its PROVENANCE.md says how.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf2q.testing import ArchContract, CallsContract, GraphContract, ProjectorContract, TokenizerContract
from hf2q.types import HParams
from hf2q_arch_gemma4.projector import BOUNDS, MATRICES, OWN

REFERENCE = Path(__file__).parent / "reference"
TOLERANCE = 1.5e-3
"""Scores are not scaled down, so tiny random models of the family amplify rounding: transformers' own logits in float32
are up to 9e-5 of the largest away from those in float64, and numpy's with the AVX-512 products of OpenBLAS 8e-4.
Trained models do not: they are held to a mean KL of 1e-6 (tests/test_oracle_families.py)."""

SLIDING, FULL = "sliding_attention", "full_attention"

DENSE: dict[str, Any] = {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "vocab_size": 272,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "global_head_dim": 20,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 3,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "sliding_window": 9,
    "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL],
    "rope_parameters": {
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1000000},
        SLIDING: {"rope_type": "default", "rope_theta": 10000},
    },
    "final_logit_softcapping": 25.0,
    "hidden_size_per_layer_input": 0,
    "tie_word_embeddings": False,
}
SMALL: dict[str, Any] = {
    key: value
    for key, value in {
        **DENSE,
        "num_key_value_heads": 1,
        "num_global_key_value_heads": None,
        "attention_k_eq_v": False,
        "num_hidden_layers": 6,
        "layer_types": [SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL],
        "hidden_size_per_layer_input": 14,
        "vocab_size_per_layer_input": 272,
        "num_kv_shared_layers": 3,
        "use_double_wide_mlp": True,
        "final_logit_softcapping": None,
        "tie_word_embeddings": True,
    }.items()
    if value is not None
}
MOE: dict[str, Any] = {
    **{key: value for key, value in DENSE.items() if key not in ("global_head_dim", "num_global_key_value_heads")},
    "attention_k_eq_v": False,
    "per_layer_config": {str(i): {"head_dim": 20, "num_key_value_heads": 3} for i in (1, 4)},
    "enable_moe_block": True,
    "num_experts": 7,
    "top_k_experts": 3,
    "moe_intermediate_size": 28,
    "tie_word_embeddings": True,
}
TOWER: dict[str, Any] = {
    **DENSE,
    "architectures": ["Gemma4ForConditionalGeneration"],
    "preprocessor_config": {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.25, 0.5, 0.75]},
    "vision_config": {
        "model_type": "gemma4_vision",
        "hidden_size": 24,
        "intermediate_size": 44,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
        "patch_size": 4,
        "pooling_kernel_size": 3,
        "position_embedding_size": 10240,
        "use_clipped_linears": False,
        "standardize": False,
    },
}
CLIPPED: dict[str, Any] = {
    **TOWER,
    "vision_config": {**TOWER["vision_config"], "use_clipped_linears": True, "standardize": True},
}
SCALARS = tuple(f"{OWN}{hf}.{bound}" for _, hf, _ in MATRICES for bound in BOUNDS)
BOUND_RULES = tuple(f"v.blk.{{i}}.{name}.{bound}" for name, _, _ in MATRICES for bound in BOUNDS)
TABLES = ("embed_tokens.weight", "lm_head.weight", "embed_tokens_per_layer.weight")
KEYS_AS_VALUES = ("blk.1.attn_v.weight", "blk.4.attn_v.weight")
NEVER_USED = tuple(f"blk.{i}.{name}.weight" for i in (3, 4, 5) for name in ("attn_k", "attn_k_norm", "attn_v"))
"""Keys and values of blocks that use those of earlier ones: files may have them."""

READ_ELSEWHERE = ("tie_word_embeddings",)
"""Keys that the checkpoint's tensors decide, whatever the config says."""


def same(parts: Mapping[str, Any], hparams: HParams) -> Any:
    """A table of which no row was left out."""
    (array,) = parts.values()
    return array


def scalar(parts: Mapping[str, Any], hparams: HParams) -> Any:
    """The one value of a vector."""
    return same(parts, hparams).reshape(())


def patches(parts: Mapping[str, Any], hparams: HParams) -> Any:
    """Rows of (y, x, colour)."""
    array = parts["v.patch_embd.weight"]
    return array.transpose(0, 2, 3, 1).reshape(len(array), -1)


class TestDenseArch(ArchContract):
    """Full attention uses its keys as values; a separate output head."""

    plugin, arch, config = "gemma4", "gemma4", DENSE
    harmless = READ_ELSEWHERE
    inverses = dict.fromkeys(TABLES, same)
    leave_out = KEYS_AS_VALUES


class TestSmallArch(ArchContract):
    """Per-layer inputs; the last three blocks share the keys and values of earlier ones and have wider FFNs."""

    plugin, arch, config = "gemma4", "gemma4", SMALL
    harmless = READ_ELSEWHERE
    inverses = dict.fromkeys(TABLES, same)


class TestMoEArch(ArchContract):
    """Experts beside the dense FFN, and the newer spelling of what differs by block."""

    plugin, arch, config = "gemma4", "gemma4", MOE
    harmless = READ_ELSEWHERE
    inverses = dict.fromkeys(TABLES, same)


class TestProjector(ProjectorContract):
    """A tower of two blocks."""

    plugin, arch, config = "gemma4", "gemma4", TOWER
    shapes = {"vision_tower.patch_embedder.input_proj.weight": ("n_embd", 48)}  # noqa: RUF012
    leave_out = ("v.std_bias", "v.std_scale", *BOUND_RULES)
    inverses = {"vision_tower.patch_embedder.input_proj.weight": patches}  # noqa: RUF012


class TestClippedProjector(TestProjector):
    """The same with bounds for what goes into matrices and comes out, and a standardized output."""

    config = CLIPPED
    shapes = {**TestProjector.shapes, **dict.fromkeys(SCALARS, ())}  # noqa: RUF012
    leave_out = ()
    inverses = {**TestProjector.inverses, **dict.fromkeys(SCALARS, scalar)}  # noqa: RUF012


class TestTokenizer(TokenizerContract):
    """One tokenizer serves all sizes."""

    plugin, arch = "gemma4", "gemma4"


class TestDenseGraph(GraphContract):
    """The forward pass of `TestDenseArch`."""

    plugin, arch, config = "gemma4", "gemma4", DENSE
    leave_out = KEYS_AS_VALUES
    tolerance, reference = TOLERANCE, REFERENCE / "dense.npz"


class TestSmallGraph(GraphContract):
    """The forward pass of `TestSmallArch`, from a file without the keys and values that nothing uses."""

    plugin, arch, config = "gemma4", "gemma4", SMALL
    leave_out = NEVER_USED
    tolerance, reference = TOLERANCE, REFERENCE / "small.npz"


class TestMoEGraph(GraphContract):
    """The forward pass of `TestMoEArch`."""

    plugin, arch, config = "gemma4", "gemma4", MOE
    tolerance, reference = TOLERANCE, REFERENCE / "moe.npz"


class TestCalls(CallsContract):
    """Texts in quotes of their own."""

    plugin, name = "gemma4", "gemma4"
    examples = (
        ('<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>', [("get_weather", {"city": "Paris"})]),
    )

    def written(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """As the chat template does."""
        return "".join(f"<|tool_call>call:{name}{value_text(values)}<tool_call|>" for name, values in calls)


def value_text(value: Any) -> str:
    """A value as the chat template writes it."""
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{value_text(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(value_text, value)) + "]"
    return json.dumps(value)
