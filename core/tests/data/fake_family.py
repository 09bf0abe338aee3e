"""A family small enough to see through, for the tests of catalog, plan and conversion. Loaded by `load_fake`.

One table, blocks of one matrix, one doubled vector and one matrix that some blocks keep as single experts.
"""

import json

import numpy as np

from hf2q import rows
from hf2q.errors import LoadError
from hf2q.hookspecs import hookimpl
from hf2q.types import (
    ArchEntry,
    MetadataField,
    PreTokenizer,
    Recipe,
    Record,
    TensorCatalog,
    TensorRule,
    TypeChoice,
)

HF2Q_PLUGIN_API = 1
PRE = PreTokenizer(name="fake", split=(r"\s+|\S+",))


class FakeHParams(Record, frozen=True, kw_only=True):
    n_layer: int
    n_mtp: int
    n_vocab: int
    n_embd: int
    n_expert: int

    @classmethod
    def from_config(cls, config, tensors, *, mtp):
        blocks = 1 if mtp and any(t.name.startswith("mtp.") for t in tensors) else 0
        return cls(
            n_layer=config["layers"] + blocks,
            n_mtp=blocks,
            n_vocab=config["vocab"],
            n_embd=config["width"],
            n_expert=config.get("experts", 0),
        )

    @classmethod
    def from_metadata(cls, metadata):
        if "fake.embedding_length" not in metadata:
            raise LoadError("GGUF metadata lacks fake.embedding_length")
        return cls(
            n_layer=metadata["fake.block_count"],
            n_mtp=0,
            n_vocab=len(metadata["tokenizer.ggml.tokens"]),
            n_embd=metadata["fake.embedding_length"],
            n_expert=0,
        )

    @property
    def layer_kinds(self):
        return ("block",) * (self.n_layer - self.n_mtp) + ("mtp",) * self.n_mtp

    @property
    def symbols(self):
        return {"n_vocab": self.n_vocab, "n_embd": self.n_embd, "n_expert": self.n_expert}

    def metadata(self):
        return (
            MetadataField.u32("fake.block_count", self.n_layer),
            MetadataField.u32("general.file_type", 0),
            MetadataField.u32("fake.embedding_length", self.n_embd),
        )


def doubled(inputs, spec, hparams):
    return rows.elementwise(inputs[0], lambda x: x * np.float32(2))


def stacked(inputs, spec, hparams):
    return inputs[0] if len(inputs[0].shape) == 3 else rows.stack(inputs)


def block_rules(prefix, kind):
    return (
        TensorRule(
            name="blk.{i}.ffn_up.weight", hf=(f"{prefix}up.weight",), shape=("n_embd", "n_embd"), layers=(kind,)
        ),
        TensorRule(
            name="blk.{i}.attn_norm.weight",
            hf=(f"{prefix}norm.weight",),
            shape=("n_embd",),
            layers=(kind,),
            transform="fake_family:doubled",
            stored_as="F32",
        ),
        TensorRule(
            name="blk.{i}.ffn_down_exps.weight",
            hf=(f"{prefix}down", f"{prefix}experts.{{e}}.down"),
            shape=("n_expert", "n_embd", "n_embd"),
            layers=(kind,),
            transform="fake_family:stacked",
            optional=True,
        ),
        TensorRule(
            name="blk.{i}.ffn_gate_exps.weight",
            hf=(f"{prefix}gate", f"{prefix}experts.{{e}}.gate"),
            shape=("n_expert", "n_embd", "n_embd"),
            layers=(kind,),
            transform="fake_family:stacked",
            optional=True,
        ),
    )


CATALOG = TensorCatalog(
    name="fake",
    rules=(
        TensorRule(name="token_embd.weight", hf=("embed.weight",), shape=("n_vocab", "n_embd")),
        TensorRule(name="output.weight", hf=("head.weight",), shape=("n_vocab", "n_embd"), optional=True),
        *block_rules("layers.{i}.", "block"),
        *block_rules("mtp.{j}.", "mtp"),
    ),
    ignore=((r"vision\.", "no eyes"),),
    strip=("model.",),
    mtp=r"mtp\.",
)


@hookimpl
def hf2q_arch_entries():
    yield ArchEntry(
        arch="fake",
        hf_architectures=("FakeForCausalLM",),
        model_types=("fake",),
        hparams="fake_family:FakeHParams",
        catalog="fake",
        pre_tokenizers=(PRE,),
    )


@hookimpl
def hf2q_tensor_catalogs():
    yield CATALOG


def policy(recipe, tensors, facts, options):
    """Matrices get the recipe's type; the reason says what was seen."""
    for tensor in tensors:
        qtype = recipe.default if len(tensor.shape) > 1 else tensor.qtype
        yield TypeChoice(qtype=qtype, reason=f"{tensor.qtype} of {facts.n_layer}")


@hookimpl
def hf2q_recipes():
    """Quantizing recipes with types that core has."""
    for name in ("BF16", "F32"):
        yield Recipe(name=f"to-{name.lower()}", ftype=99, default=name, policy="fake_family:policy", quantizes=True)


def write_tokenizer(folder):
    """Byte-level BPE of the 256 bytes and one merge."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    vocab = {chr(b): b for b in printable} | {chr(256 + k): b for k, b in enumerate(rest)}
    split = {"type": "Split", "pattern": {"Regex": PRE.split[0]}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    model = {"type": "BPE", "unk_token": None, "byte_fallback": False, "ignore_merges": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": model | {"vocab": vocab | {"th": 256}, "merges": [["t", "h"]]},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def write_safetensors(path, tensors, metadata=None):
    """Arrays of float32 or float16 as one file."""
    header, blobs, offset = {"__metadata__": metadata} if metadata else {}, [], 0
    for name, x in tensors.items():
        dtype = {"float32": "F32", "float16": "F16", "uint16": "BF16", "uint8": "F8_E4M3"}[x.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [offset, offset + x.nbytes]}
        offset += x.nbytes
        blobs.append(x.tobytes())
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def write_checkpoint(folder, tensors=None, *, metadata=None, **config):
    """A complete directory; returns it. Default: two blocks of width 64."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = tensors_of() if tensors is None else tensors
    base = {"architectures": ["FakeForCausalLM"], "layers": 2, "vocab": 272, "width": 64}
    (folder / "config.json").write_text(json.dumps(base | config))
    write_safetensors(folder / "model.safetensors", tensors, metadata)
    write_tokenizer(folder)
    return folder


def tensors_of(layers=2, width=64, vocab=272, dtype=np.float32, seed=0):
    """Random values under checkpoint names."""
    rng = np.random.default_rng(seed)
    made = {"model.embed.weight": rng.standard_normal((vocab, width))}
    for i in range(layers):
        made[f"model.layers.{i}.up.weight"] = rng.standard_normal((width, width))
        made[f"model.layers.{i}.norm.weight"] = rng.standard_normal(width)
    return {name: x.astype(dtype) for name, x in made.items()}
