"""The checkpoints that data/variants.golden.json was recorded from: name → how `write_checkpoint` is called.

Kept apart from the tests because whoever records goldens anew needs exactly this list.
"""

CARD = """---
language:
- en
- no
license: apache-2.0
license_link: https://example.org/LICENSE
base_model: Some-Org/Tiny-3B-Instruct
datasets:
- some-org/a-set
- https://huggingface.co/other/b-set
tags:
- test
pipeline_tag: text-generation
model_creator: Somebody
---
# Tiny
"""
SAMPLING = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "repetition_penalty": 1.05}


def variants(text_config, moe_config):
    """name → (config, options of `write_checkpoint`, whether MTP is kept)."""
    wide = {"num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 528}
    many = {"num_hidden_layers": 12, "layer_types": None, "full_attention_interval": 4}
    nested = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "tie_word_embeddings": False,
        "text_config": moe_config(tie_word_embeddings=False, architectures=None),
        "vision_config": {"model_type": "qwen3_5_moe"},
    }
    return {
        "dense": (text_config(), {}, True),
        "dense_untied": (
            text_config(tie_word_embeddings=False, mtp_num_hidden_layers=0, linear_num_key_heads=4),
            {"shards": 3, "seed": 2, "extra": {"README.md": CARD, "generation_config.json": SAMPLING}},
            False,
        ),
        "dense_f16": (text_config(), {"dtype": "F16", "seed": 3}, True),
        "dense_f32": (text_config(), {"dtype": "F32", "seed": 4}, True),
        "dense_mixed": (text_config(), {"special_dtype": "F32", "seed": 5}, True),
        "dense_deep": (text_config(**wide, **many), {"seed": 6}, True),
        "dense_odd": (text_config(hidden_size=96, intermediate_size=80), {"seed": 7}, True),
        "dense_odder": (
            text_config(hidden_size=100, intermediate_size=384, tie_word_embeddings=False),
            {"seed": 8},
            False,
        ),
        "moe": (nested, {"prefix": "language_model.", "seed": 9}, True),
        "moe_single": (moe_config(num_experts=3), {"experts": "single", "shards": 2, "seed": 10}, True),
        "moe_eight": (moe_config(num_experts=8, moe_intermediate_size=32), {"seed": 11}, True),
        "moe_wide": (
            moe_config(moe_intermediate_size=256, shared_expert_intermediate_size=256, **wide),
            {"experts": "single", "dtype": "F16", "seed": 12},
            True,
        ),
    }
