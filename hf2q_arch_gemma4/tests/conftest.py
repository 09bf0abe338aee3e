"""Tiny random checkpoints of the family in every layout, the same bytes on every machine.

`write_checkpoint` is also what the goldens beside these tests were recorded from; see data/PROVENANCE.md.
"""

import json
from math import prod

import numpy as np
import pytest

SPACE = "\u2581"
NAMED = {"pad": "<pad>", "eos": "<eos>", "bos": "<bos>", "unk": "<unk>", "mask": "<mask>"}
TURN = ("<|turn>", "<turn|>")
MERGES = ((SPACE, "t"), ("h", "e"), (f"{SPACE}t", "he"))
KINDS = ["sliding_attention", "sliding_attention", "full_attention"] * 2


def text_config(**changes):
    """config.json of a dense text model of 6 blocks, without per-layer inputs; `None` drops a key."""
    config = {
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "vocab_size": 272,
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "global_head_dim": 64,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "sliding_window": 16,
        "layer_types": KINDS,
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "final_logit_softcapping": 30.0,
        "hidden_size_per_layer_input": 0,
        "attention_k_eq_v": False,
        "num_kv_shared_layers": 0,
        "use_double_wide_mlp": False,
        "enable_moe_block": False,
        "tie_word_embeddings": True,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    return {key: value for key, value in {**config, **changes}.items() if value is not None}


def small_config(**changes):
    """As the small models have it: per-layer inputs, and half of the blocks without keys and values of their own."""
    small = {
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": 272,
        "num_kv_shared_layers": 3,
        "use_double_wide_mlp": True,
    }
    return text_config(**{**small, **changes})


def moe_config(**changes):
    """A mixture of 8 experts beside the dense FFN; full attention uses its keys as values."""
    experts = {
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 2,
        "moe_intermediate_size": 64,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
    }
    return text_config(**{**experts, **changes})


def vision_config(**changes):
    """``vision_config`` of a tower of one block."""
    config = {
        "model_type": "gemma4_vision",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "patch_size": 4,
        "pooling_kernel_size": 3,
        "position_embedding_size": 24,
        "use_clipped_linears": False,
        "standardize": False,
    }
    return {**config, **changes}


def shapes_of(config, own_shared=True):
    """Checkpoint names and shapes of a text model, without a prefix, in no special order.

    own_shared  whether blocks that share keys and values carry some of their own all the same
    """
    c = config
    n, d, p = c["num_hidden_layers"], c["hidden_size"], c["hidden_size_per_layer_input"]
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], d), "model.norm.weight": (d,)}
    if not c.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (c["vocab_size"], d)
    if p:
        shapes |= {
            "model.embed_tokens_per_layer.weight": (c["vocab_size_per_layer_input"], n * p),
            "model.per_layer_model_projection.weight": (n * p, d),
            "model.per_layer_projection_norm.weight": (p,),
        }
    for i, kind in enumerate(c["layer_types"]):
        full, shared = kind == "full_attention", i >= n - c["num_kv_shared_layers"]
        block = _block(c, full, shared, own_shared)
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in block.items()}
    return shapes


def heads_of(config, full):
    """Size of a head, and number of heads for keys and values, in blocks of a kind."""
    size, heads = config["head_dim"], config["num_key_value_heads"]
    if not full:
        return size, heads
    if "per_layer_config" in config:
        first = next(iter(config["per_layer_config"].values()), {})
        return first.get("head_dim", size), first.get("num_key_value_heads", heads)
    more = config.get("num_global_key_value_heads") if config["attention_k_eq_v"] else None
    return config["global_head_dim"], more or heads


def _block(c, full, shared, own_shared):
    d, p = c["hidden_size"], c["hidden_size_per_layer_input"]
    size, kv_heads = heads_of(c, full)
    width = c["intermediate_size"] * (2 if shared and c["use_double_wide_mlp"] else 1)
    shapes = {
        "input_layernorm.weight": (d,),
        "post_attention_layernorm.weight": (d,),
        "pre_feedforward_layernorm.weight": (d,),
        "post_feedforward_layernorm.weight": (d,),
        "layer_scalar": (1,),
        "self_attn.q_proj.weight": (c["num_attention_heads"] * size, d),
        "self_attn.q_norm.weight": (size,),
        "self_attn.o_proj.weight": (d, c["num_attention_heads"] * size),
        "mlp.gate_proj.weight": (width, d),
        "mlp.up_proj.weight": (width, d),
        "mlp.down_proj.weight": (d, width),
    }
    if own_shared or not shared:
        shapes |= {"self_attn.k_proj.weight": (kv_heads * size, d), "self_attn.k_norm.weight": (size,)}
        if not (full and c["attention_k_eq_v"]):
            shapes["self_attn.v_proj.weight"] = (kv_heads * size, d)
    if p:
        shapes |= {
            "per_layer_input_gate.weight": (p, d),
            "per_layer_projection.weight": (d, p),
            "post_per_layer_input_norm.weight": (d,),
        }
    if c["enable_moe_block"]:
        n, f = c["num_experts"], c["moe_intermediate_size"]
        shapes |= {
            "pre_feedforward_layernorm_2.weight": (d,),
            "post_feedforward_layernorm_1.weight": (d,),
            "post_feedforward_layernorm_2.weight": (d,),
            "router.proj.weight": (n, d),
            "router.scale": (d,),
            "router.per_expert_scale": (n,),
            "experts.gate_up_proj": (n, 2 * f, d),
            "experts.down_proj": (n, d, f),
        }
    return shapes


def tower_shapes(config, n_text):
    """Checkpoint names and shapes of a vision tower, in no special order."""
    c, tower = config, "model.vision_tower."
    d, f, head = c["hidden_size"], c["intermediate_size"], c["hidden_size"] // c["num_attention_heads"]
    shapes = {
        "model.embed_vision.embedding_projection.weight": (n_text, d),
        f"{tower}patch_embedder.input_proj.weight": (d, 3 * c["patch_size"] ** 2),
        f"{tower}patch_embedder.position_embedding_table": (2, c["position_embedding_size"], d),
    }
    if c["standardize"]:
        shapes |= {f"{tower}std_{part}": (d,) for part in ("bias", "scale")}
    for i in range(c["num_hidden_layers"]):
        own = f"{tower}encoder.layers.{i}."
        norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        shapes |= {f"{own}{name}_layernorm.weight": (d,) for name in norms}
        shapes |= {f"{own}self_attn.{part}_norm.weight": (head,) for part in "qk"}
        matrices = {f"self_attn.{part}_proj": (d, d) for part in "qkvo"}
        matrices |= {"mlp.gate_proj": (f, d), "mlp.up_proj": (f, d), "mlp.down_proj": (d, f)}
        for name, shape in matrices.items():
            shapes[f"{own}{name}.linear.weight"] = shape
            if c["use_clipped_linears"]:
                shapes |= {f"{own}{name}.{a}_{b}": () for a in ("input", "output") for b in ("min", "max")}
    return shapes


def random_tensors(shapes, seed):
    """float32 values by name: uniform, of a size that fits their role. Only integer arithmetic decides them."""
    made = {}
    for k, (name, shape) in enumerate(sorted(shapes.items())):
        raw = np.random.PCG64([seed, k]).random_raw(prod(shape))
        unit = (raw >> np.uint64(40)).astype(np.float64) / (1 << 23) - 1.0  # [-1, 1)
        unit = 1 + 0.25 * unit if "norm" in name or "scal" in name else unit * (0.0625 if len(shape) > 1 else 4)
        made[name] = unit.astype(np.float32).reshape(shape)
    return made


def encoded(x, dtype):
    """Bytes of float32 values as `dtype`; BF16 is cut off, not rounded."""
    if dtype == "F32":
        return x.tobytes()
    if dtype == "F16":
        return x.astype(np.float16).tobytes()
    return (x.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def write_safetensors(path, tensors, dtype):
    """One safetensors file, written without the library so that nothing but this function decides its bytes."""
    header, blobs, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name, x in tensors.items():
        data = encoded(np.array(x, order="C"), dtype)
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        blobs.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def write_weights(folder, tensors, dtype, shards=1):
    """All tensors, dealt to the shards in turn so that every block is spread over all of them."""
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, dtype)
        return
    names = sorted(tensors)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        mine = {name: tensors[name] for name in names[shard::shards]}
        write_safetensors(folder / file, mine, dtype)
        weight_map |= dict.fromkeys(mine, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_tokenizer(folder, n_tokens):
    """BPE of special tokens, 256 bytes, a few letters and merges, filled up with single characters."""
    special = [*NAMED.values(), *TURN]
    texts = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), SPACE, "t", "h", "e"]
    texts += [left + right for left, right in MERGES]
    texts += [chr(0x4E00 + i) for i in range(n_tokens - len(texts))]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    space = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": text, **flags} for number, text in enumerate(special)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": split,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [space, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": NAMED["unk"],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {text: number for number, text in enumerate(texts)},
            "merges": [list(pair) for pair in MERGES],
        },
    }
    names = {f"{role}_token": text for role, text in NAMED.items()}
    config = {"tokenizer_class": "GemmaTokenizer", **names, "sot_token": TURN[0], "eot_token": TURN[1]}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def write_checkpoint(
    folder,
    config,
    *,
    seed=1,
    dtype="BF16",
    shards=1,
    prefix="model.",
    own_shared=True,
    n_tokens=None,
    tensors=None,
    extra=None,
):
    """A complete checkpoint directory; with a vision tower when the config has one.

    prefix    in place of ``model.`` in names of the text model, e.g. ``model.language_model.``
    own_shared  see `shapes_of`
    n_tokens  of the tokenizer, by default one for each row of the embeddings
    tensors   float32 values instead of random ones, under unprefixed names
    extra     further files by name, as objects for JSON
    """
    folder.mkdir(parents=True, exist_ok=True)
    flat = {**config, **(config.get("text_config") or {})}
    shapes = shapes_of(flat, own_shared)
    if config.get("vision_config"):
        shapes |= tower_shapes(config["vision_config"], flat["hidden_size"])
    tensors = random_tensors(shapes, seed) if tensors is None else tensors
    vision = ("model.vision_tower.", "model.embed_vision.")
    named = {name if name.startswith(vision) else name.replace("model.", prefix, 1): x for name, x in tensors.items()}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_weights(folder, named, dtype, shards)
    write_tokenizer(folder, n_tokens or flat["vocab_size"])
    for name, content in (extra or {}).items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.fixture
def dense():
    """`dense(**changes)` gives a dense config."""
    return text_config


@pytest.fixture
def small():
    """`small(**changes)` gives a config with per-layer inputs."""
    return small_config


@pytest.fixture
def moe():
    """`moe(**changes)` gives the config of a mixture of experts."""
    return moe_config


@pytest.fixture
def tower():
    """`tower(**changes)` gives the config of a vision tower."""
    return vision_config


@pytest.fixture
def weights():
    """`weights(config)` gives the tensors of such a checkpoint, float32 by name."""
    return lambda config, seed=1, **options: random_tensors(shapes_of(config, **options), seed)


@pytest.fixture
def write():
    """`write_checkpoint`."""
    return write_checkpoint
