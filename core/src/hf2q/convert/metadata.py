"""The ``general.*`` keys that describe a model: from its card, its generation config, and its names.

Which name means what is decided by the `gguf` package (`gguf.Metadata`), as in llama.cpp's converter; which keys are
written, in which order and type, is decided here. Source: llama.cpp, gguf-py/gguf/metadata.py (`Metadata.load`,
`set_gguf_meta_model`), gguf-py/gguf/utility.py (`size_label`, `naming_convention`), gguf-py/gguf/gguf_writer.py
(`get_total_parameter_count`).
"""

from __future__ import annotations

import logging
import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from hf2q.errors import FormatError, Hf2qError
from hf2q.formats.strict_json import parse
from hf2q.formats.tokenizer.files import read_bounded
from hf2q.types import MetadataField, Shape, ValueType

log = logging.getLogger(__name__)

MAX_CARD_BYTES = 4 << 20
SAMPLING: tuple[tuple[str, tuple[str, ...], ValueType], ...] = (
    # GGUF key, names in generation_config.json by preference, type
    ("sequence", ("sequence",), ValueType.STRING),
    ("top_k", ("top_k",), ValueType.INT32),
    ("top_p", ("top_p",), ValueType.FLOAT32),
    ("min_p", ("min_p",), ValueType.FLOAT32),
    ("xtc_probability", ("xtc_probability",), ValueType.FLOAT32),
    ("xtc_threshold", ("xtc_threshold",), ValueType.FLOAT32),
    ("temp", ("temperature",), ValueType.FLOAT32),
    ("penalty_last_n", ("penalty_last_n",), ValueType.INT32),
    ("penalty_repeat", ("penalty_repeat", "repetition_penalty"), ValueType.FLOAT32),
    ("mirostat", ("mirostat",), ValueType.INT32),
    ("mirostat_tau", ("mirostat_tau",), ValueType.FLOAT32),
    ("mirostat_eta", ("mirostat_eta",), ValueType.FLOAT32),
)
TEXTS = (
    # attribute of gguf.Metadata, GGUF key without general.
    ("name", "name"),
    ("author", "author"),
    ("version", "version"),
    ("organization", "organization"),
    ("finetune", "finetune"),
    ("basename", "basename"),
    ("description", "description"),
    ("quantized_by", "quantized_by"),
    ("size_label", "size_label"),
    ("license", "license"),
    ("license_name", "license.name"),
    ("license_link", "license.link"),
    ("url", "url"),
    ("doi", "doi"),
    ("uuid", "uuid"),
    ("repo_url", "repo_url"),
    ("source_url", "source.url"),
    ("source_doi", "source.doi"),
    ("source_uuid", "source.uuid"),
    ("source_repo_url", "source.repo_url"),
)
PARENT_KEYS = ("name", "author", "version", "organization", "description", "url", "doi", "uuid", "repo_url")


def general_metadata(
    directory: Path, config: Mapping[str, Any], tensors: Iterable[tuple[str, Shape]], name: str | None = None
) -> tuple[MetadataField, ...]:
    """Keys from ``general.sampling.*`` to ``general.languages``, in the converter's order.

    tensors: GGUF names and shapes of the whole model, from which its size is told. `name` stands in for that of the
    directory, from which names of the model are derived.
    """
    import gguf

    total, label = size_label(tensors)
    name = name or Path(os.path.abspath(directory)).name  # noqa: PTH100 - resolves "." and "..", but no links
    origin = config.get("_name_or_path")
    known = {"_name_or_path": origin} if isinstance(origin, str) else {}  # all that is looked at
    meta = gguf.Metadata.apply_metadata_heuristic(gguf.Metadata(), _model_card(directory), known, Path(name), total)
    if meta.size_label is None and total:
        meta.size_label = label
    if isinstance(meta.license, list):
        meta.license = ",".join(str(part) for part in meta.license)
    if _text("name", meta.name) is None:
        meta.name = name
    fields = _sampling(directory)
    for attribute, key in TEXTS:
        text = _text(attribute, getattr(meta, attribute))
        if text:  # the converter's writer leaves empty texts out
            fields.append(MetadataField.string(f"general.{key}", text))
    fields += _parents("base_model", meta.base_models) + _parents("dataset", meta.datasets)
    for key in ("tags", "languages"):
        texts = [text for part in getattr(meta, key) or () if (text := _text(key, part)) is not None]
        if texts:
            fields.append(MetadataField.array(f"general.{key}", ValueType.STRING, texts))
    return tuple(fields)


def size_label(tensors: Iterable[tuple[str, Shape]]) -> tuple[int, str]:
    """Number of weights, and the label of that size: ``6.6M``, or ``8x1.2M`` with the size of one expert's path."""
    total = shared = expert = count = stacks = 0
    for name, shape in tensors:
        weights = prod(shape)
        total += weights
        if "_exps." in name and len(shape) >= 3:
            expert += weights // shape[-3]
            count += shape[-3]
            stacks += 1
        else:
            shared += weights
    if stacks:
        return total, f"{count // stacks}x{_rounded(shared + expert)}"
    return total, _rounded(total)


def default_name(metadata: Sequence[MetadataField], encoding: str, *, size: bool = True) -> str:
    """The usual file name of a model, without ending: ``Qwen3.5-0.8B-Q4_K_M``; without `size`, ``Qwen3.5-Q4_K_M``."""
    values = {field.key: field.value for field in metadata if size or field.key != "general.size_label"}
    first = values.get("general.basename") or values.get("general.name")
    parts = [first, *(values.get(f"general.{key}") for key in ("size_label", "finetune", "version")), encoding.upper()]
    words = [part.strip().replace(" ", "-") for part in parts if part]
    return "".join("-" if c in "/\\" or not c.isprintable() else c for c in "-".join(words)).lstrip(".") or "model"


def _rounded(count: int) -> str:
    limit, suffix = next((unit for unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")) if count > unit[0]), (1e3, "K"))
    scaled = count * (1 / limit)
    digits = max(2 - len(str(round(scaled)).lstrip("0")), 0)
    return f"{scaled:.{digits}f}{suffix}"


def _model_card(directory: Path) -> dict[str, Any]:
    """The front matter of README.md; a card that cannot be read is left out with a warning, for it only describes."""
    import gguf
    import yaml  # type: ignore[import-untyped]

    path = directory / "README.md"
    try:
        if read_bounded(path, MAX_CARD_BYTES) is None:
            return {}
        return _shallow(dict(gguf.Metadata.load_model_card(directory)))
    except (Hf2qError, yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        log.warning("%s: the model card cannot be read and is left out: %s", path, error)
        return {}


def _shallow(card: Mapping[Any, Any]) -> dict[str, Any]:
    """Of a card what can describe a model: scalars, lists of scalars and of tables, tables of scalars.

    Aliases let a few lines of YAML stand for more values than memory holds, once somebody walks through them.
    """

    def scalar(value: Any) -> bool:
        if isinstance(value, str):
            return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)
        return not isinstance(value, list | tuple | set | dict | bytes)

    def table(value: Any) -> dict[Any, Any] | None:
        return {k: v for k, v in value.items() if scalar(k) and scalar(v)} if isinstance(value, dict) else None

    kept: dict[str, Any] = {}
    for key, value in card.items():
        if not isinstance(key, str) or not scalar(key):
            continue
        if isinstance(value, list):
            entries = [(table(entry), entry) for entry in value]
            kept[key] = [entry if rows is None else rows for rows, entry in entries if rows or scalar(entry)]
        elif scalar(value) or isinstance(value, dict):
            kept[key] = table(value) if isinstance(value, dict) else value
    return kept


def _sampling(directory: Path) -> list[MetadataField]:
    path = directory / "generation_config.json"
    data = read_bounded(path, MAX_CARD_BYTES)
    if data is None:
        return []
    try:
        config = parse(data, str(path))
    except FormatError as error:
        log.warning("%s; its sampling settings are left out", error.message)
        return []
    fields = []
    for key, names, kind in SAMPLING if isinstance(config, dict) else ():
        value = next((config[name] for name in names if name in config), None)
        if value is None or value == "":
            continue
        if not _fits(value, kind):
            log.warning("%s: %s is %s, expected a %s; left out", path, names[0], reprlib.repr(value), kind.name)
            continue
        value = float(value) if kind is ValueType.FLOAT32 else value
        fields.append(MetadataField(key=f"general.sampling.{key}", type=kind, value=value))
    return fields


def _fits(value: Any, kind: ValueType) -> bool:
    if kind is ValueType.STRING:
        return isinstance(value, str)
    if isinstance(value, bool):
        return False
    if kind is ValueType.INT32:
        return isinstance(value, int) and -(1 << 31) <= value < 1 << 31
    return isinstance(value, int | float) and abs(value) <= 3.4028234663852886e38


def _text(key: str, value: Any) -> str | None:
    """A value of the card as text; anything but text and numbers is left out with a warning."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    log.warning("model card: %s is %s, expected text; left out", key, reprlib.repr(value))
    return None


def _parents(kind: str, entries: Sequence[Mapping[str, Any]] | None) -> list[MetadataField]:
    """Models or data sets that this one comes from; None writes nothing, an empty list a count of 0."""
    if entries is None:
        return []
    fields = [MetadataField.u32(f"general.{kind}.count", len(entries))]
    for index, entry in enumerate(entries):
        for key in PARENT_KEYS:
            text = _text(f"{kind}.{key}", entry.get(key))
            if text:
                fields.append(MetadataField.string(f"general.{kind}.{index}.{key}", text))
    return fields
