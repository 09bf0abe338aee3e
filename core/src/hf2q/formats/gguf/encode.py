"""The header of a GGUF file as bytes: pure functions from a plan to what is written. Used by `writer`.

Source of the layout: see `layout`. Everything that a plugin can get wrong raises ContractError here, before a file
exists.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

from hf2q.errors import ContractError, FormatError
from hf2q.formats.ggml_types import GGML_TYPES, row_bytes
from hf2q.formats.gguf.layout import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    FORMATS,
    MAGIC,
    MAX_ALIGNMENT,
    MAX_DIMS,
    MAX_KEY_BYTES,
    MAX_NAME_BYTES,
    MIN_ALIGNMENT,
    VERSION,
    padded,
    plan_offsets,
    valid_alignment,
)
from hf2q.types import MetadataField, TensorPlan, ValueType

_FLOATS = (ValueType.FLOAT32, ValueType.FLOAT64)


def encode_header(metadata: Sequence[MetadataField], tensors: Sequence[TensorPlan]) -> bytes:
    """Everything before the tensor data, padding included.

    Errors: ContractError for doubles, bad names, values outside their type, and tensors whose bytes or offsets are not
    what their shapes and the alignment give.
    """
    alignment = alignment_of(metadata)
    check_tensors(tensors, alignment)
    parts = [MAGIC, struct.pack("<Iqq", VERSION, len(tensors), len(metadata))]
    seen: set[str] = set()
    for field in metadata:
        if field.key in seen:
            raise ContractError(f"key {field.key!r} occurs twice in the metadata")
        seen.add(field.key)
        parts.append(encode_field(field))
    parts.extend(_encode_tensor(tensor) for tensor in tensors)
    header = b"".join(parts)
    return header.ljust(padded(len(header), alignment), b"\0")


def alignment_of(metadata: Sequence[MetadataField]) -> int:
    """The alignment that the metadata asks for, 32 when it says nothing."""
    for field in metadata:
        if field.key == ALIGNMENT_KEY:
            valid = field.type is ValueType.UINT32 and isinstance(field.value, int) and valid_alignment(field.value)
            if not valid:
                raise ContractError(
                    f"{ALIGNMENT_KEY} is {field.value!r} ({field.type.name}), expected a UINT32 power of two "
                    f"from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}"
                )
            return int(field.value)
    return DEFAULT_ALIGNMENT


def check_tensors(tensors: Sequence[TensorPlan], alignment: int) -> None:
    """Check names, shapes, sizes and offsets of a plan's tensors. Errors: ContractError."""
    seen: set[str] = set()
    offsets = plan_offsets((tensor.nbytes for tensor in tensors), alignment)
    for tensor, offset in zip(tensors, offsets, strict=True):
        if tensor.name in seen:
            raise ContractError(f"tensor {tensor.name!r} occurs twice in the plan")
        seen.add(tensor.name)
        if not tensor.name or "\0" in tensor.name or len(_utf8(tensor.name, "a tensor name")) > MAX_NAME_BYTES:
            raise ContractError(
                f"{tensor.name!r} cannot name a tensor: expected 1 to {MAX_NAME_BYTES} bytes, none zero"
            )
        if len(tensor.shape) > MAX_DIMS or any(size < 0 for size in tensor.shape):
            raise ContractError(
                f"tensor {tensor.name!r} has the shape {tensor.shape}, expected at most {MAX_DIMS} sizes"
            )
        try:
            expected = math.prod(tensor.shape[:-1]) * row_bytes(tensor.qtype, tensor.shape[-1] if tensor.shape else 1)
        except FormatError as error:
            raise ContractError(f"tensor {tensor.name!r}: {error.message}") from None
        if tensor.nbytes != expected:
            raise ContractError(
                f"tensor {tensor.name!r} is planned with {tensor.nbytes} bytes, "
                f"but {tensor.shape} as {tensor.qtype} has {expected}"
            )
        if tensor.offset != offset:
            raise ContractError(f"tensor {tensor.name!r} is planned at offset {tensor.offset}, expected {offset}")


def encode_field(field: MetadataField) -> bytes:
    """One key with its value. Errors: ContractError when the value does not fit its type."""
    key = _utf8(field.key, "a key")
    if not 0 < len(key) <= MAX_KEY_BYTES:
        raise ContractError(f"key {field.key[:80]!r} has {len(key)} bytes, expected 1 to {MAX_KEY_BYTES}")
    head = struct.pack("<Q", len(key)) + key + struct.pack("<i", field.type)
    if field.type is not ValueType.ARRAY:
        if field.element is not None:
            raise ContractError(f"key {field.key!r} is no array, but has the element type {field.element.name}")
        return head + _encode_values(field.key, field.type, (field.value,))
    if field.element is None or field.element is ValueType.ARRAY:
        raise ContractError(f"key {field.key!r} is an array of {field.element!r}, expected a scalar element type")
    if isinstance(field.value, str | bytes) or not isinstance(field.value, Sequence):
        raise ContractError(f"key {field.key!r} is an array, but its value is of type {type(field.value).__name__}")
    body = _encode_values(field.key, field.element, field.value)
    return head + struct.pack("<iQ", field.element, len(field.value)) + body


def _encode_values(key: str, kind: ValueType, values: Sequence[Any]) -> bytes:
    if kind is ValueType.STRING:
        pack = struct.Struct("<Q").pack
        parts: list[bytes] = []
        for value in values:
            text = _utf8(value, f"a value of {key!r}")
            parts += (pack(len(text)), text)
        return b"".join(parts)
    allowed: type | tuple[type, ...] = bool if kind is ValueType.BOOL else (int, float) if kind in _FLOATS else int
    for value in values:
        if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not ValueType.BOOL):
            raise ContractError(f"key {key!r} holds {value!r} ({type(value).__name__}), expected {kind.name}")
    try:
        return struct.pack(f"<{len(values)}{FORMATS[kind]}", *values)
    except (struct.error, OverflowError) as error:
        raise ContractError(f"key {key!r} holds a value that does not fit {kind.name}: {error}") from None


def _encode_tensor(tensor: TensorPlan) -> bytes:
    name = tensor.name.encode()
    sizes = tuple(reversed(tensor.shape))
    try:
        return struct.pack(
            f"<Q{len(name)}sI{len(sizes)}qiQ",
            len(name),
            name,
            len(sizes),
            *sizes,
            GGML_TYPES[tensor.qtype].id,
            tensor.offset,
        )
    except struct.error as error:
        raise ContractError(
            f"tensor {tensor.name!r} of shape {tensor.shape} does not fit a GGUF table: {error}"
        ) from None


def _utf8(text: Any, what: str) -> bytes:
    if not isinstance(text, str):
        raise ContractError(f"{what} is {text!r} ({type(text).__name__}), expected text")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ContractError(f"{what} is {text!r}, which UTF-8 cannot represent: {error.reason}") from None
