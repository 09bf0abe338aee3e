"""What a GGUF file is, as plain data ready for JSON: the substance of `hf2q info`. Reads no weight, no vocabulary."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from hf2q.formats.gguf.reader import GgufFile
from hf2q.formats.gguf.shards import SPLIT_COUNT, SPLIT_NO
from hf2q.formats.gguf.table import GgufTensor
from hf2q.types import ValueType

_SHOWN = 8
_TOKENIZER = "tokenizer."
_MODEL_KEY = "tokenizer.ggml.model"
_TOKENS_KEY = "tokenizer.ggml.tokens"
_TEMPLATE_KEY = "tokenizer.chat_template"


def describe(file: GgufFile, *others: GgufFile) -> dict[str, Any]:
    """A summary of an open file; `others` are the further shards of a model in several, `file` the first.

    What is counted is counted over all shards; metadata, version and offsets are the first one's.

    Returns: a dict of

    path, size, version, alignment, data_offset, arch   arch is None when the file does not name one
    metadata        a list in file order of {key, type, value} for scalars and {key, type, element, length, head} for
                    arrays; `head` holds the first 8 elements, none for arrays of the tokenizer
    tensors         a list in file order of {name, shape, qtype, nbytes}; shape in numpy order
    qtypes          {qtype: {tensors, parameters, nbytes}}
    parameters, tensor_bytes, bits_per_weight           over all tensors; bits_per_weight None without any weight
    trailing_bytes  bytes after the last tensor and its padding
    files           a list of {path, size, tensors} with the number of tensors in each
    shard           {index, count} of a file that says that it is one of several, counted from 0; else None
    tokenizer       {model, pre, tokens, merges, special_ids, add} or None when there is no tokenizer
    chat_template   {length (in characters), named} or None

    Numbers that JSON lacks (NaN, infinities) appear as text.
    """
    files = (file, *others)
    arch = file.metadata.get("general.architecture")
    tensors = tuple(tensor for one in files for tensor in one.tensors.values())
    parameters = sum(tensor.elements for tensor in tensors)
    nbytes = sum(tensor.nbytes for tensor in tensors)
    return {
        "path": file.path,
        "size": sum(one.size for one in files),
        "version": file.version,
        "alignment": file.alignment,
        "data_offset": file.data_offset,
        "arch": arch if isinstance(arch, str) else None,
        "parameters": parameters,
        "tensor_bytes": nbytes,
        "bits_per_weight": round(nbytes * 8 / parameters, 4) if parameters else None,
        "trailing_bytes": sum(one.size - one.data_end for one in files),
        "files": [{"path": one.path, "size": one.size, "tensors": len(one.tensors)} for one in files],
        "shard": _shard(file),
        "qtypes": _by_qtype(tensors),
        "tokenizer": _tokenizer(file),
        "chat_template": _chat_template(file),
        "metadata": [_entry(file, key) for key in file.metadata],
        "tensors": [
            {"name": tensor.name, "shape": list(tensor.shape), "qtype": tensor.qtype, "nbytes": tensor.nbytes}
            for tensor in tensors
        ],
    }


def _entry(file: GgufFile, key: str) -> dict[str, Any]:
    metadata = file.metadata
    kind = metadata.type_of(key)
    if kind is not ValueType.ARRAY:
        return {"key": key, "type": kind.name, "value": _plain(metadata[key])}
    element = metadata.element_of(key)
    head = () if key.startswith(_TOKENIZER) else metadata.head(key, _SHOWN)
    return {
        "key": key,
        "type": kind.name,
        "element": element.name if element is not None else None,
        "length": metadata.length_of(key),
        "head": [_plain(value) for value in head],
    }


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _shard(file: GgufFile) -> dict[str, int] | None:
    index, count = file.metadata.get(SPLIT_NO), file.metadata.get(SPLIT_COUNT)
    if type(index) is not int or type(count) is not int or count < 2:
        return None
    return {"index": index, "count": count}


def _by_qtype(tensors: Iterable[GgufTensor]) -> dict[str, dict[str, int]]:
    totals: dict[str, dict[str, int]] = {}
    for tensor in tensors:
        total = totals.setdefault(tensor.qtype, {"tensors": 0, "parameters": 0, "nbytes": 0})
        total["tensors"] += 1
        total["parameters"] += tensor.elements
        total["nbytes"] += tensor.nbytes
    return dict(sorted(totals.items(), key=lambda item: -item[1]["nbytes"]))


def _tokenizer(file: GgufFile) -> dict[str, Any] | None:
    scalars = {
        key: file.metadata[key]
        for key in file.metadata
        if key.startswith(_TOKENIZER) and file.metadata.type_of(key) is not ValueType.ARRAY
    }
    if _MODEL_KEY not in scalars and _TOKENS_KEY not in file.metadata:
        return None
    prefix = "tokenizer.ggml."
    return {
        "model": scalars.get(_MODEL_KEY),
        "pre": scalars.get("tokenizer.ggml.pre"),
        "tokens": _length(file, _TOKENS_KEY),
        "merges": _length(file, "tokenizer.ggml.merges"),
        "special_ids": {
            key.removeprefix(prefix).removesuffix("_token_id"): value
            for key, value in scalars.items()
            if key.startswith(prefix) and key.endswith("_token_id")
        },
        "add": {key.removeprefix(prefix): value for key, value in scalars.items() if key.startswith(f"{prefix}add_")},
    }


def _length(file: GgufFile, key: str) -> int | None:
    if key not in file.metadata or file.metadata.element_of(key) is None:
        return None
    return file.array_length(key)


def _chat_template(file: GgufFile) -> dict[str, Any] | None:
    named = [key.removeprefix(_TEMPLATE_KEY + ".") for key in file.metadata if key.startswith(_TEMPLATE_KEY + ".")]
    text = file.metadata.get(_TEMPLATE_KEY)
    if not isinstance(text, str) and not named:
        return None
    return {"length": len(text) if isinstance(text, str) else None, "named": named}
