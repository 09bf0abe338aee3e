"""From ``config.json`` and a list of tensor names to the fields of `Qwen35HParams`.

Sources: transformers 5.17, models/qwen3_5{,_moe}/configuration_*.py (defaults) and modeling_rope_utils.py
(`standardize_rope_params`); llama.cpp, conversion/base.py `TextModel` and conversion/qwen.py `_QwenMtpMixin`,
`Qwen3NextModel` (what is read).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hf2q.config import HARMLESS, MAX_EXPERTS, MAX_LAYERS, Config, overlaid
from hf2q.errors import ConfigError, TensorMismatchError
from hf2q.types import MetadataField
from hf2q_arch_qwen35.families import DENSE, FULL, LINEAR, MOE, MOE_CLASSES

DEFAULT_SECTIONS = (11, 11, 10, 0)
IGNORED: Mapping[str, str] = {
    **HARMLESS,
    "vision_config": "the vision tower is a file of its own",
    "image_token_id": "vision",
    "video_token_id": "vision",
    "vision_start_token_id": "vision",
    "vision_end_token_id": "vision",
    "language_model_only": "vision",
    "output_router_logits": "training only",
    "router_aux_loss_coef": "training only",
    "mamba_ssm_dtype": "precision of the recurrent state at run time; runtimes keep it in float32",
    "unsloth_fixed_mtp": "provenance",
    "sliding_window": "counts only with use_sliding_window, which is refused",
    "max_window_layers": "counts only with use_sliding_window, which is refused",
    "mtp_num_hidden_layers": "read unless MTP is left out",
    "mtp_use_dedicated_embeddings": "read unless MTP is left out",
}
"""Config keys that change no weight and no GGUF key, with the reason."""


def read_config(config: Mapping[str, Any], names: Sequence[str], *, mtp: bool) -> dict[str, Any]:
    """The fields of `Qwen35HParams`; see its `from_config`."""
    c = Config(overlaid(config))
    # the text config may carry a null of its own
    moe = any(name in MOE_CLASSES for name in c.raw("architectures") or config.get("architectures") or ())
    arch = MOE if moe else DENSE
    n_trunk, interval = c.size("num_hidden_layers", most=MAX_LAYERS), c.size("full_attention_interval", 4)
    recurrent = _recurrent(c, n_trunk, interval)
    n_mtp = _mtp_blocks(c, names) if mtp else 0
    head_dim = c.size("head_dim", 256)
    _check_head(config, c, names)
    _check_fixed(c)
    fields = {
        "arch": arch,
        "n_layer": n_trunk + n_mtp,
        "n_mtp": n_mtp,
        "n_vocab": c.size("vocab_size", 248320),
        "n_ctx": c.size("max_position_embeddings", 32768),
        "n_embd": c.size("hidden_size", 2048 if moe else 4096),
        "n_ff": c.size("intermediate_size", 0, least=0) if moe else c.size("intermediate_size", 12288),
        "n_head": c.size("num_attention_heads", 16),
        "n_head_kv": c.size("num_key_value_heads", 2 if moe else 4),
        "head_dim": head_dim,
        "rms_eps": c.number("rms_norm_eps", 1e-6),
        "recurrent": recurrent + (False,) * n_mtp,
        # transformers forgets the interval when it derives layer_types from it, and the converter then writes 4;
        # the kinds of all blocks are written too, and loaders go by those
        "full_attention_interval": interval if c.raw("layer_types") is not None else 4,
        "conv_kernel": c.size("linear_conv_kernel_dim", 4),
        "d_k": c.size("linear_key_head_dim", 128),
        "d_v": c.size("linear_value_head_dim", 128),
        "n_k_heads": c.size("linear_num_key_heads", 16),
        "n_v_heads": c.size("linear_num_value_heads", 32),
        **_rope(c, arch, head_dim),
    }
    if moe:
        fields |= {
            "n_expert": c.size("num_experts", 256, most=MAX_EXPERTS),
            "n_expert_used": c.size("num_experts_per_tok", 8),
            "n_ff_expert": c.size("moe_intermediate_size", 512),
            "n_ff_shared": c.size("shared_expert_intermediate_size", 512),
        }
    c.done(IGNORED)
    return fields


def _recurrent(c: Config, n_trunk: int, interval: int) -> tuple[bool, ...]:
    kinds = c.raw("layer_types")
    if kinds is None:
        return tuple((i + 1) % interval != 0 for i in range(n_trunk))
    if not isinstance(kinds, list) or any(kind not in (LINEAR, FULL) for kind in kinds):
        raise c.wrong("layer_types", f"a list of {LINEAR!r} and {FULL!r}")
    if len(kinds) != n_trunk:
        raise ConfigError(f"config.json: layer_types has {len(kinds)} entries, num_hidden_layers is {n_trunk}")
    return tuple(kind == LINEAR for kind in kinds)


def _mtp_blocks(c: Config, names: Sequence[str]) -> int:
    """How many MTP blocks the checkpoint holds; the tensors count, whatever the config says."""
    declared = c.size("mtp_num_hidden_layers", 0, least=0) if c.raw("mtp_num_hidden_layers") is not None else 0
    mine = [name for name in names if re.search(r"(?:^|\.)mtp\.", name)]
    if not mine:
        return 0
    indices = [int(found[1]) for name in mine if (found := re.search(r"(?:^|\.)mtp\.layers\.(\d{1,9})\.", name))]
    blocks = max(indices, default=0) + 1
    if blocks > MAX_LAYERS:
        raise TensorMismatchError(f"the checkpoint has a tensor of MTP block {blocks - 1}, expected fewer blocks")
    if declared and declared != blocks:
        raise TensorMismatchError(
            f"config.json: mtp_num_hidden_layers is {declared}, the checkpoint has tensors of {blocks} MTP blocks",
            hint="--no-mtp leaves them out",
        )
    dedicated = c.expect("mtp_use_dedicated_embeddings", (True, False), "a truth value", default=False)
    if dedicated and not any(name.endswith("mtp.embed_tokens.weight") for name in mine):
        raise TensorMismatchError(
            "config.json: mtp_use_dedicated_embeddings is true, but the checkpoint has no mtp.embed_tokens.weight",
            hint="--no-mtp leaves MTP out",
        )
    return blocks


def _check_head(config: Mapping[str, Any], c: Config, names: Sequence[str]) -> None:
    """A head of its own is written whenever there is one; without one the model must say that it is tied.

    Multimodal classes go by the root's flag, text classes by the text config's: either will do.
    """
    tied = c.flag("tie_word_embeddings", False) or config.get("tie_word_embeddings") is True
    if not tied and not any(name == "lm_head.weight" or name.endswith(".lm_head.weight") for name in names):
        raise TensorMismatchError(
            "the checkpoint has no lm_head.weight, and config.json does not say that the embeddings are tied",
            hint='the checkpoint is incomplete; if it is a tied model, add "tie_word_embeddings": true to config.json',
        )


def _check_fixed(c: Config) -> None:
    """What the family computes in one way only (transformers, modeling_qwen3_5.py): other values are not understood."""
    c.expect("attention_bias", (False,), "attention biases have no place in this family's GGUF")
    c.expect("hidden_act", ("silu",), "the family's FFN is SwiGLU")
    c.expect("attn_output_gate", (True,), "the family's attention is gated")
    # published Qwen 3.6 and 3.8 configs say swish; it names the DeltaNet gate, which is always silu
    c.expect("output_gate_type", ("swish", "silu"), "the DeltaNet gate is silu")
    c.expect("mlp_only_layers", ([],), "every block has the same kind of FFN")
    c.expect("decoder_sparse_step", (1,), "every block has the same kind of FFN")
    c.expect("norm_topk_prob", (True,), "the family's router always normalises the chosen weights")
    c.expect("is_causal", (True,), "the family is causal")
    c.expect("use_sliding_window", (False,), "the family has no sliding windows")


def _rope(c: Config, arch: str, head_dim: int) -> dict[str, Any]:
    rope, legacy = c.section("rope_parameters"), c.section("rope_scaling")
    if rope is not None and legacy is not None and c.raw("rope_parameters") != c.raw("rope_scaling"):
        raise ConfigError("config.json has both rope_parameters and rope_scaling, and they differ")
    # keys beside the section are defaults for those in it
    theta, factor = c.number("rope_theta", 10000.0), c.number("partial_rotary_factor", 0.25)
    section = rope or legacy or Config({}, "config.json: rope_parameters")
    theta, factor = section.number("rope_theta", theta), section.number("partial_rotary_factor", factor)
    section.expect("mrope_interleaved", (True,), "the family's M-RoPE is interleaved")
    sections = section.raw("mrope_section")
    if sections is not None and (
        not isinstance(sections, list)
        or not 1 <= len(sections) <= 4
        or any(isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 1 << 31 for size in sections)
    ):
        raise section.wrong("mrope_section", "a list of up to 4 integers")
    scaling = _rope_scaling(section, arch)
    section.done({"type": "an older spelling of rope_type"})
    return {
        "rope_dim": int(head_dim * factor),
        "rope_sections": (*sections, 0, 0, 0)[:4] if sections is not None else DEFAULT_SECTIONS,
        "sections_given": sections is not None,
        "rope_base": theta,
        "rope_scaling": scaling,
    }


def _rope_scaling(section: Config, arch: str) -> tuple[MetadataField, ...]:
    key = "rope_type" if "rope_type" in section else "type"
    # mrope is an older word for what this family always does
    kind = section.expect(key, ("default", "mrope", "linear", "yarn"), "no other RoPE is known for this family")
    if kind in (None, "default", "mrope"):
        return ()
    prefix = f"{arch}.rope.scaling"
    fields = [
        MetadataField.string(f"{prefix}.type", kind),
        MetadataField.f32(f"{prefix}.factor", section.number("factor")),
    ]
    if kind == "yarn":
        length = section.size("original_max_position_embeddings")
        fields.append(MetadataField.u32(f"{prefix}.original_context_length", length))
        for name, gguf in (
            ("extrapolation_factor", "yarn_ext_factor"),
            ("attention_factor", "yarn_attn_factor"),
            ("beta_fast", "yarn_beta_fast"),
            ("beta_slow", "yarn_beta_slow"),
        ):
            if section.raw(name) is not None:
                fields.append(MetadataField.f32(f"{prefix}.{gguf}", section.number(name)))
    return tuple(fields)
