"""From ``config.json`` and a list of tensor names to the fields of `Qwen3VLHParams`.

Sources: transformers 5.17, models/qwen3_vl{,_moe}/configuration_*.py (defaults) and modeling_rope_utils.py
(`standardize_rope_params`); llama.cpp, conversion/base.py `TextModel`, conversion/qwen.py and conversion/qwen3vl.py
(what is read).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf2q.config import HARMLESS, MAX_EXPERTS, MAX_LAYERS, Config, overlaid
from hf2q.errors import ConfigError, TensorMismatchError
from hf2q.types import MetadataField, TensorInfo
from hf2q_arch_qwen3vl.embedders import read_pooling, refuse_reranker
from hf2q_arch_qwen3vl.families import CARD, DENSE, MAX_TAPS, MODULES, MOE, MOE_CLASSES, taps_by_default

IGNORED: Mapping[str, str] = {
    **HARMLESS,
    "image_token_id": "vision",
    "video_token_id": "vision",
    "vision_start_token_id": "vision",
    "vision_end_token_id": "vision",
    "output_router_logits": "training only",
    "router_aux_loss_coef": "training only",
    "sliding_window": "counts only with use_sliding_window, which is refused",
    "max_window_layers": "counts only with use_sliding_window, which is refused",
    MODULES: "a file of its own; read for the dense model",
    CARD: "a file of its own; read for the dense model",
}
"""Config keys that change no weight and no GGUF key, with the reason."""


def read_config(config: Mapping[str, Any], tensors: Sequence[TensorInfo]) -> dict[str, Any]:
    """The fields of `Qwen3VLHParams`; see its `from_config`."""
    c = Config(overlaid(config))
    # the text config may carry a null of its own
    moe = any(name in MOE_CLASSES for name in c.raw("architectures") or config.get("architectures") or ())
    arch = MOE if moe else DENSE
    if not moe:
        refuse_reranker(config)
    n_embd, n_head = c.size("hidden_size", 2048 if moe else 4096), c.size("num_attention_heads", 16 if moe else 32)
    head_dim = _head_dim(c, n_embd, n_head, moe)
    _check_head(config, c, [tensor.name for tensor in tensors])
    _check_fixed(c)
    fields = {
        "arch": arch,
        "n_layer": c.size("num_hidden_layers", 24 if moe else 32, most=MAX_LAYERS),
        "n_vocab": c.size("vocab_size", 151936),
        "n_ctx": c.size("max_position_embeddings", 128000),
        "n_embd": n_embd,
        "n_ff": c.size("intermediate_size", 5632 if moe else 22016),
        "n_head": n_head,
        "n_head_kv": _heads_kv(c, n_head, 16 if moe else 32),
        "head_dim": head_dim,
        "rms_eps": c.number("rms_norm_eps", 1e-6),
        "n_deepstack": _deepstack(c, config),
        "pooling": None if moe else read_pooling(config),
        **_rope(c, arch),
    }
    if moe:
        experts = "num_local_experts" if "num_local_experts" in c else "num_experts"
        fields |= {
            "n_expert": c.size(experts, 60, most=MAX_EXPERTS),
            "n_expert_used": c.size("num_experts_per_tok", 4),
            "n_ff_expert": c.size("moe_intermediate_size", 1408),
        }
        fields["transposed"] = _transposed(tensors, n_embd, fields["n_ff_expert"])
    c.done(IGNORED)
    return fields


def _transposed(tensors: Sequence[TensorInfo], n_embd: int, n_ff: int) -> bool:
    """Whether packed experts are stored as published. Shapes tell: at most one of the two is square.

    Source: transformers 5.17, conversion_mapping.py, ``qwen3_vl_moe``: what has the shape of its own parameter is not
    transposed, neither when loading nor when saving.
    """
    plain = {"gate_up_proj": (2 * n_ff, n_embd), "down_proj": (n_embd, n_ff)}
    for tensor in tensors:
        own = tensor.name.removesuffix(".weight").rpartition(".experts.")[2]
        if own in plain and plain[own][0] != plain[own][1] and tensor.shape[1:] == plain[own]:
            return False
    return True


def _head_dim(c: Config, n_embd: int, n_head: int, moe: bool) -> int:
    if moe and c.raw("head_dim") is None:
        return n_embd // n_head
    return c.size("head_dim", 128)


def _heads_kv(c: Config, n_head: int, default: int) -> int:
    if "num_key_value_heads" in c and c.raw("num_key_value_heads") is None:
        return n_head
    return c.size("num_key_value_heads", default)


def _deepstack(c: Config, config: Mapping[str, Any]) -> int:
    """How many blocks of the tower hand their own features to the text model."""
    vision = c.section("vision_config")
    taps = list(taps_by_default(config.get("model_type")))
    if vision is not None:
        taps = vision.raw("deepstack_visual_indexes", taps)
        if not isinstance(taps, list) or len(taps) > MAX_TAPS:
            raise vision.wrong("deepstack_visual_indexes", f"a list of at most {MAX_TAPS} block numbers")
    return len(taps)


def _check_head(config: Mapping[str, Any], c: Config, names: Sequence[str]) -> None:
    """A head of its own is written whenever there is one; without one the model must say that it is tied.

    Either the root's flag or the text config's will do.
    """
    tied = c.flag("tie_word_embeddings", False) or config.get("tie_word_embeddings") is True
    if not tied and not any(name == "lm_head.weight" or name.endswith(".lm_head.weight") for name in names):
        raise TensorMismatchError(
            "the checkpoint has no lm_head.weight, and config.json does not say that the embeddings are tied",
            hint='the checkpoint is incomplete; if it is a tied model, add "tie_word_embeddings": true to config.json',
        )


def _check_fixed(c: Config) -> None:
    """What the family computes in one way only (transformers, modeling_qwen3_vl.py): nothing else is understood."""
    c.expect("attention_bias", (False,), "attention biases have no place in this family's GGUF")
    c.expect("hidden_act", ("silu",), "the family's FFN is SwiGLU")
    c.expect("mlp_only_layers", ([], None), "every block has the same kind of FFN")
    c.expect("decoder_sparse_step", (1,), "every block has the same kind of FFN")
    c.expect("norm_topk_prob", (True,), "the family's router always normalises the chosen weights")
    c.expect("is_causal", (True,), "the family is causal")
    c.expect("use_sliding_window", (False,), "the family has no sliding windows")


def _rope(c: Config, arch: str) -> dict[str, Any]:
    rope, legacy = c.section("rope_parameters"), c.section("rope_scaling")
    if rope is not None and legacy is not None and c.raw("rope_parameters") != c.raw("rope_scaling"):
        raise ConfigError("config.json has both rope_parameters and rope_scaling, and they differ")
    # a key beside the section is the default for the one in it
    theta = c.number("rope_theta", 500000.0)
    section = rope or legacy or Config({}, "config.json: rope_parameters")
    theta = section.number("rope_theta", theta)
    for place in (c, section):
        place.expect("partial_rotary_factor", (1, 1.0), "the family rotates whole heads")
    section.expect("mrope_interleaved", (True,), "the family's M-RoPE is interleaved")
    sections = section.raw("mrope_section")
    if (
        not isinstance(sections, list)
        or not 1 <= len(sections) <= 4
        or any(isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 1 << 31 for size in sections)
    ):
        raise section.wrong("mrope_section", "a list of up to 4 integers, without which no runtime loads the file")
    scaling = _rope_scaling(section, arch)
    section.done({"type": "an older spelling of rope_type"})
    return {"rope_sections": (*sections, 0, 0, 0)[:4], "rope_base": theta, "rope_scaling": scaling}


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
