"""Small random checkpoints in the layouts in which the family is published; the same on every machine.

``python bert_variants.py FOLDER`` writes them, for the reference tools to convert (see data/PROVENANCE.md).
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from pathlib import Path

import numpy as np

from hf2q.testing.tiny_tokenizers import write_bert_tokenizer

MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]


def bert_config(**changes):
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": 120,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 48,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
        **changes,
    }


def nomic_config(**changes):
    return {
        "architectures": ["NomicBertModel"],
        "model_type": "nomic_bert",
        "vocab_size": 120,
        "n_embd": 64,
        "n_inner": 96,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 8192,
        "max_trained_positions": 2048,
        "type_vocab_size": 2,
        "layer_norm_epsilon": 1e-12,
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "activation_function": "swiglu",
        "causal": False,
        "prenorm": False,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "pad_vocab_size_multiple": 64,
        "use_rms_norm": False,
        **changes,
    }


def native_config(**changes):
    """The same model as `nomic_config` in transformers' keys."""
    return {
        "architectures": ["NomicBertModel"],
        "model_type": "nomic_bert",
        "vocab_size": 120,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
        **changes,
    }


def bert_shapes(c, *, prefix="", old=False, labels=0, heads=False):
    """Shapes by name. old: norms in TensorFlow's words; heads: pooler and language-model heads, ignored."""
    d, f, v = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (v, d),
        "embeddings.position_embeddings.weight": (c["max_position_embeddings"], d),
        "embeddings.token_type_embeddings.weight": (c["type_vocab_size"], d),
    }

    def norm(name):
        shapes.update({f"{name}.{'gamma' if old else 'weight'}": (d,), f"{name}.{'beta' if old else 'bias'}": (d,)})

    def linear(name, rows, columns):
        shapes.update({f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)})

    norm("embeddings.LayerNorm")
    for i in range(c["num_hidden_layers"]):
        own = f"encoder.layer.{i}."
        for part in ("query", "key", "value"):
            linear(f"{own}attention.self.{part}", d, d)
        linear(f"{own}attention.output.dense", d, d)
        norm(f"{own}attention.output.LayerNorm")
        linear(f"{own}intermediate.dense", f, d)
        linear(f"{own}output.dense", d, f)
        norm(f"{own}output.LayerNorm")
    if heads:
        linear("pooler.dense", d, d)
    shapes = {prefix + name: shape for name, shape in shapes.items()}
    if heads:
        linear("cls.predictions.transform.dense", d, d)
        linear("cls.seq_relationship", 2, d)
        shapes["cls.predictions.bias"] = (v,)
    if labels:
        linear("classifier", labels, d)
    return shapes


def nomic_shapes(c):
    d, f = c["n_embd"], c["n_inner"]
    shapes = {
        "embeddings.word_embeddings.weight": (c["vocab_size"], d),
        "embeddings.token_type_embeddings.weight": (c["type_vocab_size"], d),
        "emb_ln.weight": (d,),
        "emb_ln.bias": (d,),
    }
    for i in range(c["n_layer"]):
        own = f"encoder.layers.{i}."
        shapes |= {f"{own}attn.Wqkv.weight": (3 * d, d), f"{own}attn.out_proj.weight": (d, d)}
        shapes |= {f"{own}mlp.{part}.weight": (f, d) for part in ("fc11", "fc12")}
        shapes[f"{own}mlp.fc2.weight"] = (d, f)
        shapes |= {f"{own}{norm}.{part}": (d,) for norm in ("norm1", "norm2") for part in ("weight", "bias")}
    return shapes


def native_names(arrays):
    """Nomic's tensors in transformers' names, with separate projections."""
    words = (
        ("encoder.layers", "layers"),
        ("emb_ln", "embeddings.LayerNorm"),
        ("attn.out_proj", "self_attn.o_proj"),
        ("fc11", "up_proj"),
        ("fc12", "gate_proj"),
        ("fc2", "down_proj"),
        ("norm1", "post_attention_layernorm"),
        ("norm2", "post_mlp_layernorm"),
    )
    renamed = {}
    for name, array in arrays.items():
        for old, new in words:
            name = name.replace(old, new)
        if "attn.Wqkv" in name:
            for part, third in zip("qkv", np.split(array, 3), strict=True):
                renamed[name.replace("attn.Wqkv", f"self_attn.{part}_proj")] = third
        else:
            renamed[name] = array
    return renamed


def random_arrays(shapes):
    """float32 by name; every tensor's numbers depend on its name and shape alone."""
    return {
        name: (np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape) * 0.1).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_checkpoint(folder, config, arrays, *, dtype="F32", pooling=None, modules=None, extra=None):
    """A complete checkpoint directory. pooling: the Pooling module's config.json; extra: further integer tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header, parts, offset = {}, [], 0
    for name, array in {**arrays, **(extra or {})}.items():
        kind = "I64" if array.dtype == np.int64 else dtype
        if kind == "BF16":
            data = (array.view(np.uint32) >> 16).astype("<u2").tobytes()
        else:
            data = array.astype({"F32": "<f4", "F16": "<f2", "I64": "<i8"}[kind]).tobytes()
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        parts.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
    write_bert_tokenizer(folder, config["vocab_size"])
    if pooling is not None:
        (folder / "modules.json").write_text(json.dumps(modules or MODULES))
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def _masked(folder):
    config = bert_config(architectures=["BertForMaskedLM"], layer_norm_eps=1e-5)
    arrays = random_arrays(bert_shapes(config, prefix="bert.", old=True, heads=True))
    ids = {"bert.embeddings.position_ids": np.arange(48)[None]}
    return write_checkpoint(folder, config, arrays, extra=ids, pooling={"pooling_mode_cls_token": True})


def _one_type(folder):
    config = bert_config(type_vocab_size=1, num_hidden_layers=1)
    last = {"pooling_mode_lasttoken": True, "word_embedding_dimension": 64}
    return write_checkpoint(folder, config, random_arrays(bert_shapes(config)), dtype="BF16", pooling=last)


def _labels(folder):
    config = bert_config(id2label={str(i): f"class {i}" for i in range(12)}, num_attention_heads=2)
    arrays = random_arrays(bert_shapes(config, labels=12))
    return write_checkpoint(folder, config, arrays, dtype="F16", pooling={"pooling_mode": "mean"})


def _nomic(folder):
    config = nomic_config()
    mean = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    return write_checkpoint(folder, config, random_arrays(nomic_shapes(config)), pooling=mean)


def _nomic_short(folder):
    config = nomic_config(n_positions=2048, rotary_emb_base=10000, type_vocab_size=1, layer_norm_epsilon=1e-5)
    return write_checkpoint(folder, config, random_arrays(nomic_shapes(config)), dtype="BF16")


VARIANTS = {
    "masked": _masked,
    "one-type": _one_type,
    "labels": _labels,
    "nomic": _nomic,
    "nomic-short": _nomic_short,
}
"""Name to a function that writes it into a folder and returns that."""

if __name__ == "__main__":
    for name, write in VARIANTS.items():
        write(Path(sys.argv[1]) / name)
