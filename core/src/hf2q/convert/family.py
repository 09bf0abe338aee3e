"""Which family a checkpoint is of: by the class that its config.json names, else by its model type."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from hf2q.convert.source import Source
from hf2q.errors import ConfigError, listing
from hf2q.plugins import Plugins
from hf2q.types import ArchEntry

log = logging.getLogger(__name__)


def family_of(source: Source, plugins: Plugins) -> ArchEntry:
    """The entry of the class that config.json names; when it names none, the one that its model type fits.

    Errors: UnknownNameError for a class that no plugin provides; ConfigError when no class is named, and the model
    type does not tell one family.
    """
    if not _names_no_class(source.config):
        return plugins.arch_for(source.hf_architecture)
    types = {kind for place in _places(source.config) if isinstance(kind := place.get("model_type"), str)}
    found = {entry.arch: entry for entry in plugins.archs if types & set(entry.model_types)}
    if len(found) == 1:
        return next(iter(found.values()))
    raise ConfigError(
        f"{source.directory / 'config.json'} has no architectures, and {_told(types, found, plugins)}",
        hint='add "architectures": ["NAME"] to it, NAME being the class of the model that this one was made from: '
        f"{listing(name for entry in found.values() or plugins.archs for name in entry.hf_architectures)}",
    )


def completed(source: Source, plugins: Plugins) -> Source:
    """The source, with a class in its config: where it names none, the first of its family, as families go by that.

    Errors: as `family_of`.
    """
    if not _names_no_class(source.config):
        return source
    entry = family_of(source, plugins)
    name = entry.hf_architectures[0]
    log.warning(
        "%s has no architectures; by its model_type it is taken for %s (arch %s)",
        source.directory / "config.json",
        name,
        entry.arch,
    )
    return msgspec.structs.replace(source, config={**source.config, "architectures": [name]})


def _told(types: set[str], found: Mapping[str, ArchEntry], plugins: Plugins) -> str:
    if not types:
        return "no model_type either"
    named = " and ".join(sorted(map(repr, types)))
    if found:
        return f"its model_type, {named}, fits several families: {listing(found)}"
    known = listing(name for entry in plugins.archs for name in entry.model_types)
    return f"its model_type, {named}, is of no family that is installed ({known})"


def _names_no_class(config: Mapping[str, Any]) -> bool:
    """Whether nothing is where the class should be. Anything else, also of a wrong type, is for others to judge."""
    return all(place.get("architectures") in (None, []) for place in _places(config))


def _places(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    text = config.get("text_config")
    return (text, config) if isinstance(text, Mapping) else (config,)
