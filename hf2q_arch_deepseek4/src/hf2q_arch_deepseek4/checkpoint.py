"""From ``config.json`` to the fields of `DeepSeek4HParams`, in the published form and in the one transformers saves.

Sources: transformers, models/deepseek_v4/configuration_deepseek_v4.py (defaults, old and new keys); llama.cpp,
conversion/deepseek.py `DeepseekV4Model` (what is read).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf2q.config import HARMLESS, MAX_EXPERTS, MAX_LAYERS, Config, overlaid
from hf2q.errors import ConfigError
from hf2q_arch_deepseek4.families import MAX_SINKHORN, RATIOS

LAYER_TYPES = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}
"""transformers' names of attention, by compression ratio."""
IGNORED: Mapping[str, str] = {
    **HARMLESS,
    "expert_dtype": "the dtype stored in the files counts",
    "num_nextn_predict_layers": "MTP blocks are a file of their own",
    "output_router_logits": "training only",
    "router_aux_loss_coef": "training only",
    "router_jitter_noise": "training only",
}
"""Config keys that change no weight and no GGUF key, with the reason."""


def read_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `DeepSeek4HParams`, `yarn` as a dict of its fields or None; see its `from_config`."""
    c = Config(overlaid(config))
    n_layer, d_head = c.size("num_hidden_layers", most=MAX_LAYERS), c.size("head_dim", 512)
    _check_fixed(c)
    fields = {
        "n_layer": n_layer,
        "n_vocab": c.size("vocab_size", 129280),
        "n_ctx": c.size("max_position_embeddings", 1048576),
        "n_embd": c.size("hidden_size", 4096),
        "n_head": c.size("num_attention_heads", 64),
        "d_head": d_head,
        **_rope(c, d_head),
        "rms_eps": c.number("rms_norm_eps", 1e-6),
        "n_expert": c.size("n_routed_experts", 256, most=MAX_EXPERTS),
        "n_expert_used": c.size("num_experts_per_tok", 6),
        "n_expert_shared": c.size("n_shared_experts", 1),
        "n_ff_expert": c.size("moe_intermediate_size", 2048),
        "expert_scale": c.number("routed_scaling_factor", 1.5),
        "expert_norm": c.flag("norm_topk_prob", True),
        "swiglu_limit": c.number("swiglu_limit", 10.0),
        "q_rank": c.size("q_lora_rank", 1024),
        "o_groups": c.size("o_groups", 8),
        "o_rank": c.size("o_lora_rank", 1024),
        "window": c.size("sliding_window", 128),
        "n_index_head": c.size("index_n_heads", 64),
        "d_index": c.size("index_head_dim", 128),
        "index_top_k": c.size("index_topk", 512),
        "compress_ratios": _ratios(c, n_layer),
        "n_streams": c.size("hc_mult", 4),
        "sinkhorn": c.size("hc_sinkhorn_iters", 20, most=MAX_SINKHORN),
        "hc_eps": c.number("hc_eps", 1e-6),
        "n_hash": _hash_layers(c, n_layer),
    }
    vision = {key: "vision" for key in config if key.startswith("vision_")}
    c.done({**IGNORED, **vision})
    return fields


def _check_fixed(c: Config) -> None:
    """What the family computes in one way only (transformers, modeling_deepseek_v4.py)."""
    c.expect("scoring_func", ("sqrtsoftplus",), "the family's router scores by the root of softplus")
    c.expect("topk_method", ("noaux_tc",), "the family's router has a bias for choosing")
    c.expect("hidden_act", ("silu",), "the family's FFN is SwiGLU")
    c.expect("attention_bias", (False,), "attention biases have no place in this family's GGUF")
    c.expect("mlp_bias", (False,), "FFN biases have no place in this family's GGUF")
    c.expect("tie_word_embeddings", (False,), "the family's head is its own")
    c.expect("num_key_value_heads", (1,), "all heads of the family share one key, which is the value as well")


def _ratios(c: Config, n_layer: int) -> tuple[int, ...]:
    """As published, or from transformers' names; both must agree."""
    listed, kinds = c.raw("compress_ratios"), c.raw("layer_types")
    for key, kind in (("compress_rate_csa", 4), ("compress_rate_hca", 128)):
        c.expect(key, (kind,), "no other ratio is known")
    rates = c.section("compress_rates")
    if rates is not None:
        for name, ratio in LAYER_TYPES.items():
            if ratio:
                rates.expect(name, (ratio,), "no other ratio is known")
        rates.done({})
    if listed is not None and not _whole(listed):
        raise c.wrong("compress_ratios", f"a list of {', '.join(map(str, RATIOS))}")
    if kinds is None:
        if listed is None:
            raise ConfigError("config.json: neither compress_ratios nor layer_types says how each block attends")
        return tuple(listed)
    if not isinstance(kinds, list) or not all(isinstance(kind, str) and kind in LAYER_TYPES for kind in kinds):
        raise c.wrong("layer_types", f"a list of {', '.join(LAYER_TYPES)}")
    derived = tuple(LAYER_TYPES[kind] for kind in kinds)
    if listed is not None and tuple(listed)[:n_layer] != derived[:n_layer]:
        raise ConfigError("config.json: compress_ratios and layer_types contradict each other")
    return derived if listed is None else tuple(listed)


def _hash_layers(c: Config, n_layer: int) -> int:
    """As published, or the leading blocks that transformers calls ``hash_moe``; both must agree."""
    kinds = c.raw("mlp_layer_types")
    stated = c.size("num_hash_layers", least=0) if kinds is None or "num_hash_layers" in c else None
    if kinds is None and stated is not None:
        return stated
    names = ("hash_moe", "moe")
    if not isinstance(kinds, list) or not all(isinstance(kind, str) and kind in names for kind in kinds):
        raise c.wrong("mlp_layer_types", "a list of hash_moe and moe")
    count = kinds.count("hash_moe")
    if len(kinds) != n_layer or "hash_moe" in kinds[count:]:
        raise c.wrong("mlp_layer_types", f"hash_moe for the first blocks and moe for the others, {n_layer} in all")
    if stated not in (None, count):
        raise ConfigError(f"config.json: num_hash_layers is {stated}, mlp_layer_types has {count} hash_moe")
    return count


def _rope(c: Config, d_head: int) -> dict[str, Any]:
    base, compressed = c.number("rope_theta", 10000.0), c.number("compress_rope_theta", 160000.0)
    share = c.number("partial_rotary_factor", 0.125)
    d_rope = c.size("qk_rope_head_dim", int(d_head * share))
    if "partial_rotary_factor" in c and int(d_head * share) != d_rope:
        raise ConfigError(f"config.json: qk_rope_head_dim is {d_rope}, partial_rotary_factor {share} of {d_head}")
    section, legacy = c.section("rope_parameters"), c.section("rope_scaling")
    if section is not None and legacy is not None:
        raise ConfigError("config.json has both rope_parameters and rope_scaling, expected one of them")
    section = section or legacy
    scaling = section
    if section is not None and "main" in section:
        main, scaling = section.section("main"), section.section("compress")
        if main is None or scaling is None:
            raise c.wrong("rope_parameters", "main and compress, or the parameters of YaRN")
        main.expect("rope_type", ("default",), "blocks with a sliding window alone are not stretched")
        _check_same(main, base, d_rope, d_head)
        main.done({"type": "an older spelling of rope_type"})
        section.done({})
        base_of_scaling = compressed
    else:
        base_of_scaling = base
    yarn = None
    if scaling is not None:
        _check_same(scaling, base_of_scaling, d_rope, d_head)
        yarn = _yarn(scaling)
        scaling.done({"type": "an older spelling of rope_type"})
    return {"d_rope": d_rope, "rope_base": base, "rope_base_compressed": compressed, "yarn": yarn}


def _check_same(section: Config, base: float, d_rope: int, d_head: int) -> None:
    """Values that a section repeats."""
    if section.number("rope_theta", base) != base:
        raise section.wrong("rope_theta", f"{base}, as config.json has it outside")
    share = section.number("partial_rotary_factor", d_rope / d_head)
    if int(d_head * share) != d_rope:
        raise section.wrong("partial_rotary_factor", f"{d_rope} of {d_head}")


def _yarn(section: Config) -> dict[str, Any] | None:
    key = "rope_type" if "rope_type" in section else "type"
    kind = section.expect(key, ("default", "yarn"), "no other RoPE is known for this family")
    # the family never scales by YaRN's own factor, and loaders know that
    section.expect("attention_factor", (1.0, 1), "the family does not scale attention")
    if kind in (None, "default"):
        return None
    return {
        "factor": section.number("factor"),
        "original": section.size("original_max_position_embeddings"),
        "beta_fast": section.number("beta_fast") if section.raw("beta_fast") is not None else None,
        "beta_slow": section.number("beta_slow") if section.raw("beta_slow") is not None else None,
    }


def _whole(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value in RATIOS for value in values)
