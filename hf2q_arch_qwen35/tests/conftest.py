"""Tiny random checkpoints of the family in every layout, the same bytes on every machine.

`write_checkpoint` is also what the goldens beside these tests were recorded from; see data/PROVENANCE.md.
"""

import json
from math import prod

import numpy as np
import pytest

BYTES_PER = {"BF16": 2, "F16": 2, "F32": 4}


def text_config(**changes):
    """config.json of a text model: flat, dense, 4 layers, one MTP block; `None` drops a key."""
    config = {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": 512,
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "full_attention_interval": 4,
        "mtp_num_hidden_layers": 1,
        "tie_word_embeddings": True,
        "eos_token_id": 258,
    }
    return {key: value for key, value in {**config, **changes}.items() if value is not None}


def moe_config(**changes):
    """The same as a mixture of 4 experts."""
    experts = {
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "intermediate_size": None,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 128,
    }
    return text_config(**{**experts, **changes})


def shapes_of(config, experts="packed", fused=False):
    """Checkpoint names and shapes, without a prefix, in no special order."""
    c = config
    n, d = c["num_hidden_layers"], c["hidden_size"]
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], d), "model.norm.weight": (d,)}
    if not c.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (c["vocab_size"], d)
    kinds = c.get("layer_types") or [
        "linear_attention" if (i + 1) % c["full_attention_interval"] else "full_attention" for i in range(n)
    ]
    for i, kind in enumerate(kinds):
        shapes |= _block(f"model.layers.{i}.", c, kind == "full_attention", experts, fused)
    for j in range(c.get("mtp_num_hidden_layers", 0)):
        shapes |= _block(f"mtp.layers.{j}.", c, True, experts, fused)
        shapes |= {"mtp.fc.weight": (d, 2 * d), "mtp.norm.weight": (d,)}
        shapes |= {f"mtp.pre_fc_norm_{what}.weight": (d,) for what in ("embedding", "hidden")}
    return shapes


def _block(prefix, c, full, experts, fused):
    d, width = c["hidden_size"], c["head_dim"]
    shapes = {"input_layernorm.weight": (d,), "post_attention_layernorm.weight": (d,)}
    if full:
        heads, kv = c["num_attention_heads"] * width, c["num_key_value_heads"] * width
        shapes |= {
            "self_attn.q_proj.weight": (2 * heads, d),
            "self_attn.k_proj.weight": (kv, d),
            "self_attn.v_proj.weight": (kv, d),
            "self_attn.o_proj.weight": (d, heads),
            "self_attn.q_norm.weight": (width,),
            "self_attn.k_norm.weight": (width,),
        }
    else:
        shapes |= {f"linear_attn.{name}": shape for name, shape in _linear(c, fused).items()}
    shapes |= {f"mlp.{name}": shape for name, shape in _ffn(c, experts).items()}
    return {prefix + name: shape for name, shape in shapes.items()}


def _linear(c, fused):
    d, v_heads = c["hidden_size"], c["linear_num_value_heads"]
    keys = c["linear_key_head_dim"] * c["linear_num_key_heads"]
    values = c["linear_value_head_dim"] * v_heads
    if fused:
        shapes = {"in_proj_qkvz.weight": (2 * keys + 2 * values, d), "in_proj_ba.weight": (2 * v_heads, d)}
    else:
        shapes = {
            "in_proj_qkv.weight": (2 * keys + values, d),
            "in_proj_z.weight": (values, d),
            "in_proj_b.weight": (v_heads, d),
            "in_proj_a.weight": (v_heads, d),
        }
    return shapes | {
        "A_log": (v_heads,),
        "dt_bias": (v_heads,),
        "conv1d.weight": (2 * keys + values, 1, c["linear_conv_kernel_dim"]),
        "norm.weight": (c["linear_value_head_dim"],),
        "out_proj.weight": (d, values),
    }


def _ffn(c, experts):
    d = c["hidden_size"]
    if "num_experts" not in c:
        f = c["intermediate_size"]
        return {"gate_proj.weight": (f, d), "up_proj.weight": (f, d), "down_proj.weight": (d, f)}
    n, f, s = c["num_experts"], c["moe_intermediate_size"], c["shared_expert_intermediate_size"]
    shapes = {
        "gate.weight": (n, d),
        "shared_expert_gate.weight": (1, d),
        "shared_expert.gate_proj.weight": (s, d),
        "shared_expert.up_proj.weight": (s, d),
        "shared_expert.down_proj.weight": (d, s),
    }
    if experts == "packed":
        return shapes | {"experts.gate_up_proj": (n, 2 * f, d), "experts.down_proj": (n, d, f)}
    for e in range(n):
        shapes |= {f"experts.{e}.{part}_proj.weight": (f, d) for part in ("gate", "up")}
        shapes[f"experts.{e}.down_proj.weight"] = (d, f)
    return shapes


def random_tensors(shapes, seed):
    """float32 values by name: uniform, of a size that fits their role. Only integer arithmetic decides them."""
    made = {}
    for k, (name, shape) in enumerate(sorted(shapes.items())):
        raw = np.random.PCG64([seed, k]).random_raw(prod(shape))
        unit = (raw >> np.uint64(40)).astype(np.float64) / (1 << 23) - 1.0  # [-1, 1)
        if name.endswith("A_log"):
            unit = (unit + 1) * 1.375
        elif "norm" in name:
            unit = unit * 0.25
        elif len(shape) > 1:
            unit = unit * 0.0625
        made[name] = unit.astype(np.float32).reshape(shape)
    return made


def encoded(x, dtype):
    """Bytes of float32 values as `dtype`; BF16 is cut off, not rounded."""
    if dtype == "F32":
        return x.tobytes()
    if dtype == "F16":
        return x.astype(np.float16).tobytes()
    return (x.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def write_safetensors(path, tensors, dtype_of, metadata=None):
    """One safetensors file, written without the library so that nothing but this function decides its bytes."""
    header, blobs, offset = {"__metadata__": metadata or {"format": "pt"}}, [], 0
    for name, x in tensors.items():
        data = encoded(np.ascontiguousarray(x), dtype_of(name))
        header[name] = {"dtype": dtype_of(name), "shape": list(x.shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        blobs.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def write_weights(folder, tensors, dtype_of, shards=1, metadata=None):
    """All tensors, dealt to the shards in turn so that every block is spread over all of them."""
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, dtype_of, metadata)
        return
    names = sorted(tensors)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        mine = {name: tensors[name] for name in names[shard::shards]}
        write_safetensors(folder / file, mine, dtype_of, metadata)
        weight_map |= dict.fromkeys(mine, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_tokenizer(folder):
    """Byte-level BPE of 256 bytes, one merge and two special tokens, in Qwen's structure."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    chars, extra = {b: chr(b) for b in printable}, 256
    for b in range(256):
        if b not in chars:
            chars[b], extra = chr(extra), extra + 1
    vocab = {chars[b]: b for b in range(256)} | {"th": 256}
    special = ["<|endoftext|>", "<|im_end|>"]
    added = [
        {
            "id": 257 + i,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, text in enumerate(special)
    ]
    from hf2q_arch_qwen35.tokenizer import QWEN35_PRE

    split = {
        "type": "Split",
        "pattern": {"Regex": QWEN35_PRE.split[0]},
        "behavior": "Isolated",
        "invert": False,
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [["t", "h"]],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    config = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_checkpoint(
    folder,
    config,
    *,
    seed=1,
    dtype="BF16",
    special_dtype=None,
    shards=1,
    experts="packed",
    prefix="",
    tensors=None,
    metadata=None,
    extra=None,
):
    """A complete checkpoint directory.

    special_dtype  dtype of A_log and linear_attn.norm, where another one is wanted
    prefix         put after ``model.`` in names, e.g. ``language_model.``
    tensors        float32 values instead of random ones, under unprefixed names
    extra          further files by name: text, or an object for JSON
    """
    folder.mkdir(parents=True, exist_ok=True)
    flat = {**config, **(config.get("text_config") or {})}
    tensors = random_tensors(shapes_of(flat, experts), seed) if tensors is None else tensors
    named = {name.replace("model.", f"model.{prefix}", 1): x for name, x in tensors.items()}

    def dtype_of(name):
        special = name.endswith(("A_log", "linear_attn.norm.weight"))
        return special_dtype if special and special_dtype else dtype

    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_weights(folder, named, dtype_of, shards, metadata)
    write_tokenizer(folder)
    for name, content in (extra or {}).items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


@pytest.fixture(scope="session")
def dense():
    """`dense(**changes)` gives a dense config."""
    return text_config


@pytest.fixture(scope="session")
def moe():
    """`moe(**changes)` gives the config of a mixture of experts."""
    return moe_config


@pytest.fixture(scope="session")
def weights():
    """`weights(config, experts, fused)` gives the tensors of such a checkpoint, float32 by name."""
    return lambda config, experts="packed", fused=False, seed=1: random_tensors(shapes_of(config, experts, fused), seed)


@pytest.fixture(scope="session")
def write():
    """`write_checkpoint`."""
    return write_checkpoint
