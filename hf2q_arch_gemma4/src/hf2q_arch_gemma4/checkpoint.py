"""From ``config.json`` and the list of tensors to the fields of `Gemma4HParams`.

Sources: transformers 5.17, models/gemma4/configuration_gemma4.py (defaults, and what is derived from what);
llama.cpp, conversion/base.py `TextModel` and conversion/gemma.py `Gemma3Model`, `Gemma4Model` (what is read).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hf2q.config import HARMLESS, MAX_EXPERTS, MAX_LAYERS, Config, overlaid
from hf2q.errors import ConfigError, TensorMismatchError, listing
from hf2q.types import TensorInfo
from hf2q_arch_gemma4.families import DRAFTERS, FULL, SLIDING, UNIFIED, UNIFIED_TYPES

TOKENIZER, GENERATION = "tokenizer.json", "generation_config.json"
"""Files beside config.json that are read as well, see `hf2q.convert.sidefiles`."""

IGNORED: Mapping[str, str] = {
    **HARMLESS,
    "vision_config": "the vision tower is a file of its own",
    "audio_config": "the audio tower is no part of the text model",
    **dict.fromkeys(
        (
            "image_token_id",
            "video_token_id",
            "audio_token_id",
            "boi_token_id",
            "eoi_token_id",
            "boa_token_id",
            "eoa_token_id",
            "eoa_token_index",
            "boi_token_index",
            "eoi_token_index",
            "vision_soft_tokens_per_image",
            "mm_tokens_per_image",
        ),
        "vision or audio",
    ),
    GENERATION: "only a unified model's says something here",
    "global_head_dim": "per_layer_config says it, where that is given",
    "num_global_key_value_heads": "counts only with attention_k_eq_v, or per_layer_config says it",
    "moe_intermediate_size": "counts only with enable_moe_block",
    "vocab_size_per_layer_input": "counts only with hidden_size_per_layer_input",
    "serialize_explicit_per_layer_config": "how transformers saves it",
    "allow_global_per_layer_attribute_access": "how transformers runs it",
}
"""Config keys that change no weight and no GGUF key, with the reason."""

PATTERN = 6
"""Without layer_types, every sixth block has full attention."""


def read_config(config: Mapping[str, Any], tensors: Sequence[TensorInfo]) -> dict[str, Any]:
    """The fields of `Gemma4HParams`; see its `from_config`."""
    c = Config(overlaid(config))
    classes = c.raw("architectures") or config.get("architectures") or ()
    _refuse_drafters(classes)
    # a config.json that names no class has been given the first of the family's
    unified = any(name in UNIFIED for name in classes) or c.raw("model_type") in UNIFIED_TYPES
    n_layer = c.size("num_hidden_layers", 30, most=MAX_LAYERS)
    sliding = _sliding(c, n_layer)
    n_shared = c.size("num_kv_shared_layers", 0, least=0)
    k_eq_v = c.flag("attention_k_eq_v", False)
    head_dim, n_head_kv = c.size("head_dim", 256), c.size("num_key_value_heads", 4)
    head_dim_full, n_head_kv_full = _full_attention(c, sliding, head_dim, n_head_kv, k_eq_v)
    direction = c.expect("use_bidirectional_attention", (None, "vision", "all"), "no other attention is known")
    window = c.size("sliding_window", 1024 if unified else 512)
    rows, n_vocab = _tokens(c)
    # null means none, though without the key there are 256
    n_ple = 0 if unified else 256
    n_ple = (
        0
        if c.raw("hidden_size_per_layer_input", n_ple) is None
        else c.size("hidden_size_per_layer_input", n_ple, least=0)
    )
    if n_ple and c.size("vocab_size_per_layer_input", 262144) != rows:
        raise c.wrong("vocab_size_per_layer_input", f"vocab_size, {rows}: GGUF has one vocabulary")
    _check_fixed(c)
    _check_tensors(config, c, tensors, rows, [i for i in range(n_layer - n_shared) if not sliding[i]], k_eq_v)
    softcap = c.raw("final_logit_softcapping")
    fields = {
        "n_layer": n_layer,
        "n_vocab": n_vocab,
        "n_ctx": c.size("max_position_embeddings", 262144 if unified else 131072),
        "n_embd": c.size("hidden_size", 2304),
        "n_ff": c.size("intermediate_size", 9216),
        "double_wide": c.flag("use_double_wide_mlp", False),
        "n_head": c.size("num_attention_heads", 8),
        "n_head_kv_full": n_head_kv_full,
        "n_head_kv_swa": n_head_kv,
        "head_dim_full": head_dim_full,
        "head_dim_swa": head_dim,
        "sliding": sliding,
        # with attention both ways transformers halves the window and doubles it again when it saves, which rounds
        "n_window": window // 2 * 2 if direction == "all" else window,
        "n_shared_kv": n_shared,
        "n_ple": n_ple,
        "rms_eps": c.number("rms_norm_eps", 1e-6),
        "softcap": None if softcap in (None, 0) else c.number("final_logit_softcapping"),
        "causal": direction != "all",
        "suppressed": _suppressed(c) if unified else None,
        **_rope(c, head_dim_full),
        **_experts(c),
    }
    c.done(IGNORED)
    return fields


def _refuse_drafters(classes: Sequence[str]) -> None:
    for name in classes:
        if name in DRAFTERS:
            raise ConfigError(
                f"config.json: {name} is a drafter, which has no keys and values of its own and runs beside a Gemma 4 "
                "model; it is not converted",
                hint="convert the model that it drafts for",
            )


def _tokens(c: Config) -> tuple[int, int]:
    """Number of rows of the embeddings, and of those that belong to a token.

    With rows to spare the converter's count of tokens goes wrong where added tokens are in the vocabulary as well, and
    no reader takes its file; here the rows without a token are left out.
    """
    rows = c.size("vocab_size", 262144)
    tokenizer = c.raw(TOKENIZER)
    n_tokens = rows if tokenizer is None else tokenizer["n_tokens"]
    if n_tokens > rows:
        raise ConfigError(
            f"tokenizer.json has {n_tokens} tokens, the embeddings have {rows} rows (vocab_size in config.json)",
            hint="tokens were added without resizing the embeddings",
        )
    return rows, n_tokens


def _suppressed(c: Config) -> tuple[int, ...] | None:
    """Tokens that a unified model must not generate. Source: conversion/gemma.py, `Gemma4UnifiedModel`."""
    generation = c.raw(GENERATION)
    tokens = generation.get("suppress_tokens") if generation is not None else None
    if tokens is None:
        return None
    if not isinstance(tokens, list) or not tokens or any(type(t) is not int or not 0 <= t < 1 << 31 for t in tokens):
        raise ConfigError(f"{GENERATION}: suppress_tokens is {tokens!r:.60}, expected a list of token ids")
    return tuple(tokens)


def _sliding(c: Config, n_layer: int) -> tuple[bool, ...]:
    kinds = c.raw("layer_types")
    if kinds is None:
        kinds = [SLIDING if (i + 1) % PATTERN else FULL for i in range(n_layer)]
    elif not isinstance(kinds, list) or any(kind not in (SLIDING, FULL) for kind in kinds):
        raise c.wrong("layer_types", f"a list of {SLIDING!r} and {FULL!r}")
    if len(kinds) != n_layer:
        raise ConfigError(f"config.json: layer_types has {len(kinds)} entries, num_hidden_layers is {n_layer}")
    # transformers makes the last block one of full attention, whatever the config says
    return (*(kind == SLIDING for kind in kinds[:-1]), False)


def _full_attention(c: Config, sliding: Sequence[bool], head_dim: int, n_head_kv: int, k_eq_v: bool) -> tuple[int, int]:
    """Size of a head and number of key/value heads in blocks of full attention.

    Two spellings: ``global_*`` keys, or ``per_layer_config`` with what a block has different from the others.
    """
    if "per_layer_config" not in c:
        heads = c.raw("num_global_key_value_heads") if k_eq_v else None
        return (
            c.size("global_head_dim", 512),
            n_head_kv if heads is None else c.size("num_global_key_value_heads"),
        )
    section = c.section("per_layer_config") or Config({}, "config.json: per_layer_config")
    found = set()
    keys = {int(key): key for key in _indices(c, len(sliding))}
    for i, swa in enumerate(sliding):
        layer = section.section(keys[i]) if i in keys else None
        layer = layer or Config({}, f"config.json: per_layer_config: {i}")
        own = layer.size("head_dim", head_dim), layer.size("num_key_value_heads", n_head_kv)
        layer.expect("skip", ([],), "blocks are whole in this family")
        layer.done({})
        if swa and own != (head_dim, n_head_kv):
            raise ConfigError(
                f"config.json: per_layer_config gives block {i}, whose attention is sliding, heads of its own; GGUF "
                "has one size for all blocks of a kind"
            )
        if not swa:
            found.add(own)
    if len(found) != 1:
        raise ConfigError(
            f"config.json: per_layer_config gives blocks of full attention different heads, {sorted(found)} as (size, "
            "key/value heads); GGUF has one size for all blocks of a kind"
        )
    section.done({})
    return found.pop()


def _indices(c: Config, n_layer: int) -> list[str]:
    """The keys of per_layer_config, which are numbers of blocks, maybe with zeros in front."""
    value = c.raw("per_layer_config")
    names = list(value) if isinstance(value, Mapping) else []
    if any(not re.fullmatch("[0-9]{1,9}", name) or int(name) >= n_layer for name in names):
        raise c.wrong("per_layer_config", f"numbers of blocks below {n_layer} as its keys")
    if len({int(name) for name in names}) != len(names):
        raise c.wrong("per_layer_config", "every block once")
    return names


def _check_fixed(c: Config) -> None:
    """What the family computes in one way only (transformers, modeling_gemma4.py): other values are not understood."""
    c.expect("attention_bias", (False,), "attention biases have no place in this family's GGUF")
    c.expect("hidden_activation", ("gelu_pytorch_tanh",), "the family's FFN is gated by the tanh form of GELU")
    c.expect("hidden_act", ("gelu_pytorch_tanh",), "the family's FFN is gated by the tanh form of GELU")
    c.expect("attn_logit_softcapping", (None,), "attention scores are not bounded in this family")
    c.expect("is_causal", (True,), "use_bidirectional_attention says it")


def _check_tensors(
    config: Mapping[str, Any],
    c: Config,
    tensors: Sequence[TensorInfo],
    rows: int,
    own_full: Sequence[int],
    k_eq_v: bool,
) -> None:
    """What the tensors must agree with the config about, apart from shapes: output head, embeddings, values."""
    names = [tensor.name for tensor in tensors]
    # multimodal classes go by the root's flag, text classes by the text config's: either will do
    tied = c.flag("tie_word_embeddings", True) or config.get("tie_word_embeddings") is True
    if not tied and not any(name == "lm_head.weight" or name.endswith(".lm_head.weight") for name in names):
        raise TensorMismatchError(
            "the checkpoint has no lm_head.weight, and config.json does not say that the embeddings are tied",
            hint='the checkpoint is incomplete; if it is a tied model, set "tie_word_embeddings": true in config.json',
        )
    for tensor in tensors:
        if re.search(r"(?:^|\.)embed_tokens(?:_per_layer)?\.weight$", tensor.name) and tensor.shape[:1] not in (
            (),
            (rows,),
        ):
            raise TensorMismatchError(
                f"{tensor.name} has {tensor.shape[0]} rows, vocab_size is {rows}",
                hint="if the vocabulary was resized, set vocab_size in config.json (in text_config, if there is one) "
                "and vocab_size_per_layer_input to the rows; else the weights do not belong to it",
            )
    # the blocks of a tower have projections of the same names
    names = [name for name in names if "_tower." not in name]
    blocks = {int(found[1]) for name in names if (found := re.search(r"layers\.(\d{1,9})\.self_attn\.v_proj\.", name))}
    known = {int(found[1]) for name in names if (found := re.search(r"layers\.(\d{1,9})\.self_attn\.k_proj\.", name))}
    wrong = [str(i) for i in own_full if i in known and (i in blocks) == k_eq_v]
    if wrong:
        raise TensorMismatchError(
            f"config.json: attention_k_eq_v is {str(k_eq_v).lower()}, but the checkpoint "
            f"{'has a' if k_eq_v else 'lacks the'} v_proj of block {listing(wrong)}, which has full attention",
            hint="config.json and the weights do not belong together, or the checkpoint is damaged",
        )


def _rope(c: Config, head_dim_full: int) -> dict[str, Any]:
    both = c.section("rope_parameters")
    if both is None:
        return {"rope_base_full": 1e6, "rope_base_swa": 1e4, "rotated_pairs": int(head_dim_full * 0.25 / 2)}
    full, swa = both.section(FULL), both.section(SLIDING)
    if full is None or swa is None:
        raise ConfigError(f"config.json: rope_parameters lacks {FULL if full is None else SLIDING}")
    full.expect("rope_type", ("proportional",), "no other rotation of full attention is known", default=None)
    swa.expect("rope_type", ("default",), "no other rotation of sliding attention is known")
    for section in (full, swa):
        section.expect("factor", (None, 1, 1.0), "scaled rotations are not known for this family")
    if full.raw("rope_type") is None:
        raise full.wrong("rope_type", "'proportional'")
    factor = full.number("partial_rotary_factor")
    swa.expect("partial_rotary_factor", (None, 1, 1.0), "sliding attention rotates all of a head")
    fields = {
        "rope_base_full": full.number("rope_theta"),
        "rope_base_swa": swa.number("rope_theta"),
        "rotated_pairs": int(head_dim_full * factor / 2),
    }
    for section in (full, swa, both):
        section.done({})
    return fields


def _experts(c: Config) -> dict[str, Any]:
    if not c.flag("enable_moe_block", False):
        c.expect("num_experts", (None,), "experts are there only with enable_moe_block")
        c.expect("top_k_experts", (None,), "experts are there only with enable_moe_block")
        c.expect("expert_intermediate_size", (None,), "experts are there only with enable_moe_block")
        return {}
    # the older word for moe_intermediate_size
    older = c.raw("expert_intermediate_size")
    width = c.size("moe_intermediate_size") if older is None else c.size("expert_intermediate_size")
    if c.raw("moe_intermediate_size") not in (None, width):
        raise ConfigError("config.json has both expert_intermediate_size and moe_intermediate_size, and they differ")
    return {
        "n_expert": c.size("num_experts", most=MAX_EXPERTS),
        "n_expert_used": c.size("top_k_experts"),
        "n_ff_expert": width,
    }
