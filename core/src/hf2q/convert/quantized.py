"""What a checkpoint says about weights that are stored quantized: taken where it is understood, refused by name else.

Taken are weights in FP8 (E4M3) and FP4 (E2M1), whose values times their scales are the model's weights; how those are
stored is told by the tensors themselves (`hf2q.convert.scaled`), so little of the configuration is needed. Everything
else that is known by its ``quant_method`` is refused with what to do instead.

Sources: transformers, utils/quantization_config.py (`QuantizationMethod`); llama.cpp, conversion/base.py,
`dequant_model` (which forms of ``compressed-tensors`` and ``modelopt`` hold FP8).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hf2q.errors import ConfigError
from hf2q.formats.strict_json import parse
from hf2q.formats.tokenizer.files import read_bounded
from hf2q.types import Record

MAX_BYTES = 16 << 20
KEYS = ("quantization_config", "quantization", "compression_config")
SIDE_FILE = "hf_quant_config.json"
NAMES: Mapping[str, str] = MappingProxyType(
    {
        "gptq": "GPTQ",
        "awq": "AWQ",
        "bitsandbytes": "bitsandbytes",
        "hqq": "HQQ",
        "aqlm": "AQLM",
        "quip": "QuIP#",
        "eetq": "EETQ",
        "quanto": "Quanto",
        "torchao": "torchao",
        "higgs": "HIGGS",
        "vptq": "VPTQ",
        "spqr": "SpQR",
        "fp_quant": "FP-Quant",
        "auto-round": "AutoRound",
        "bitnet": "BitNet",
        "fbgemm_fp8": "FBGEMM FP8",
        "mxfp4": "MXFP4",
        "quark": "Quark",
        "sinq": "SINQ",
    }
)
"""Values of ``quant_method``, as people call them."""

HINT = "convert the unquantized checkpoint that this one was made from"


class Stated(Record, frozen=True, kw_only=True):
    """What is said about scaled weights: the method's name, and rows and columns of a block, None when unsaid."""

    method: str
    block: tuple[int, int] | None = None


def read_quantization(directory: Path, config: Mapping[str, Any]) -> Stated | None:
    """What `config` (the parsed ``config.json``) and files beside it say; None when nothing is quantized.

    Errors: ConfigError naming the method and the place, for whatever is not read.
    """
    text = config.get("text_config")
    for place, prefix in ((config, ""), (text if isinstance(text, Mapping) else {}, "text_config.")):
        for key in KEYS:
            if place.get(key) is not None:
                return _taken(place[key], f"{directory / 'config.json'} has {prefix}{key}")
    data = read_bounded(directory / SIDE_FILE, MAX_BYTES)
    if data is None:
        return None
    found = parse(data, str(directory / SIDE_FILE))
    inner = found.get("quantization") if isinstance(found, dict) else None
    return _taken(
        {"quant_method": "modelopt", **(inner if isinstance(inner, dict) else {})}, f"{directory / SIDE_FILE}"
    )


def _taken(found: Any, where: str) -> Stated:
    if not isinstance(found, Mapping):
        raise _refusal(where, f"{str(found)[:60]!r}")
    method = found.get("quant_method")
    if method == "fp8":
        return _fp8(found, where)
    if method == "compressed-tensors":
        return _compressed_tensors(found, where)
    if method == "modelopt":
        if found.get("quant_algo") != "FP8":
            raise _refusal(where, f"ModelOpt {found.get('quant_algo')}")
        return Stated(method="modelopt")
    if method is None and "bits" in found:  # also what MLX calls quantization_config, for other programs to see
        raise _refusal(where, f"MLX, {found['bits']} bits", "convert the checkpoint that the MLX model was made from")
    raise _refusal(where, NAMES.get(str(method).lower(), str(method)[:60]))


def _fp8(found: Mapping[str, Any], where: str) -> Stated:
    form = found.get("fmt", "e4m3")
    if form != "e4m3":
        raise _refusal(where, f"FP8 {str(form)[:20]}")
    return Stated(method="fp8", block=_block(found.get("weight_block_size"), f"{where}.weight_block_size"))


def _compressed_tensors(found: Mapping[str, Any], where: str) -> Stated:
    form, groups = found.get("format"), found.get("config_groups")
    if form != "float-quantized" or not isinstance(groups, Mapping) or not groups:
        raise _refusal(where, f"compressed-tensors {str(form)[:40]}")
    blocks = set()
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping) or not _plain_fp8(weights):
            raise _refusal(f"{where}: {name}", f"compressed-tensors {str(weights)[:80]}")
        blocks.add(_block(weights.get("block_structure"), f"{where}: {name}.weights.block_structure"))
    for key in ("sparsity_config", "transform_config"):
        if found.get(key):
            raise _refusal(where, f"compressed-tensors with {key}")
    return Stated(method="compressed-tensors", block=blocks.pop() if len(blocks) == 1 else None)


def _plain_fp8(weights: Mapping[str, Any]) -> bool:
    kind = (weights.get("type"), weights.get("num_bits"))
    return kind == ("float", 8) and weights.get("symmetric", True) is True and weights.get("group_size") is None


def _block(value: Any, where: str) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or any(type(size) is not int or size < 1 for size in value):
        raise ConfigError(f"{where} is {str(value)[:60]}, expected two sizes, rows and columns of a block")
    return value[0], value[1]


def _refusal(where: str, method: str, hint: str = HINT) -> ConfigError:
    return ConfigError(f"{where} ({method}): the weights are quantized already, and this form is not read", hint=hint)
