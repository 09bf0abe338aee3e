"""From ``config.json`` and a list of tensor names to the fields of `BertHParams`, for BERT.

Sources: transformers 5.17, models/bert/configuration_bert.py (defaults); llama.cpp, conversion/base.py `TextModel` and
conversion/bert.py `BertModel` (what is read).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from hf2q.config import HARMLESS, MAX_LAYERS, Config
from hf2q.errors import ConfigError, TensorMismatchError
from hf2q_arch_bert.families import BERT, MODULES, PREFIXES
from hf2q_arch_bert.pooling import read_pooling

IGNORED: Mapping[str, str] = {
    **HARMLESS,
    "hidden_dropout_prob": "training only",
    "attention_probs_dropout_prob": "training only",
    "classifier_dropout": "training only",
    "gradient_checkpointing": "training only",
    "layer_norm_type": "provenance",
    "tie_word_embeddings": "the language-model head is left out",
    "directionality": "the pooler's, which is left out",
    **dict.fromkeys(
        (
            "pooler_fc_size",
            "pooler_num_attention_heads",
            "pooler_num_fc_layers",
            "pooler_size_per_head",
            "pooler_type",
        ),
        "the pooler is left out",
    ),
    "sentence_transformers": "how sentence-transformers runs a cross-encoder",
    "sbert_ce_default_activation_function": "how sentence-transformers runs a cross-encoder",
}
"""Config keys that change no weight and no GGUF key, with the reason."""


def read_bert(config: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The fields of `BertHParams`; see its `from_config`."""
    c = Config(config)
    c.expect("hidden_act", ("gelu",), "the FFN of GGUF's bert is always GELU")
    c.expect("position_embedding_type", ("absolute",), "GGUF's bert adds a table of absolute positions")
    c.expect("is_decoder", (False,), "GGUF's bert is an encoder")
    c.expect("add_cross_attention", (False,), "GGUF's bert is an encoder")
    labels = read_labels(c)
    fields: dict[str, Any] = {
        "arch": BERT,
        "n_layer": c.size("num_hidden_layers", 12, most=MAX_LAYERS),
        "n_vocab": c.size("vocab_size", 30522),
        "n_ctx": c.size("max_position_embeddings", 512),
        "n_embd": c.size("hidden_size", 768),
        "n_ff": c.size("intermediate_size", 3072),
        "n_head": c.size("num_attention_heads", 12),
        "n_token_types": c.size("type_vocab_size"),
        "norm_eps": c.number("layer_norm_eps", 1e-12),
        "pooling": read_pooling(c.raw(MODULES)),
        "labels": labels,
    }
    c.done(IGNORED)
    _check_classifier(labels, {_bare(name) for name in names})
    return fields


def read_labels(c: Config) -> tuple[str, ...]:
    """Names of classes by id; empty for the two that transformers makes up for every model.

    Source: llama.cpp, conversion/bert.py, `BertModel.__init__`; transformers, configuration_utils.py.
    """
    table, count = c.raw("id2label"), c.raw("num_labels")
    if count is not None:
        count = c.size("num_labels")
    if table is None:
        table = {str(number): f"LABEL_{number}" for number in range(count or 2)}
    if not isinstance(table, Mapping) or not all(
        key.isascii() and key.isdigit() and isinstance(label, str) for key, label in table.items()
    ):
        raise c.wrong("id2label", "an object of texts by number")
    if count is not None and count != len(table):
        raise ConfigError(f"config.json: num_labels is {count}, id2label has {len(table)} entries")
    labels = tuple(table[key] for key in sorted(table, key=int))
    made_up = len(labels) == 2 and table.get("0") == "LABEL_0"
    return () if made_up else labels


def _bare(name: str) -> str:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _check_classifier(labels: tuple[str, ...], names: set[str]) -> None:
    """Refuse a classification head that would compute something else in GGUF than in the checkpoint.

    GGUF's bert applies the head to the first token's vector itself (llama.cpp, src/llama-graph.cpp, `build_pooling`);
    transformers applies it to what the pooler makes of that vector, and llama.cpp's converter drops the pooler.
    """
    if not any(name.startswith("classifier.") for name in names):
        return
    hint = "for embeddings, convert the encoder without its head: save it as BertModel"
    if any(name.startswith("pooler.dense.") for name in names):
        raise TensorMismatchError(
            "the checkpoint has a classification head (classifier.*) behind a pooler (pooler.dense.*); GGUF's bert has "
            "no place for the pooler, and the scores would be wrong without it",
            hint=hint,
        )
    if not labels:
        raise TensorMismatchError(
            "the checkpoint has a classification head (classifier.*), but config.json names no classes for it",
            hint=f"name them in id2label; {hint}",
        )
