"""Chat templates of a checkpoint, from any of their homes.

Order of preference, as llama.cpp's gguf-py/gguf/vocab.py, `SpecialVocab._try_load_from_tokenizer_json`: the key
``chat_template`` of ``tokenizer_config.json``; ``chat_template.jinja`` with ``additional_chat_templates/*.jinja``;
``chat_template.json``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from string import ascii_letters, digits
from typing import Any

from hf2q.errors import ConfigError
from hf2q.formats.tokenizer.files import expect, kind, read_object, read_text
from hf2q.types import MetadataField, ValueType

log = logging.getLogger(__name__)

CHAT_TEMPLATE = "tokenizer.chat_template"
CHAT_TEMPLATES = "tokenizer.chat_templates"


def read_templates(directory: Path, config: Mapping[str, Any]) -> tuple[MetadataField, ...]:
    """Fields for the templates of the checkpoint in `directory`; `config` is its parsed ``tokenizer_config.json``.

    Named templates come first, then the list of their names (sorted, so that the same input gives the same file), then
    the default. Errors: ConfigError for entries of a wrong type or two templates of one name.
    """
    found = _in_files(directory)
    if "chat_template" in config:
        inline = config["chat_template"]
        if found is not None and found != inline:
            log.warning("%s: chat_template of tokenizer_config.json is used, the template file differs", directory)
        found = inline
    if found is None:
        return ()
    if isinstance(found, str):
        return (MetadataField.string(CHAT_TEMPLATE, found),) if found else ()
    if isinstance(found, list):
        return _named(found, str(directory))
    raise ConfigError(f"{directory}: chat_template is {kind(found)}, expected a string or an array")


def _in_files(directory: Path) -> Any:
    default = read_text(directory / "chat_template.jinja")
    if default is not None:
        others = sorted((directory / "additional_chat_templates").glob("*.jinja"))
        if not others:
            return default
        listed = [{"name": "default", "template": default}]
        listed += [{"name": path.stem, "template": read_text(path) or ""} for path in others]
        return listed
    table = read_object(directory / "chat_template.json")
    return None if table is None else table.get("chat_template")


def _named(choices: list[Any], where: str) -> tuple[MetadataField, ...]:
    templates: dict[str, str] = {}
    for place, choice in enumerate(choices):
        here = f"{where}: chat_template[{place}]"
        entry = expect(choice, dict, here)
        written = expect(entry.get("name", ""), str, f"{here}.name")
        name = "".join(char if char in ascii_letters + digits else "_" for char in written)
        if not name or entry.get("template") is None:
            continue
        if name in templates:
            raise ConfigError(f"{where}: two chat templates are named {name!r}")
        templates[name] = expect(entry["template"], str, f"{here}.template")
    default = templates.pop("default", "")
    fields = [MetadataField.string(f"{CHAT_TEMPLATE}.{name}", text) for name, text in templates.items() if text]
    if templates:
        fields.append(MetadataField.array(CHAT_TEMPLATES, ValueType.STRING, sorted(templates)))
    if default:
        fields.append(MetadataField.string(CHAT_TEMPLATE, default))
    return tuple(fields)
