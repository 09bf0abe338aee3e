"""From ``config.json`` to the fields of `BertHParams`, for Nomic-BERT, in either of its two spellings.

The original one is that of Nomic's own code (``n_embd``, ``n_layer``, …), the other that of transformers
(``hidden_size``, …). A file may have both, as when transformers loaded an original and saved it; it fills what it did
not know with defaults of its own then, so the two must agree.

Sources: llama.cpp, conversion/bert.py, `NomicBertModel` (what it asserts); transformers 5.17,
models/nomic_bert/configuration_nomic_bert.py (defaults of the other spelling).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf2q.config import HARMLESS, MAX_LAYERS, Config
from hf2q.errors import ConfigError
from hf2q_arch_bert.checkpoint import read_labels
from hf2q_arch_bert.families import MODULES, NOMIC
from hf2q_arch_bert.pooling import read_pooling

_DROPOUT = ("attn_pdrop", "embd_pdrop", "resid_pdrop", "hidden_dropout_prob", "attention_probs_dropout_prob")
_HOW = ("fused_bias_fc", "fused_dropout_add_ln", "use_flash_attn", "use_xentropy", "reorder_and_upcast_attn")
_HEAD = ("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj")
IGNORED: Mapping[str, str] = {
    **HARMLESS,
    **dict.fromkeys((*_DROPOUT, "classifier_dropout"), "training only"),
    **dict.fromkeys((*_HOW, "dense_seq_output"), "how Nomic's code runs it; the result is the same"),
    **dict.fromkeys((*_HEAD, "add_pooling_layer"), "of heads that an embedding model does not have"),
    "tie_word_embeddings": "the language-model head is left out",
    "pad_vocab_size_multiple": "vocab_size counts the padding",
    "rotary_scaling_factor": "counts beyond the length trained for only, where the context ends",
}
"""Config keys that change no weight and no GGUF key, with the reason."""

FIXED: tuple[tuple[str, Any, str], ...] = (
    ("activation_function", "swiglu", "the FFN of GGUF's nomic-bert is SwiGLU"),
    ("causal", False, "GGUF's nomic-bert is an encoder"),
    ("qkv_proj_bias", False, "GGUF's nomic-bert has no biases"),
    ("mlp_fc1_bias", False, "GGUF's nomic-bert has no biases"),
    ("mlp_fc2_bias", False, "GGUF's nomic-bert has no biases"),
    ("prenorm", False, "GGUF's nomic-bert has its norms at the end of each block"),
    ("rotary_emb_fraction", 1.0, "GGUF's nomic-bert rotates whole heads"),
    ("rotary_emb_interleaved", False, "GGUF's nomic-bert rotates halves of heads"),
    ("rotary_emb_scale_base", None, "GGUF's nomic-bert has plain RoPE"),
)
"""Keys of the original spelling that must be there, because the defaults of Nomic's code are others."""

CONTEXT = {(8192, 2048): 2048, (2048, 2048): 512}
"""(n_positions, max_trained_positions) of the original spelling: the context that the model was trained for."""


def read_nomic(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `BertHParams`; see its `from_config`."""
    c = Config(config)
    if c.raw("moe_every_n_layers"):
        raise ConfigError(
            f"config.json: moe_every_n_layers is {config['moe_every_n_layers']!r}: Nomic-BERT with mixtures of experts "
            "(nomic-bert-moe) is not converted, because its Unigram tokenizer is not read",
            hint="nomic-embed-text-v1.5 is a dense model of the same family",
        )
    original = any(key in c for key in ("n_embd", "n_layer", "n_head", "n_inner", "n_positions"))
    sizes = _original(c) if original else {}
    other = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings")
    if not original or any(key in c for key in other):
        sizes = _agreed(sizes, _native(c, sizes))
    head_dim = c.size("head_dim", sizes["n_embd"] // sizes["n_head"])
    if head_dim * sizes["n_head"] != sizes["n_embd"]:
        raise ConfigError(
            f"config.json: {sizes['n_head']} heads of {head_dim} for a width of {sizes['n_embd']}: the heads of GGUF's "
            "nomic-bert fill its width"
        )
    fields = {
        "arch": NOMIC,
        **sizes,
        "n_vocab": c.size("vocab_size", 30528),
        "n_token_types": c.size("type_vocab_size"),
        "pooling": read_pooling(c.raw(MODULES)),
        "labels": read_labels(c),
    }
    c.done(IGNORED)
    return fields


def _original(c: Config) -> dict[str, Any]:
    for key, value, why in FIXED:
        if key not in c:
            raise c.wrong(key, f"{value!r}: {why}")
        c.expect(key, (value,), why)
    c.expect("use_rms_norm", (False, None), "GGUF's nomic-bert has LayerNorm")
    c.expect("parallel_block", (False,), "the FFN of GGUF's nomic-bert follows its attention")
    c.expect("parallel_block_tied_norm", (False,), "the FFN of GGUF's nomic-bert follows its attention")
    c.expect("scale_attn_weights", (True,), "attention is always scaled")
    c.expect("scale_attn_by_inverse_layer_idx", (False,), "attention is scaled alike in every block")
    return {
        "n_layer": c.size("n_layer", most=MAX_LAYERS),
        "n_ctx": _context(c),
        "n_embd": c.size("n_embd"),
        "n_ff": c.size("n_inner"),
        "n_head": c.size("n_head"),
        "rope_base": c.number("rotary_emb_base"),
        "norm_eps": c.number("layer_norm_epsilon"),
    }


def _context(c: Config) -> int:
    """The length that the model was trained for, which is not the one that it is published with."""
    positions, trained = c.size("n_positions"), c.size("max_trained_positions", 2048)
    known = CONTEXT.get((positions, trained))
    if known is None:
        pairs = " or ".join(f"{a} and {b}" for a, b in CONTEXT)
        raise ConfigError(
            f"config.json: n_positions is {positions} and max_trained_positions {trained}, expected {pairs}: what "
            "other models were trained for is not known"
        )
    return known


def _native(c: Config, original: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes in transformers' spelling; keys that it lacks have its defaults, or the `original` values."""

    def default(field: str, value: Any) -> Any:
        return original.get(field, value)

    c.expect("hidden_act", ("silu",), "the FFN of GGUF's nomic-bert is SwiGLU")
    theta = c.number("rope_theta", default("rope_base", 1000.0))
    rope = c.section("rope_parameters")
    if rope is not None:
        rope.expect("rope_type", ("default",), "GGUF's nomic-bert has plain RoPE")
        rope.expect("partial_rotary_factor", (1.0,), "GGUF's nomic-bert rotates whole heads")
        theta = rope.number("rope_theta", theta)
        rope.done({})
    return {
        "n_layer": c.size("num_hidden_layers", default("n_layer", 12), most=MAX_LAYERS),
        "n_ctx": c.size("max_position_embeddings", default("n_ctx", 2048)),
        "n_embd": c.size("hidden_size", default("n_embd", 768)),
        "n_ff": c.size("intermediate_size", default("n_ff", 3072)),
        "n_head": c.size("num_attention_heads", default("n_head", 12)),
        "rope_base": theta,
        "norm_eps": c.number("layer_norm_eps", default("norm_eps", 1e-12)),
    }


def _agreed(original: Mapping[str, Any], native: dict[str, Any]) -> dict[str, Any]:
    for field, value in original.items():
        if native[field] != value:
            raise ConfigError(
                f"config.json states {field} twice: {value!r} in Nomic's own keys, {native[field]!r} in those of "
                "transformers",
                hint="transformers writes its defaults over an original it does not understand; take the config.json "
                "that the model was published with",
            )
    return native
