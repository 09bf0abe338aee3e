"""`Registry`: named records of one kind, read-only, that refuses clashes and explains misses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from hf2q.errors import DuplicateNameError, UnknownNameError, listing

T = TypeVar("T")


class Registry(Generic[T]):
    """Records of one `kind`, keyed by name, each with the distribution that provides it.

    A name that two distributions provide belongs to neither: looking it up raises DuplicateNameError naming both.
    `known` maps names that exist somewhere to the distribution to install, for the message of a miss; `failed` maps
    plugins that did not load to their distributions, since the missing record may be theirs.
    """

    def __init__(
        self,
        kind: str,
        items: Iterable[tuple[str, T, str]],
        *,
        known: Mapping[str, str] | None = None,
        failed: Mapping[str, str] | None = None,
    ) -> None:
        found: dict[str, T] = {}
        providers: dict[str, str] = {}
        clashes: dict[str, tuple[str, ...]] = {}
        for name, item, distribution in items:
            if name in clashes:
                clashes[name] = tuple(sorted({*clashes[name], distribution}))
            elif name in found and found[name] is not item:
                clashes[name] = tuple(sorted({providers.pop(name), distribution}))
                del found[name]
            else:
                found[name], providers[name] = item, distribution
        self.kind = kind
        self._items = MappingProxyType(dict(sorted(found.items())))
        self.providers: Mapping[str, str] = MappingProxyType(providers)
        self.clashes: Mapping[str, tuple[str, ...]] = MappingProxyType(clashes)
        self._known = known or {}
        self._failed = failed or {}

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[T]:
        return iter(self._items.values())

    def __len__(self) -> int:
        return len(self._items)

    @property
    def names(self) -> tuple[str, ...]:
        """All usable names, sorted."""
        return tuple(self._items)

    def get(self, name: str) -> T | None:
        """The record, or None when nobody provides it. Errors: DuplicateNameError."""
        if name in self.clashes:
            raise self.clash(name)
        return self._items.get(name)

    def __getitem__(self, name: str) -> T:
        """The record. Errors: UnknownNameError saying what is known and what to install, DuplicateNameError."""
        item = self.get(name)
        if item is None:
            raise self.miss(name)
        return item

    def clash(self, name: str) -> DuplicateNameError:
        """The error for a name that several distributions provide."""
        providers = self.clashes[name]
        who = " and ".join(providers) if len(providers) > 1 else f"two plugins of {providers[0]}"
        return DuplicateNameError(
            f"{self.kind} {name!r} is provided by {who}; neither is used",
            hint=f"disable one of them: HF2Q_DISABLE_PLUGINS={providers[-1]}, or pip uninstall it",
        )

    def miss(self, name: str) -> UnknownNameError:
        """The error for a name that nobody provides."""
        import difflib

        parts = [f"no {self.kind} {name!r}"]
        parts.append(f"known: {listing(self._items)}" if self._items else "none is installed")
        near = difflib.get_close_matches(name, [*self._items, *self._known], n=1)
        if near and near[0] != name:
            parts.append(f"did you mean {near[0]!r}?")
        if self._failed:
            parts.append(f"plugins that failed to load: {listing(self._failed)} (see `hf2q plugins`)")
        distribution = self._known.get(name)
        if distribution in self._failed.values():
            hint = f"{distribution} is installed but did not load; `hf2q plugins` says why"
        elif distribution:
            hint = f"pip install {distribution}"
        else:
            hint = f"`hf2q plugins` lists every {self.kind} provided"
        return UnknownNameError("; ".join(parts), hint=hint)
