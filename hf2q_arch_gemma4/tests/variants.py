"""The checkpoints that data/variants.golden.json was recorded from: name → how `write_checkpoint` is called.

Kept apart from the tests because whoever records goldens anew needs exactly this list.
"""

SAMPLING = {"temperature": 1.0, "top_k": 64, "top_p": 0.95}
PROCESSOR = {"image_processor": {"image_mean": [0.0, 0.25, 0.5], "image_std": [1.0, 0.5, 0.75]}}
LISTED = {"2": {"head_dim": 64, "num_key_value_heads": 1}, "5": {"head_dim": 64, "num_key_value_heads": 1}}
NO_GLOBALS = {"global_head_dim": None, "num_global_key_value_heads": None}
KINDS = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]


def multimodal(text, vision):
    """config.json of a model with a tower."""
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "tie_word_embeddings": text["tie_word_embeddings"],
        "text_config": {key: value for key, value in text.items() if key != "architectures"},
        "vision_config": vision,
        "audio_config": None,
    }


def variants(dense, small, moe, tower):
    """name → (config, options of `write_checkpoint`). All but ``mmproj_…`` are text models."""
    language = {"prefix": "model.language_model."}
    return {
        "dense": (dense(), {}),
        "dense_untied": (
            dense(tie_word_embeddings=False, final_logit_softcapping=None, num_key_value_heads=4),
            {"seed": 2, "shards": 3, "extra": {"generation_config.json": SAMPLING}},
        ),
        "dense_f16": (dense(hidden_size=96, intermediate_size=80), {"seed": 3, "dtype": "F16"}),
        "dense_f32": (dense(), {"seed": 4, "dtype": "F32", "prefix": "language_model.model."}),
        "dense_k_eq_v": (dense(attention_k_eq_v=True, num_global_key_value_heads=1), {"seed": 5}),
        "dense_heads_ignored": (dense(num_global_key_value_heads=1), {"seed": 6}),
        "dense_listed": (dense(per_layer_config=LISTED, **NO_GLOBALS), {"seed": 7}),
        "dense_both_ways": (dense(use_bidirectional_attention="all", sliding_window=17), {"seed": 8}),
        "small": (multimodal(small(), tower()), {"seed": 10, **language}),
        "small_lacking": (small(use_double_wide_mlp=False), {"seed": 11, "own_shared": False}),
        "moe": (multimodal(moe(), tower()), {"seed": 12, **language}),
        "moe_three": (
            moe(
                num_experts=3,
                moe_intermediate_size=96,
                attention_k_eq_v=False,
                num_hidden_layers=4,
                layer_types=[*KINDS[:3], "full_attention"],
                use_bidirectional_attention="vision",
            ),
            {"seed": 13, "shards": 2},
        ),
        "mmproj_plain": (
            multimodal(dense(), tower(num_hidden_layers=2)),
            {"seed": 14, **language, "extra": {"processor_config.json": PROCESSOR}},
        ),
        "mmproj_clipped": (
            multimodal(dense(), tower(use_clipped_linears=True, standardize=True)),
            {
                "seed": 15,
                "dtype": "F16",
                **language,
                "extra": {"preprocessor_config.json": PROCESSOR["image_processor"]},
            },
        ),
    }
