"""``KEY=VALUE`` on the command line as typed GGUF metadata. Pure functions.

The type of a value is that of the key in the file; else the one given as ``KEY=TYPE:VALUE``; else the one every file
has the key in; else text, when it can be nothing else.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from hf2q.errors import UsageError
from hf2q.types import MetadataField, ValueType

TYPES = {
    "u8": ValueType.UINT8,
    "i8": ValueType.INT8,
    "u16": ValueType.UINT16,
    "i16": ValueType.INT16,
    "u32": ValueType.UINT32,
    "i32": ValueType.INT32,
    "u64": ValueType.UINT64,
    "i64": ValueType.INT64,
    "f32": ValueType.FLOAT32,
    "f64": ValueType.FLOAT64,
    "bool": ValueType.BOOL,
    "str": ValueType.STRING,
}
FLOATS = (ValueType.FLOAT32, ValueType.FLOAT64)
LARGEST_F32 = 3.4028235677973366e38
"""From here on a value rounds to infinity in 32 bits."""

WELL_KNOWN = (
    (r"general\.(quantized_by|name|author|version|organization|finetune|basename|description|size_label|license"
     r"|license\.name|license\.link|url|doi|uuid|repo_url)", "str"),
    (r"general\.source\.\w+|general\.base_model\.\d+\.\w+", "str"),
    (r"tokenizer\.chat_template(\..+)?|tokenizer\.ggml\.(model|pre)", "str"),
    (r"tokenizer\.ggml\.\w+_token_id", "u32"),
    (r"tokenizer\.ggml\.(add_\w+_token|add_space_prefix|remove_extra_whitespaces)", "bool"),
    (r"general\.sampling\.(temp|top_p|min_p|penalty_repeat|xtc_probability|xtc_threshold|mirostat_tau|mirostat_eta)",
     "f32"),
    (r"general\.sampling\.(top_k|penalty_last_n|mirostat)", "i32"),
)  # fmt: skip
"""Keys and the type that files have them in. Source: ggml/docs/gguf.md; llama.cpp gguf-py/gguf/gguf_writer.py."""


def split_setting(text: str) -> tuple[str, str]:
    """``KEY=VALUE`` as (key, value). Errors: UsageError."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise UsageError(f"--set {text!r} is not of the form KEY=VALUE", hint="--set general.name='My model'")
    return key, value


def typed(key: str, text: str, present: MetadataField | None) -> MetadataField:
    """The metadata field that ``KEY=TEXT`` means; `present` is the one in the file, None for a new key.

    Errors: UsageError for a value that is not of its type, or whose type cannot be told.
    """
    prefix = re.match(r"(arr\[)?(\w+?)\]?:", text)
    named = TYPES.get(prefix[2]) if prefix else None
    if prefix and named is not None and (prefix[1] is not None) == text[: prefix.end()].endswith("]:"):
        rest = text[prefix.end() :]
        return _array(key, named, rest) if prefix[1] else _scalar(key, named, rest)
    if present is not None:
        if present.type is ValueType.ARRAY:
            return _array(key, present.element or ValueType.STRING, text)
        return _scalar(key, present.type, text)
    for pattern, name in WELL_KNOWN:
        if re.fullmatch(pattern, key):
            return _scalar(key, TYPES[name], text)
    if _could_be_a_number(text):
        raise UsageError(
            f"{key} is a new key and {text!r} could be of several types",
            hint=f"say which: --set {key}=u32:{text}, or one of {', '.join(TYPES)}",
        )
    return _scalar(key, ValueType.STRING, text)


def _could_be_a_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text.lower() in ("true", "false") or text.startswith("[")
    return True


def _array(key: str, element: ValueType, text: str) -> MetadataField:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, list):
        raise UsageError(f"{key} is an array of {_name(element)}; {text[:80]!r} is no JSON list", hint=f"{key}='[…]'")
    made = [_from_json(key, element, value) for value in values]
    return MetadataField.array(key, element, made)


def _from_json(key: str, kind: ValueType, value: Any) -> Any:
    right = {ValueType.STRING: str, ValueType.BOOL: bool}.get(kind, (int, float) if kind in FLOATS else int)
    if not isinstance(value, right) or (isinstance(value, bool) and kind is not ValueType.BOOL):
        raise UsageError(f"{key} holds {_name(kind)}; {value!r} is none")
    return value if kind in (ValueType.STRING, ValueType.BOOL) else _number(key, kind, str(value))


def _scalar(key: str, kind: ValueType, text: str) -> MetadataField:
    if kind is ValueType.STRING:
        value: Any = text
    elif kind is ValueType.BOOL:
        if text.lower() not in ("true", "false"):
            raise UsageError(f"{key} is a bool; {text!r} is neither true nor false")
        value = text.lower() == "true"
    else:
        value = _number(key, kind, text)
    return MetadataField(key=key, type=kind, value=value)


def _number(key: str, kind: ValueType, text: str) -> int | float:
    if kind in FLOATS:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or (kind is ValueType.FLOAT32 and abs(value) >= LARGEST_F32):
            raise UsageError(f"{key} is a {_name(kind)}; {text!r} is no finite number of that size")
        return value
    if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
        raise UsageError(f"{key} is a {_name(kind)}; {text!r} is no whole number")
    whole = int(text)
    bits = int(_name(kind)[1:])
    low, high = (-(1 << bits - 1), 1 << bits - 1) if _name(kind)[0] == "i" else (0, 1 << bits)
    if not low <= whole < high:
        raise UsageError(f"{key} is a {_name(kind)}; {whole} is not between {low} and {high - 1}")
    return whole


def _name(kind: ValueType) -> str:
    return next(name for name, own in TYPES.items() if own is kind)
