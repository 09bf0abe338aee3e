"""The plan of an MLX directory from a GGUF file: blocks repacked where that loses nothing, the rest decoded."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from hf2q.errors import ContractError, UsageError
from hf2q.types import FormatPlan, GgufView, Plan, Recipe, Record, Rows, Shape, TensorInfo, TensorPlan, TensorSpec
from hf2q_writer_mlx.codec import affine_codec, affine_name, storage_codec
from hf2q_writer_mlx.config import text_files
from hf2q_writer_mlx.names import Family, Part
from hf2q_writer_mlx.recipes import AUTO, FLOATS

log = logging.getLogger(__name__)

BITS = {"Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8, "Q4_K": 4, "Q5_K": 5}
"""GGUF types that are scale * code + bias in groups of 32, and the bits of a code; scales have to be F32."""
GROUP = 32
QWEN = "hf2q_arch_qwen35.transforms:"
SAME = ("", f"{QWEN}plus_one", f"{QWEN}down_experts", "hf2q_arch_gemma4.transforms:first_rows")
"""What GGUF has just as MLX wants it: mlx-lm adds one to norms as well, and rows left out have no token."""
HALVES = {f"{QWEN}gate_experts": 0, f"{QWEN}up_experts": 1}
"""Which of two parts of a checkpoint's tensor a GGUF tensor is."""
ORDERS = tuple(
    f"{QWEN}{name}" for name in ("attn_qkv", "attn_gate", "ssm_beta", "ssm_alpha", "ssm_dt", "ssm_conv1d", "ssm_out")
)
LOGARITHMS = {f"{QWEN}ssm_a": f"{QWEN}ssm_dt"}
"""GGUF has -exp of the values, in the order that the other transform makes."""


class Back(Record, frozen=True, kw_only=True):
    """One MLX tensor and the GGUF tensor it is made of; `order` is the transform whose order is undone, or ""."""

    spec: TensorSpec
    qtype: str
    name: str
    shape: Shape
    matrix: bool
    order: str = ""
    logarithm: bool = False
    half: str = ""


def plan_gguf(source: GgufView, recipe: Recipe, family: Family) -> FormatPlan:
    """Decide everything. Errors: UsageError for recipes that quantize, and naming a tensor that cannot be undone."""
    if recipe.name != AUTO and recipe.name not in FLOATS:
        raise UsageError(
            f"--quant {recipe.name} quantizes, and a GGUF file is repacked as it is or decoded",
            hint="--quant auto keeps its codes; for other bits convert the checkpoint",
        )
    found: list[Back] = []
    left_out: list[tuple[str, str]] = []
    for spec, qtype in source.tensors:
        made = _back(spec, qtype, family, source.config)
        if isinstance(made, str):
            left_out.append((spec.name, made))
        else:
            found += made
    tensors = tuple(_planned(found, source, recipe))
    _tell(found, tensors)
    metadata = text_files(source.config, family.keys(source.config), _quantization(tensors), source.text)
    plan = Plan(
        arch=source.arch,
        recipe=recipe.name,
        via="",
        metadata=tuple(metadata),
        tensors=tensors,
        ignored=tuple(left_out),
    )
    by_name = {back.name: (back, tensor) for back, tensor in zip(found, tensors, strict=True)}
    return FormatPlan(plan=plan, rows=lambda name: _rows(source, *by_name[name]), codec=storage_codec)


def _back(spec: TensorSpec, qtype: str, family: Family, config: Mapping[str, Any]) -> list[Back] | str:
    """What a GGUF tensor becomes, or why mlx-lm does without."""
    if not spec.inputs:
        return "computed from config.json"
    short = spec.inputs[0][0]
    whole = "text_config" in config and not short.startswith(("lm_head", "mtp"))
    prefix = "model.language_model." if whole else "" if short.startswith(("lm_head", "mtp")) else "model."
    info = TensorInfo(name=f"{prefix}{short}", shape=spec.shape, dtype="F32", file="", offset=0, nbytes=0)
    parts = family.names(info, config)
    if isinstance(parts, str):
        return parts
    transform = spec.rule.transform
    if transform in HALVES:
        parts = (parts[HALVES[transform]],)
        return [_part(spec, qtype, parts[0], split=False)]
    if transform not in (*SAME, *ORDERS, *LOGARITHMS):
        raise UsageError(
            f"{spec.name} cannot be taken back to what it was in the checkpoint: {transform} has no inverse here",
            hint="convert the checkpoint that the file was made from",
        )
    return [_part(spec, qtype, part, split=True) for part in parts]


def _part(spec: TensorSpec, qtype: str, part: Part, *, split: bool) -> Back:
    shape = spec.shape
    half = part.change if split and part.change in ("first_half", "second_half") else ""
    if half:
        shape = (*shape[:-2], shape[-2] // 2, shape[-1])
    elif part.change == "channels_last":
        shape = (*shape, 1)
    transform = spec.rule.transform
    order = LOGARITHMS.get(transform, transform if transform in ORDERS else "")
    return Back(
        spec=spec,
        qtype=qtype,
        name=part.name,
        shape=shape,
        matrix=part.kind == "matrix",
        order=order,
        logarithm=transform in LOGARITHMS,
        half=half,
    )


def _planned(found: list[Back], source: GgufView, recipe: Recipe) -> Iterator[TensorPlan]:
    offset = 0
    for back in found:
        qtype, reason = _type(back, source, recipe)
        nbytes = prod(back.shape[:-1]) * storage_codec(qtype).row_bytes(back.shape[-1])
        yield TensorPlan(
            name=back.name,
            shape=back.shape,
            qtype=qtype,
            via=qtype if qtype in FLOATS.values() else "F32",
            reason=reason,
            nbytes=nbytes,
            offset=offset,
            inputs=(back.spec.name,),
            transform=back.order or back.half,
            copied=affine_codec(qtype) is not None,
        )
        offset += nbytes


def _type(back: Back, source: GgufView, recipe: Recipe) -> tuple[str, str]:
    from hf2q_writer_mlx.repack import orders, whole_groups

    if recipe.name in FLOATS:
        return FLOATS[recipe.name], "as asked for"
    if back.logarithm:
        return "F32", "the logarithm of what the file has: rounded, not exact"
    if back.qtype in FLOATS.values():
        return back.qtype, "the file's own type"
    codec = source.codec(back.qtype)
    if not back.matrix:
        return "F32", f"decoded from {back.qtype}: mlx-lm does not quantize it"
    if back.qtype not in BITS or codec is None or not codec.affine:
        return "F32", f"decoded: {back.qtype} has no form in MLX"
    if back.order:
        try:
            whole_groups(orders(back.order, back.spec, source.hparams)[1], GROUP)
        except ContractError:
            return "F32", f"decoded from {back.qtype}: its columns do not move in groups of {GROUP}"
    return affine_name(BITS[back.qtype], GROUP, "F32"), f"{back.qtype}, repacked without loss"


def _tell(found: list[Back], tensors: tuple[TensorPlan, ...]) -> None:
    """Say what is larger than in the file, or not exact."""
    decoded = Counter(b.qtype for b, t in zip(found, tensors, strict=True) if t.reason.startswith("decoded"))
    if decoded:
        told = ", ".join(f"{count} of {qtype}" for qtype, count in sorted(decoded.items()))
        log.warning("tensors that MLX has no form for are decoded to F32, which is exact and large: %s", told)


def _quantization(tensors: tuple[TensorPlan, ...]) -> dict[str, Any] | None:
    """The most frequent bits, and by name every module that has others; None where nothing is quantized."""
    bits = {t.name.removesuffix(".weight"): codec.bits for t in tensors if (codec := affine_codec(t.qtype))}
    if not bits:
        return None
    usual = max(Counter(bits.values()).items(), key=lambda item: (item[1], item[0]))[0]
    told: dict[str, Any] = {"group_size": GROUP, "bits": usual, "mode": "affine"}
    others = {name: own for name, own in bits.items() if own != usual}
    return told | {name: {"group_size": GROUP, "bits": own, "mode": "affine"} for name, own in others.items()}


def _rows(source: GgufView, back: Back, tensor: TensorPlan) -> Rows:
    import numpy as np

    from hf2q_writer_mlx.repack import orders, plain_rows, repacked_rows

    order, columns = orders(back.order, back.spec, source.hparams) if back.order else (None, None)
    if back.half:
        both = np.arange(prod(back.spec.shape[:-1])).reshape(-1, 2, back.shape[-2])
        order = both[:, int(back.half == "second_half")].reshape(-1)
    if tensor.copied:
        return repacked_rows(source, back.spec.name, back.qtype, tensor.qtype, back.shape, order, columns)
    change = None
    if back.logarithm:
        change = lambda x: np.log(-x.astype(np.float64)).astype(np.float32)  # noqa: E731
    return plain_rows(source.rows(back.spec.name), back.shape, order, columns, change)
