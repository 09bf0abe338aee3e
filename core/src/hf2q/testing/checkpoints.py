"""Tiny random checkpoints for tests of families: made from the catalog's own expansion, the same on every machine.

    write_checkpoint(folder, plugins, "example", config)

writes config.json, model.safetensors, tokenizer.json and tokenizer_config.json. Every tensor's numbers depend on its
name and the seed alone, so reference logits can be recorded once with another implementation (whose weights
`checkpoint_arrays` gives) and stay valid.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Collection, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf2q.errors import UsageError
from hf2q.formats.tokenizer.alphabet import CHAR_OF_BYTE
from hf2q.testing.tiny_tokenizers import write_bert_tokenizer, write_gemma4_tokenizer
from hf2q.types import (
    ArchEntry,
    HParams,
    PreTokenizer,
    Shape,
    TensorCatalog,
    TensorInfo,
    TensorRule,
    TensorSpec,
    resolve,
)

if TYPE_CHECKING:
    from hf2q.plugins import Plugins
    from hf2q.types import Float32

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (("Ġ", "t"), ("h", "e"), ("i", "n"), ("Ġt", "he"), ("1", "2"), ("Ã", "©"))
Shapes = Mapping[str, tuple[str | int, ...]]


class TinyCheckpoint:
    """What a checkpoint of one family with this configuration consists of; nothing is written yet.

    config   parsed ``config.json``
    shapes   shapes, in the catalog's symbols, of checkpoint tensors that a transform changes, by the name in the rule
             (``layers.{i}.conv1d.weight``); without it a tensor has the shape of what it becomes, an expert that
             without its first size
    leave_out  names of rules (GGUF names), or of single tensors (``blk.3.attn_v.weight``), which the checkpoint
             lacks; ``output.weight`` is left out by itself when the config ties the embeddings
    mtp      whether it has MTP blocks
    projector  whether it is the tower of the arch's projector and nothing else; `config` holds the image processor's
             settings too, under ``preprocessor_config``, which is written as a file of its own, without a tokenizer
    """

    def __init__(
        self,
        plugins: Plugins,
        arch: str,
        config: Mapping[str, Any],
        *,
        shapes: Shapes | None = None,
        leave_out: Collection[str] = (),
        mtp: bool = False,
        projector: bool = False,
        seed: int = 0,
    ) -> None:
        self.entry: ArchEntry = plugins.arch(arch)
        described = plugins.projector(self.entry.projector) if projector else self.entry
        self.projector = projector
        self.catalog: TensorCatalog = plugins.catalog(described.catalog)
        self.kind: type[HParams] = resolve(described.hparams)
        self.config = {"architectures": [self.entry.hf_architectures[0]], **config}
        self.shapes = dict(shapes or {})
        self.leave_out = {*leave_out, *(["output.weight"] if self._tied() else [])}
        self.seed = seed
        make = self.kind.from_config
        # families may look at tensor names to see what a checkpoint has: those that do not depend on sizes come first
        self.hparams: HParams = make(self.config, [_info(name, ()) for name in self._outer_names(mtp)], mtp=mtp)
        expanded = self.catalog.expand(self.hparams)
        self.specs = tuple(spec for spec in expanded if not {spec.name, spec.rule.name} & self.leave_out)
        self.tensors = {name: shape for spec in self.specs for name, shape in self._inputs(spec)}
        again: HParams = make(self.config, self.infos(), mtp=mtp)
        if again != self.hparams:
            raise UsageError(f"hparams of {arch} change with the tensors: {again!r}, expected {self.hparams!r}")

    def infos(self) -> list[TensorInfo]:
        """The checkpoint's tensors as a header lists them."""
        return [_info(name, shape) for name, shape in sorted(self.tensors.items())]

    def arrays(self) -> dict[str, Float32]:
        """The weights by checkpoint name, float32; those of tables are numbers of experts."""
        tables = {name for spec in self.specs if spec.rule.stored_as == "I32" for name, _ in self._inputs(spec)}
        made = {name: weights(name, shape, self.seed) for name, shape in sorted(self.tensors.items())}
        for name in tables:
            spread = np.floor(np.abs(made[name]) * 1000)
            made[name] = (spread % self.hparams.symbols["n_expert"]).astype(np.float32)
        return made

    def write(self, folder: Path, *, pre: PreTokenizer | None = None) -> Path:
        """Write all files; `pre` is the tokenizer's structure, by default the family's first. Returns `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        config = dict(self.config)
        if self.projector:
            images = config.pop("preprocessor_config", {})
            (folder / "preprocessor_config.json").write_text(json.dumps(images), encoding="utf-8")
        (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
        write_safetensors(folder / "model.safetensors", self.arrays())
        if self.projector:
            return folder
        write_tokenizer(folder, pre or self.entry.pre_tokenizers[0], self.hparams.symbols["n_vocab"])
        return folder

    def _tied(self) -> bool:
        text = self.config.get("text_config")
        return self.config.get("tie_word_embeddings") is True or (
            isinstance(text, Mapping) and text.get("tie_word_embeddings") is True
        )

    def _outer_names(self, mtp: bool) -> list[str]:
        names = []
        for rule in self.catalog.rules:
            if not rule.hf:
                continue
            name = rule.hf[0].replace("{j}", "0")
            if rule.name not in self.leave_out and "{" not in name and (mtp or not _of_mtp(rule)):
                names += name.split("+")
        return names

    def _inputs(self, spec: TensorSpec) -> list[tuple[str, Shape]]:
        symbols = self.hparams.symbols
        found: list[tuple[str, Shape]] = []
        if not spec.inputs:
            return found
        for name in spec.inputs[0]:
            template = template_of(spec, name)
            stated = self.shapes.get(template)
            if stated is not None:
                shape: Shape = tuple(size if isinstance(size, int) else symbols[size] for size in stated)
            else:
                shape = spec.shape[1:] if "{e}" in template else spec.shape
            found.append((name, shape))
        return found


def template_of(spec: TensorSpec, name: str) -> str:
    """The name in the rule that the checkpoint tensor `name`, an input of `spec`, comes from."""
    return next(part for part in spec.rule.hf[0].split("+") if _matches(part, name))


def _of_mtp(rule: TensorRule) -> bool:
    return bool(rule.layers) and all(kind.startswith("mtp") for kind in rule.layers)


def _matches(template: str, name: str) -> bool:
    """Whether `name` is `template` with numbers for its placeholders."""
    pattern = re.escape(template)
    for placeholder in ("{i}", "{j}", "{e}"):
        pattern = pattern.replace(re.escape(placeholder), r"\d+")
    return re.fullmatch(pattern, name) is not None


def _info(name: str, shape: Shape) -> TensorInfo:
    return TensorInfo(
        name=name, shape=shape, dtype="F32", file="model.safetensors", offset=0, nbytes=4 * prod(shape, start=1)
    )


def weights(name: str, shape: Shape, seed: int) -> Float32:
    """The numbers of one tensor: norms near 1, matrices scaled so that activations keep their size.

    Embeddings are as small as trained ones, so that the epsilon of the first norm shows in the logits.
    """
    random = np.random.RandomState((zlib.crc32(name.encode()) + seed) % (1 << 32))
    values = random.standard_normal(shape)
    if len(shape) <= 1:
        values = 1 + 0.2 * values if name.endswith("norm.weight") else 0.5 * values
    else:
        values = values * (0.02 if "embed" in name else shape[-1] ** -0.5)
    return values.astype(np.float32)


def write_safetensors(path: Path, arrays: Mapping[str, Float32]) -> None:
    """Write float32 arrays as a safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array, "<f4").tobytes())


def write_tokenizer(folder: Path, pre: PreTokenizer, n_vocab: int) -> None:
    """Write a byte-level tokenizer with the structure of `pre`: 256 bytes, a few merges, ChatML marks.

    One of another kind than byte-level BPE is written by `hf2q.testing.tiny_tokenizers`.
    Errors: UsageError when the vocabulary has no room for them, or no tiny tokenizer of the kind is known.
    """
    if pre.model == "gemma4":
        write_gemma4_tokenizer(folder, n_vocab)
        return
    if pre.model == "bert":
        write_bert_tokenizer(folder, n_vocab)
        return
    if pre.model != "gpt2":
        raise UsageError(f"no tiny tokenizer of the model {pre.model!r} is known, expected gpt2, gemma4 or bert")
    plain = [*(CHAR_OF_BYTE[byte] for byte in range(256)), *(left + right for left, right in MERGES)]
    if n_vocab < len(plain) + len(SPECIAL):
        raise UsageError(
            f"a vocabulary of {n_vocab} has no room for the {len(plain) + len(SPECIAL)} tokens of a tiny tokenizer",
            hint=f"set vocab_size to {len(plain) + len(SPECIAL)} or more in the tiny config",
        )
    steps: list[dict[str, Any]] = [{"type": "Digits", "individual_digits": True}] if pre.digits else []
    steps += [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False} for regex in pre.split
    ]
    steps.append(
        {
            "type": "ByteLevel",
            "add_prefix_space": pre.add_prefix_space,
            "trim_offsets": False,
            "use_regex": False,
        }
    )
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": len(plain) + place,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for place, text in enumerate(SPECIAL)
        ],
        "normalizer": {"type": pre.normalizer} if pre.normalizer else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre.ignore_merges,
            "vocab": {text: number for number, text in enumerate(plain)},
            "merges": [list(pair) for pair in MERGES],
        },
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[0], "pad_token": SPECIAL[0]}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
