"""One tiny random DeepSeek-V4 model in every layout that checkpoints of the family come in.

    published   FP8 linears with E8M0 scales, FP4 experts, an MTP block           (V4-Flash)
    base        FP8 linears and experts with float32 scales                       (V4-Flash-Base)
    bf16        the published names, everything 16 or 32 bits
    saved       what transformers' save_pretrained makes of it
    classes     the names of transformers' classes, experts packed

All but `base` hold the same values; its experts are others, for FP8 cannot hold those of FP4.
"""

import json
from math import prod

import numpy as np

from hf2q.formats.small_floats import e2m1, e4m3, e8m0
from hf2q.testing.checkpoints import write_tokenizer
from hf2q_arch_deepseek4.tokenizer import ESCAPED, PUBLISHED

CONFIG = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "vocab_size": 272,
    "hidden_size": 64,
    "moe_intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_hash_layers": 2,
    "num_nextn_predict_layers": 1,
    "compress_ratios": [0, 4, 128, 4, 0],
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 40,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 32,
    "o_groups": 2,
    "o_lora_rank": 24,
    "sliding_window": 16,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 4,
        "original_max_position_embeddings": 128,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "n_routed_experts": 3,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "index_n_heads": 3,
    "index_head_dim": 16,
    "index_topk": 8,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}
PLAIN = {key: value for key, value in CONFIG.items() if key != "quantization_config"}
SAVED = {
    **{key: value for key, value in PLAIN.items() if key not in ("num_hash_layers", "compress_ratios", "rope_scaling")},
    "num_nextn_predict_layers": 0,
    "layer_types": [
        "sliding_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
        "compressed_sparse_attention",
    ],
    "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe"],
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
    "partial_rotary_factor": 0.2,
    "rope_parameters": {
        "compress": {
            "rope_type": "yarn",
            "type": "yarn",
            "factor": 4,
            "original_max_position_embeddings": 128,
            "beta_fast": 32,
            "beta_slow": 1,
            "attention_factor": 1.0,
            "rope_theta": 160000,
            "partial_rotary_factor": 0.2,
        },
        "main": {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.2},
    },
    "router_jitter_noise": 0.0,
    "mlp_bias": False,
}
"""The config that transformers 5.17 writes for `PLAIN`."""

BITS16, F32, FP8, FP4, TABLE = "BF16", "F32", "FP8", "FP4", "TABLE"


def block(prefix, ratio, hashed):
    """Names, kinds and shapes of a block's tensors."""
    d, ff, head, q = 64, 96, 40, 160
    made = {"attn_norm.weight": (BITS16, (d,)), "ffn_norm.weight": (BITS16, (d,))}
    for part in ("attn", "ffn"):
        made |= {f"hc_{part}_fn": (F32, (24, 256)), f"hc_{part}_base": (F32, (24,)), f"hc_{part}_scale": (F32, (3,))}
    made |= {
        "attn.attn_sink": (F32, (4,)),
        "attn.q_norm.weight": (BITS16, (32,)),
        "attn.kv_norm.weight": (BITS16, (head,)),
        "attn.wq_a.weight": (FP8, (32, d)),
        "attn.wq_b.weight": (FP8, (q, 32)),  # more than one block of 128 rows, the last cut off
        "attn.wkv.weight": (FP8, (head, d)),
        "attn.wo_a.weight": (FP8, (48, 80)),
        "attn.wo_b.weight": (FP8, (d, 48)),
        "ffn.gate.weight": (BITS16, (3, d)),
    }
    if ratio:
        made |= compressor("attn.compressor.", head, ratio)
    if ratio == 4:
        made |= compressor("attn.indexer.compressor.", 16, ratio)
        made |= {
            "attn.indexer.wq_b.weight": (FP8, (48, 32)),
            "attn.indexer.weights_proj.weight": (BITS16, (3, d)),
        }
    made |= {"ffn.gate.tid2eid": (TABLE, (272, 2))} if hashed else {"ffn.gate.bias": (F32, (3,))}
    shapes = {"w1": (ff, d), "w2": (d, ff), "w3": (ff, d)}
    made |= {f"ffn.shared_experts.{w}.weight": (FP8, shape) for w, shape in shapes.items()}
    made |= {f"ffn.experts.{e}.{w}.weight": (FP4, shape) for e in range(3) for w, shape in shapes.items()}
    return {prefix + name: value for name, value in made.items()}


def compressor(prefix, head, ratio):
    width = 2 * head if ratio == 4 else head
    return {
        f"{prefix}wkv.weight": (BITS16, (width, 64)),
        f"{prefix}wgate.weight": (BITS16, (width, 64)),
        f"{prefix}ape": (F32, (ratio, width)),
        f"{prefix}norm.weight": (BITS16, (head,)),
    }


def model():
    """Names, kinds and shapes of the whole checkpoint, MTP block included."""
    made = {"embed.weight": (BITS16, (272, 64)), "head.weight": (BITS16, (272, 64)), "norm.weight": (BITS16, (64,))}
    made |= {"hc_head_fn": (F32, (4, 256)), "hc_head_base": (F32, (4,)), "hc_head_scale": (F32, (1,))}
    for i, ratio in enumerate(CONFIG["compress_ratios"][:4]):
        made |= block(f"layers.{i}.", ratio, i < 2)
    made |= block("mtp.0.", 0, False)
    return made | {"mtp.0.e_proj.weight": (FP8, (64, 64)), "mtp.0.enorm.weight": (BITS16, (64,))}


class Tensor:
    """A tensor in the form that it is published in, and its values."""

    def __init__(self, seed, kind, shape):
        random = np.random.RandomState(seed)
        self.kind, self.shape, self.scale = kind, shape, None
        if kind == TABLE:
            self.values = random.randint(0, 3, shape)
        elif kind == FP8:
            self.codes = random.choice([c for c in range(256) if c & 0x7F != 0x7F], shape).astype(np.uint8)
            self.scale = random.randint(110, 125, tuple(-(-size // 128) for size in shape)).astype(np.uint8)
            wide = np.repeat(np.repeat(e8m0()[self.scale], 128, axis=0), 128, axis=1)
            self.values = e4m3()[self.codes] * wide[: shape[0], : shape[1]]
        elif kind == FP4:
            self.codes = random.randint(0, 256, (shape[0], shape[1] // 2)).astype(np.uint8)
            self.scale = random.randint(110, 125, (shape[0], shape[1] // 32)).astype(np.uint8)
            pairs = np.stack([e2m1()[self.codes & 15], e2m1()[self.codes >> 4]], axis=-1).reshape(shape)
            self.values = pairs * np.repeat(e8m0()[self.scale], 32, axis=1)
        else:
            bits = random.standard_normal(shape).astype(np.float32).view(np.uint32)
            self.values = (bits & 0xFFFF0000 if kind == BITS16 else bits).view(np.float32)


def tensors(*, fp8_experts=False):
    """Every tensor by its published name."""
    kinds = {name: (FP8 if fp8_experts and kind == FP4 else kind, shape) for name, (kind, shape) in model().items()}
    return {name: Tensor(k, *value) for k, (name, value) in enumerate(sorted(kinds.items()))}


def plain(x, kind):
    """As 16 or 32 bits."""
    if kind == TABLE:
        return "I64", x.shape, x.astype("<i8").tobytes()
    if kind == F32:
        return "F32", x.shape, x.astype("<f4").tobytes()
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any()
    return "BF16", x.shape, (bits >> 16).astype("<u2").tobytes()


def published(made):
    files = {}
    for name, t in made.items():
        if t.scale is None:
            files[name] = plain(t.values, t.kind)
            continue
        dtype = "F8_E4M3" if t.kind == FP8 else "I8"
        files[name] = dtype, t.codes.shape, t.codes.tobytes()
        files[name.removesuffix("weight") + "scale"] = "F8_E8M0", t.scale.shape, t.scale.tobytes()
    return files


def base(made):
    files = published(made)
    for name, t in made.items():
        if t.scale is not None:
            files[name.removesuffix("weight") + "scale"] = plain(e8m0()[t.scale], F32)
    return files


def bf16(made):
    return {name: plain(t.values, t.kind) for name, t in made.items()}


def saved(made):
    """transformers' `save_pretrained`: no MTP, a few names of its own."""
    own = {"embed.weight": "embed_tokens.weight"}
    own |= {f"hc_head_{part}": f"hc_head.hc_{part}" for part in ("fn", "base", "scale")}
    files = {}
    for name, t in made.items():
        if name.startswith("mtp."):
            continue
        new = own.get(name, name).replace("attn.kv_norm", "attn.norm")
        files[name if name == "head.weight" else f"model.{new}"] = plain(t.values, t.kind)
    return files


RENAMES = (
    ("attn.indexer.compressor.", "attn.compressor.indexer."),
    ("attn.indexer.weights_proj", "attn.compressor.indexer.scorer.weights_proj"),
    ("attn.indexer.wq_b", "attn.compressor.indexer.q_b_proj"),
    (".compressor.norm.", ".compressor.kv_norm."),
    (".indexer.norm.", ".indexer.kv_norm."),
    (".ape", ".position_bias"),
    (".attn.attn_sink", ".self_attn.sinks"),
    (".attn.", ".self_attn."),
    (".wq_a.", ".q_a_proj."),
    (".wq_b.", ".q_b_proj."),
    (".wkv.", ".kv_proj."),
    (".wgate.", ".gate_proj."),
    (".wo_a.", ".o_a_proj."),
    (".wo_b.", ".o_b_proj."),
    (".q_norm.", ".q_a_norm."),
    (".attn_norm.", ".input_layernorm."),
    (".ffn_norm.", ".post_attention_layernorm."),
    (".hc_attn_", ".attn_hc."),
    (".hc_ffn_", ".ffn_hc."),
    (".ffn.gate.bias", ".mlp.gate.e_score_correction_bias"),
    (".ffn.", ".mlp."),
    ("_experts.w1.", "_experts.gate_proj."),
    ("_experts.w2.", "_experts.down_proj."),
    ("_experts.w3.", "_experts.up_proj."),
)


def classes(made):
    """The names that transformers' classes have in memory."""
    files = {}
    for name, t in made.items():
        if name.startswith("mtp.") or ".experts." in name:
            continue
        new = {"embed.weight": "embed_tokens.weight", "head.weight": "lm_head.weight"}.get(name, name)
        new = new.replace("hc_head_", "hc_head.hc_")
        for old, other in RENAMES:
            new = new.replace(old, other)
        files[new if new == "lm_head.weight" else f"model.{new}"] = plain(t.values, t.kind)
    for i in range(4):
        own = [[made[f"layers.{i}.ffn.experts.{e}.{w}.weight"].values for e in range(3)] for w in ("w1", "w2", "w3")]
        joined = np.concatenate([np.stack(own[0]), np.stack(own[2])], axis=1)
        files[f"model.layers.{i}.mlp.experts.gate_up_proj"] = plain(joined, BITS16)
        files[f"model.layers.{i}.mlp.experts.down_proj"] = plain(np.stack(own[1]), BITS16)
    return files


LAYOUTS = {
    "published": (published, CONFIG, PUBLISHED),
    "base": (base, CONFIG, PUBLISHED),
    "bf16": (bf16, PLAIN, ESCAPED),
    "saved": (saved, SAVED, ESCAPED),
    "classes": (classes, SAVED, ESCAPED),
}


def write(folder, layout, *, change=None, template=None):
    """A complete checkpoint; `change` may alter files' tensors by name. Returns folder and the model's tensors."""
    make, config, pre = LAYOUTS[layout]
    made = tensors(fp8_experts=layout == "base")
    files = make(made)
    if change is not None:
        change(files)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, pre, 272)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in files.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        assert len(data) % max(1, prod(shape)) == 0
    text = json.dumps(header).encode()
    data = b"".join(data for _, _, data in files.values())
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return made
