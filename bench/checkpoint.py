"""Make a checkpoint to convert: Qwen3.5, dense or a mixture of experts, bfloat16, random weights, in little memory.

    python bench/checkpoint.py FOLDER --size 0.6

The shapes follow the real models (0.8B, 4B and 35B-A3B) with layers and vocabulary adjusted to the size asked for. The
tokenizer is the small one of tests/data/qwen3_5, which converters pad to the vocabulary of the configuration.
Benchmarks run this in a process of its own, so that the memory it needs is not counted for anybody else.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

TOKENIZER = Path(__file__).resolve().parents[1] / "tests" / "data" / "qwen3_5"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
CHUNK = 1 << 22
"""Weights written at a time."""


class Model(NamedTuple):
    """Sizes of one model; every fourth layer has full attention, the others a Gated DeltaNet.

    With `experts`, of which each is `ff` wide and which come packed, the head is a matrix of its own.
    """

    hidden: int
    layers: int
    ff: int
    heads: int
    kv_heads: int
    key_heads: int
    value_heads: int
    vocab: int
    experts: int = 0


MODELS = {
    "tiny": Model(256, 4, 512, 2, 1, 2, 4, 4096),
    "0.1": Model(512, 16, 1792, 4, 2, 8, 8, 20480),
    "0.6": Model(1024, 24, 3072, 8, 2, 16, 16, 122880),
    "5": Model(2560, 36, 9728, 16, 4, 16, 32, 248320),
    "tiny-moe": Model(256, 4, 64, 2, 1, 2, 4, 4096, 4),
    "5-moe": Model(2048, 4, 512, 16, 2, 16, 32, 248320, 256),
}
"""By billions of parameters."""

HEAD, LINEAR_HEAD, KERNEL = 256, 128, 4


def config(model: Model) -> dict[str, Any]:
    """config.json: the fixture's, with these sizes, and without the vision tower."""
    found: dict[str, Any] = json.loads((TOKENIZER / "config.json").read_text(encoding="utf-8"))
    text: dict[str, Any] = found["text_config"] | {
        "hidden_size": model.hidden,
        "num_hidden_layers": model.layers,
        "layer_types": [kind(layer) for layer in range(model.layers)],
        "intermediate_size": model.ff,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": HEAD,
        "linear_key_head_dim": LINEAR_HEAD,
        "linear_value_head_dim": LINEAR_HEAD,
        "linear_num_key_heads": model.key_heads,
        "linear_num_value_heads": model.value_heads,
        "linear_conv_kernel_dim": KERNEL,
        "vocab_size": model.vocab,
    }
    text["rope_parameters"] |= {"mrope_section": [11, 11, 10]}
    if not model.experts:
        return {**text, "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text"}
    del text["intermediate_size"]
    return {
        **text,
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "num_experts": model.experts,
        "num_experts_per_tok": min(8, model.experts),
        "moe_intermediate_size": model.ff,
        "shared_expert_intermediate_size": model.ff,
        "tie_word_embeddings": False,
    }


def kind(layer: int) -> str:
    return "full_attention" if layer % 4 == 3 else "linear_attention"


def tensors(model: Model) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Name, dtype and shape of every tensor."""
    yield "model.embed_tokens.weight", "BF16", (model.vocab, model.hidden)
    for layer in range(model.layers):
        name = f"model.layers.{layer}"
        yield from block(model, name)
        yield from (full_attention if kind(layer) == "full_attention" else linear_attention)(model, name)
    yield "model.norm.weight", "BF16", (model.hidden,)
    if model.experts:
        yield "lm_head.weight", "BF16", (model.vocab, model.hidden)
    yield "mtp.fc.weight", "BF16", (model.hidden, 2 * model.hidden)
    yield from block(model, "mtp.layers.0")
    yield from full_attention(model, "mtp.layers.0")
    for norm in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        yield f"mtp.{norm}.weight", "BF16", (model.hidden,)


def block(model: Model, name: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield f"{name}.{norm}.weight", "BF16", (model.hidden,)
    own = f"{name}.mlp.shared_expert" if model.experts else f"{name}.mlp"
    for part in ("gate", "up"):
        yield f"{own}.{part}_proj.weight", "BF16", (model.ff, model.hidden)
    yield f"{own}.down_proj.weight", "BF16", (model.hidden, model.ff)
    if model.experts:
        yield f"{name}.mlp.gate.weight", "BF16", (model.experts, model.hidden)
        yield f"{name}.mlp.shared_expert_gate.weight", "BF16", (1, model.hidden)
        yield f"{name}.mlp.experts.gate_up_proj", "BF16", (model.experts, 2 * model.ff, model.hidden)
        yield f"{name}.mlp.experts.down_proj", "BF16", (model.experts, model.hidden, model.ff)


def full_attention(model: Model, name: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    yield f"{name}.self_attn.q_proj.weight", "BF16", (2 * model.heads * HEAD, model.hidden)
    for part in "kv":
        yield f"{name}.self_attn.{part}_proj.weight", "BF16", (model.kv_heads * HEAD, model.hidden)
    yield f"{name}.self_attn.o_proj.weight", "BF16", (model.hidden, model.heads * HEAD)
    for part in "qk":
        yield f"{name}.self_attn.{part}_norm.weight", "BF16", (HEAD,)


def linear_attention(model: Model, name: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    values, all_heads = model.value_heads * LINEAR_HEAD, 2 * model.key_heads + model.value_heads
    yield f"{name}.linear_attn.A_log", "F32", (model.value_heads,)
    yield f"{name}.linear_attn.norm.weight", "F32", (LINEAR_HEAD,)
    yield f"{name}.linear_attn.dt_bias", "BF16", (model.value_heads,)
    yield f"{name}.linear_attn.conv1d.weight", "BF16", (all_heads * LINEAR_HEAD, 1, KERNEL)
    for part in "ab":
        yield f"{name}.linear_attn.in_proj_{part}.weight", "BF16", (model.value_heads, model.hidden)
    yield f"{name}.linear_attn.in_proj_qkv.weight", "BF16", (all_heads * LINEAR_HEAD, model.hidden)
    yield f"{name}.linear_attn.in_proj_z.weight", "BF16", (values, model.hidden)
    yield f"{name}.linear_attn.out_proj.weight", "BF16", (model.hidden, values)


def make(folder: Path, size: str) -> int:
    """Write the checkpoint of that size into `folder`; the number of its parameters."""
    model = MODELS[size]
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copyfile(TOKENIZER / name, folder / name)
    (folder / "config.json").write_text(json.dumps(config(model), indent=2), encoding="utf-8")
    wanted = sorted(tensors(model), key=lambda tensor: tensor[1] != "F32")  # as safetensors does: wider types first
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, shape in wanted:
        end = at + math.prod(shape) * (4 if dtype == "F32" else 2)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.default_rng(1)
    normal = (random.standard_normal(1 << 16) * 0.02).astype(np.float32)
    table = (normal.view(np.uint32) >> 16).astype(np.uint16)  # bfloat16
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, dtype, shape in wanted:
            count = math.prod(shape)
            if dtype == "F32":
                file.write(random.random(count, np.float32).tobytes())
                continue
            for start in range(0, count, CHUNK):
                drawn = np.frombuffer(random.bytes(2 * min(CHUNK, count - start)), np.uint16)
                file.write(table[drawn].tobytes())
    return sum(math.prod(shape) for _, _, shape in wanted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=list(MODELS), required=True)
    options = parser.parse_args()
    print(make(options.folder, options.size))
    return 0


if __name__ == "__main__":
    sys.exit(main())
