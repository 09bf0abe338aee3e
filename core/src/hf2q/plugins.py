"""Finding, isolating, checking and freezing plugins; one typed method for each kind of thing they provide.

::

    p = Plugins.load()          # reads entry-point metadata, imports what the filters let through
    p.codec("Q4_K").encode(x)   # typed look-ups; a miss says what to install
    p.failures                  # what did not load, and why

Order of work for each entry point: filters (before any import) → import → API version → register with pluggy → hook
names → call each hook, drain what it yields, check type and name. Whatever goes wrong is recorded against that plugin
and leaves no trace of it in the registries. Nothing here is cached at module level: callers build one `Plugins` and
pass it on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol, cast

import pluggy

from hf2q import hookspecs, known
from hf2q.codec import QuantCodec
from hf2q.discovery import (
    Damaged,
    EntryPoint,
    check_filters,
    discover,
    distribution_of,
    is_core,
    labels,
    names_from,
    normalized,
)
from hf2q.errors import ContractError, DuplicateNameError, Hf2qError, PluginError, PluginLoadError, listing
from hf2q.registry import Registry
from hf2q.types import (
    ArchEntry,
    BackendEntry,
    ChatFormat,
    CommandEntry,
    GraphEntry,
    ProjectorEntry,
    Recipe,
    Record,
    TensorCatalog,
    WriterEntry,
)

log = logging.getLogger(__name__)

HOOKS: Mapping[str, tuple[str, type[Record]]] = {
    "hf2q_arch_entries": ("arch", ArchEntry),
    "hf2q_tensor_catalogs": ("tensor catalog", TensorCatalog),
    "hf2q_projectors": ("projector", ProjectorEntry),
    "hf2q_quant_codecs": ("codec", QuantCodec),
    "hf2q_recipes": ("recipe", Recipe),
    "hf2q_writers": ("writer", WriterEntry),
    "hf2q_forward_graphs": ("graph", GraphEntry),
    "hf2q_chat_formats": ("chat format", ChatFormat),
    "hf2q_backends": ("backend", BackendEntry),
    "hf2q_cli_commands": ("command", CommandEntry),
}
"""Each hook, the word for what it yields, and the record it must yield."""


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class PluginInfo(Record, frozen=True, kw_only=True):
    """One plugin: where it comes from, what it provides by kind, or why it does not.

    `status` is ``loaded``, ``failed`` or ``disabled``; `reason` is set for the last two, `hint` where there is one.
    """

    name: str
    distribution: str
    version: str
    module: str
    status: str
    provides: Mapping[str, tuple[str, ...]] = {}
    reason: str = ""
    hint: str | None = None


class Plugins:
    """All loaded plugins, frozen. Build one with `load`."""

    def __init__(self, infos: Sequence[PluginInfo], found: Mapping[str, Sequence[tuple[Record, str]]]) -> None:
        self.infos = tuple(infos)
        self._found = found
        self._failed = {info.name: info.distribution for info in self.failures}
        self.archs: Registry[ArchEntry] = self._registry("hf2q_arch_entries", known.ARCHS)
        self.catalogs: Registry[TensorCatalog] = self._registry("hf2q_tensor_catalogs", known.ARCHS)
        self.projectors: Registry[ProjectorEntry] = self._registry("hf2q_projectors", known.PROJECTORS)
        self.codecs: Registry[QuantCodec] = self._registry("hf2q_quant_codecs", known.CODECS)
        self.recipes: Registry[Recipe] = self._registry("hf2q_recipes", known.RECIPES)
        self.writers: Registry[WriterEntry] = self._registry("hf2q_writers", known.WRITERS)
        self.graphs: Registry[GraphEntry] = self._registry("hf2q_forward_graphs", known.ARCHS)
        self.chat_formats: Registry[ChatFormat] = self._registry("hf2q_chat_formats")
        self.backends: Registry[BackendEntry] = self._registry("hf2q_backends")
        self.commands: Registry[CommandEntry] = self._registry("hf2q_cli_commands")

    # ------------------------------------------------------------------------------------------------------ loading

    @classmethod
    def load(
        cls,
        *,
        only: Iterable[str] | None = None,
        disable: Iterable[str] | None = None,
        strict: bool | None = None,
        entry_points: Sequence[EntryPoint] | None = None,
        before: Callable[[EntryPoint], None] | None = None,
    ) -> Plugins:
        """Find and load plugins.

        only     names of plugins or distributions to load besides core's own; default ``HF2Q_PLUGINS``, else all
        disable  names never to load; default ``HF2Q_DISABLE_PLUGINS``. Core's own features are named ``builtin``
        strict   raise for the first failure instead of recording it; default ``HF2Q_STRICT_PLUGINS`` = 1
        entry_points  instead of those installed (for tests)
        before   called with each entry point right before it is imported

        Errors: PluginLoadError when `only` names something that is not installed; with `strict`, any PluginError.
        """
        allow = _names(only, "HF2Q_PLUGINS")
        deny = _names(disable, "HF2Q_DISABLE_PLUGINS") or frozenset()
        if strict is None:
            strict = os.environ.get("HF2Q_STRICT_PLUGINS", "") == "1"
        points = sorted(discover() if entry_points is None else entry_points, key=lambda p: (p.name, p.value))
        check_filters(points, allow, deny)
        loader = _Loader(strict, before)
        for point in points:
            loader.add(point, allow, deny)
        plugins = cls(loader.infos, loader.found)
        if strict:
            plugins._raise_clashes()
        return plugins

    def _registry(self, hook: str, table: Mapping[str, str] | None = None) -> Registry[Any]:
        kind, _ = HOOKS[hook]
        items = [(_name_of(record), record, distribution) for record, distribution in self._found.get(hook, ())]
        return Registry(kind, items, known=table, failed=self._failed)

    def _raise_clashes(self) -> None:
        for registry in self.registries.values():
            for name in registry.clashes:
                raise registry.clash(name)

    # ----------------------------------------------------------------------------------------------------- look-ups

    @property
    def registries(self) -> Mapping[str, Registry[Any]]:
        """Every registry by the word for its kind."""
        found = (
            self.archs,
            self.catalogs,
            self.projectors,
            self.codecs,
            self.recipes,
            self.writers,
            self.graphs,
            self.chat_formats,
            self.backends,
            self.commands,
        )
        return {registry.kind: registry for registry in found}

    @property
    def failures(self) -> tuple[PluginInfo, ...]:
        """Plugins that did not load."""
        return tuple(info for info in self.infos if info.status == "failed")

    @property
    def clashes(self) -> tuple[DuplicateNameError, ...]:
        """Names that several distributions provide, as the errors that looking them up raises."""
        return tuple(r.clash(name) for r in self.registries.values() for name in r.clashes)

    def arch(self, name: str) -> ArchEntry:
        """The family behind a GGUF ``general.architecture``. Errors: UnknownNameError, DuplicateNameError."""
        return self.archs[name]

    def arch_for(self, hf_architecture: str) -> ArchEntry:
        """The family of a class name in ``config.json``. Errors: UnknownNameError, DuplicateNameError."""
        entries = cast("Sequence[tuple[ArchEntry, str]]", self._found.get("hf2q_arch_entries", ()))
        items = [(name, entry, distribution) for entry, distribution in entries for name in entry.hf_architectures]
        wanted = Registry("arch for the checkpoint class", items, known=known.HF_ARCHITECTURES, failed=self._failed)
        return self.arch(wanted[hf_architecture].arch)

    def catalog(self, name: str) -> TensorCatalog:
        """The tensor catalog of an arch."""
        return self.catalogs[name]

    def projector(self, name: str) -> ProjectorEntry:
        """The projector of a ``clip.projector_type``."""
        return self.projectors[name]

    def codec(self, qtype: str) -> QuantCodec:
        """The codec of a storage type."""
        return self.codecs[qtype]

    def recipe(self, name: str) -> Recipe:
        """The recipe that ``--quant`` names, also by an alias. Case does not matter."""
        recipes = cast("Sequence[tuple[Recipe, str]]", self._found.get("hf2q_recipes", ()))
        items = [(word, recipe, provider) for recipe, provider in recipes for word in (recipe.name, *recipe.aliases)]
        return Registry("recipe", items, known=known.RECIPES, failed=self._failed)[name.lower()]

    def writer(self, name: str) -> WriterEntry:
        """The writer of an output format."""
        return self.writers[name]

    def graph(self, arch: str) -> GraphEntry:
        """The forward graph of an arch."""
        return self.graphs[arch]

    def chat_format(self, name: str) -> ChatFormat:
        """The chat format that an arch entry names."""
        return self.chat_formats[name]

    def backend(self, name: str) -> BackendEntry:
        """A compute backend."""
        return self.backends[name]

    def command(self, name: str) -> CommandEntry:
        """An extra command."""
        return self.commands[name]


def _names(given: Iterable[str] | None, variable: str) -> frozenset[str] | None:
    if given is not None:
        return frozenset(normalized(name) for name in given)
    return names_from(os.environ.get(variable) or None)


def _name_of(record: Record) -> str:
    return cast("_Named", record).name


class _Loader:
    """Loads entry points one by one; collects a `PluginInfo` for each and what their hooks yield."""

    def __init__(self, strict: bool, before: Callable[[EntryPoint], None] | None) -> None:
        self.strict = strict
        self._before = before
        self.infos: list[PluginInfo] = []
        self.found: dict[str, list[tuple[Record, str]]] = {hook: [] for hook in HOOKS}
        self._manager = pluggy.PluginManager("hf2q")
        self._manager.add_hookspecs(hookspecs)
        if os.environ.get("HF2Q_TRACE_HOOKS") == "1":
            self._manager.trace.root.setwriter(lambda message: log.warning("%s", message.rstrip()))
            self._manager.enable_tracing()

    def add(self, point: EntryPoint, allow: frozenset[str] | None, deny: frozenset[str]) -> None:
        """Load one plugin, or record why not."""
        own = labels(point)
        distribution = distribution_of(point)
        version = str(point.dist.version) if point.dist is not None else ""

        def record(status: str, **more: Any) -> None:
            info = PluginInfo(
                name=point.name, distribution=distribution, version=version, module=point.value, status=status, **more
            )
            self.infos.append(info)

        if own & deny:
            record("disabled", reason="named by HF2Q_DISABLE_PLUGINS")
            return
        if allow is not None and not own & allow and not is_core(point):
            record("disabled", reason="not named by HF2Q_PLUGINS or --plugins")
            return
        if self._before is not None:
            self._before(point)
        try:
            yielded = self._load(point, distribution)
        except PluginError as error:
            if self.strict:
                raise
            log.info("plugin %s (%s) did not load: %s", point.name, distribution, error.message)
            record("failed", reason=error.message, hint=error.hint)
            return
        for hook, records in yielded.items():
            self.found[hook] += [(item, distribution) for item in records]
        provides = {HOOKS[hook][0]: tuple(_name_of(r) for r in records) for hook, records in yielded.items() if records}
        log.debug("plugin %s (%s %s) loaded", point.name, distribution, version)
        record("loaded", provides=provides)

    def _load(self, point: EntryPoint, distribution: str) -> dict[str, list[Record]]:
        module = _import(point, distribution)
        if self._manager.is_registered(module):
            return {}  # the same object under a second name is one plugin
        api = getattr(module, "HF2Q_PLUGIN_API", None)
        if api != hookspecs.PLUGIN_API:
            raise PluginLoadError(
                f"plugin {point.name!r} of {distribution} states HF2Q_PLUGIN_API = {api!r}; "
                f"this hf2q speaks {hookspecs.PLUGIN_API}",
                hint=f"pip install --upgrade hf2q {distribution}",
            )
        try:
            _check_marked(module, point, distribution)
            self._manager.register(module, name=f"{distribution}:{point.name}")
            self._manager.check_pending()
            return {hook: self._drain(hook, module, point, distribution) for hook in HOOKS}
        except BaseException as error:
            # register leaves no trace of what it refuses, and unregister fails for what is not there
            if self._manager.is_registered(module):
                self._manager.unregister(module)
            raise _blamed(error, point, distribution, "while it registered") from error

    def _drain(self, hook: str, module: ModuleType, point: EntryPoint, distribution: str) -> list[Record]:
        others = [plugin for plugin in self._manager.get_plugins() if plugin is not module]
        answers = self._manager.subset_hook_caller(hook, remove_plugins=others)()
        kind, wanted = HOOKS[hook]
        records: list[Record] = []
        where = f"hook {hook} of plugin {point.name!r} ({distribution})"
        for answer in answers:
            if isinstance(answer, str | bytes) or not isinstance(answer, Iterable):
                raise ContractError(f"{where} gave {answer!r}, expected an iterable of {wanted.__name__}")
            for item in answer:
                if not isinstance(item, wanted):
                    raise ContractError(f"{where} yielded {type(item).__name__} {item!r}, expected {wanted.__name__}")
                name = _name_of(item)
                if not isinstance(name, str) or not name:
                    raise ContractError(f"{where} yielded a {kind} whose name is {name!r}")
                if any(_name_of(other) == name for other in records):
                    raise DuplicateNameError(f"{where} yielded the {kind} {name!r} twice")
                records.append(item)
        return records


def _check_marked(module: ModuleType, point: EntryPoint, distribution: str) -> None:
    """Refuse a function that is named as a hook but not marked as one: pluggy would pass it over in silence."""
    bare = [hook for hook in HOOKS if hasattr(module, hook) and not hasattr(getattr(module, hook), "hf2q_impl")]
    if bare:
        raise ContractError(
            f"plugin {point.name!r} of {distribution} defines {listing(bare)} without @hookimpl",
            hint="put `@hookimpl` (from hf2q.hookspecs) above it",
        )


def _import(point: EntryPoint, distribution: str) -> ModuleType:
    if isinstance(point, Damaged):
        raise PluginLoadError(
            f"the metadata of {distribution} cannot be read: {point.reason}",
            hint=f"pip install --force-reinstall {distribution}",
        )
    name, _, attribute = point.value.partition(":")
    name = name.strip()
    try:
        found: Any = import_module(name)
        for part in filter(None, attribute.split(".")):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing and (name == missing or name.startswith(f"{missing}.")):
            raise PluginLoadError(
                f"entry point {point.name!r} of {distribution} names the module {name!r}, which is not there: a stale "
                "entry point, for example of an editable install whose folder was deleted",
                hint=f"pip uninstall {distribution}, or install it again",
            ) from error
        raise _blamed(error, point, distribution, "at import") from error
    except BaseException as error:
        raise _blamed(error, point, distribution, "at import") from error
    return cast("ModuleType", found)


def _blamed(error: BaseException, point: EntryPoint, distribution: str, when: str) -> PluginError:
    """The error to record for what a plugin raised; an interrupt by the user stays one."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, PluginError):
        return error
    what = error.message if isinstance(error, Hf2qError) else f"{type(error).__name__}: {error}"
    return PluginLoadError(
        f"plugin {point.name!r} of {distribution} failed {when}: {what}",
        hint=f"fix or upgrade {distribution}, or set HF2Q_DISABLE_PLUGINS={point.name}",
    )
