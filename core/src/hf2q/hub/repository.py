"""A repository at one commit, and the files of it that are taken. The way in for the rooms above."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hf2q.errors import HubError, MissingFileError, UsageError, listing
from hf2q.formats.safetensors.shards import INDEX, SINGLE, choose_shards, read_index
from hf2q.hub import settings
from hf2q.hub.answers import Asked
from hf2q.hub.api import DEFAULT_REVISION, Api, Listing, file_of, merged
from hf2q.hub.cache import Cache, listing_with
from hf2q.hub.client import Client
from hf2q.hub.digests import Expected, Found
from hf2q.hub.paths import CONFIG, MAX_SMALL_BYTES, check_listing, check_selected, small_files
from hf2q.hub.reference import Reference, check_revision
from hf2q.hub.transfer import AT_ONCE, Job, fetch_all

Progress = Callable[[str, int, int], None]
"""Called with the path of a file, and the bytes of all files that are here and that there will be."""


def open_repository(reference: Reference, progress: Progress | None = None) -> Repository:
    """Resolve the revision to one commit, and learn what there is. Offline, what was remembered counts.

    Errors: MissingFileError, AccessError, HubError; UsageError for settings that cannot be used.
    """
    revision = reference.revision or DEFAULT_REVISION
    check_revision(revision)
    cache = Cache(settings.cache_folder(), reference.repo)
    where = settings.endpoint()
    if settings.offline():
        known = cache.recalled(revision)
        if known is None:
            raise MissingFileError(
                f"HF_HUB_OFFLINE forbids asking for {reference.repo} at {revision}, which {cache.folder} does not have",
                hint="run once without HF_HUB_OFFLINE",
            )
        return Repository(reference, known, cache, where, None, progress)
    client = Client(where, settings.token(), settings.timeout())
    known = Api(client, reference.repo, reference.revision).listing()
    check_listing(known.files, f"{where}: {reference.repo}")
    return Repository(reference, known, cache, where, client, progress)


class Repository:
    """Files of one commit. `client` is None offline; `endpoint` the address of the hub."""

    def __init__(
        self,
        reference: Reference,
        known: Listing,
        cache: Cache,
        endpoint: str,
        client: Client | None,
        progress: Progress | None,
    ) -> None:
        """Use `open_repository`."""
        self.reference = reference
        self.listing = known
        self.endpoint = endpoint
        self.client = client
        self._cache = cache
        self._progress = progress
        self._here: dict[str, Found] = {}

    @property
    def name(self) -> str:
        """The id and the commit, for messages."""
        return f"{self.listing.canonical} at {self.listing.commit[:12]}"

    @property
    def here(self) -> Mapping[str, Found]:
        """What was taken so far, by path, in order."""
        return dict(sorted(self._here.items()))

    def expected(self, path: str) -> Expected:
        """What the hub says of a file. Errors: MissingFileError when there is no such file."""
        found = self.listing.files.get(path)
        if found is None:
            near = [name for name in self.listing.files if name.endswith(Path(path).suffix or path)]
            raise MissingFileError(
                f"{self.name} has no file {path}", hint=f"there is {listing(near)}" if near else None
            )
        return found

    def small(self) -> tuple[str, ...]:
        """The files that say what the model is. Errors: MissingFileError without config.json, HubError."""
        if CONFIG not in self.listing.files:
            kinds = [name for name in self.listing.files if name.endswith((".gguf", "adapter_config.json"))]
            raise MissingFileError(
                f"{self.name} has no {CONFIG}{f', but {listing(kinds)}' if kinds else ''}",
                hint="expected a checkpoint in Hugging Face's layout",
            )
        names = small_files(self.listing.files)
        for name in names:
            if (self.listing.files[name].size or 0) > MAX_SMALL_BYTES:
                raise HubError(f"{self.name}: {name} has {self.listing.files[name].size} bytes, too many for its kind")
        return names

    def weights(self, folder: Path) -> tuple[str, ...]:
        """The files with weights: those that the index names, which is in `folder` when there is one.

        Errors: MissingFileError naming what the index names and the hub lacks; FormatError for a bad index.
        """
        names = sorted(name for name in self.listing.files if "/" not in name)
        weight_map = read_index(str(folder / INDEX)) if INDEX in names else None
        if weight_map is not None and SINGLE not in weight_map.values():
            names = [name for name in names if name != SINGLE]  # the index decides
        hint = f"{self.endpoint}/{self.listing.canonical} is incomplete: ask its author, or choose another --revision"
        return choose_shards(self.name, names, weight_map, self.listing.files.__contains__, hint).files

    def take(self, paths: Sequence[str]) -> Path:
        """Have these files here, verified, and return the folder in which they are.

        Errors: MissingFileError offline for what is not here; HubError for what cannot be verified, is not what was
        announced, or does not come; AccessError; WriteError when there is no room.
        """
        check_selected(paths, self.name)
        files = [self.expected(path) for path in paths]
        with self._cache.locked():
            absent = [one for one in files if not self._is_here(one)]
            if absent and self.client is None:
                raise MissingFileError(
                    f"HF_HUB_OFFLINE forbids downloading {len(absent)} files of {self.name} that are not here: "
                    f"{listing(one.path for one in absent)}",
                    hint="run once without HF_HUB_OFFLINE",
                )
            if absent and self.client is not None:
                self._download(absent, self.client)
            self._cache.remember(self.listing)
            return self._cache.view(self.listing, [self.expected(path) for path in paths])

    def file(self, path: str) -> Asked:
        """What to ask for, to have a file of this commit."""
        return file_of(self.endpoint, self.listing, path)

    def _is_here(self, one: Expected) -> bool:
        found = self._cache.verified(one) if one.verifiable else None
        if found is not None:
            self._here[one.path] = found
        return found is not None

    def _download(self, files: Sequence[Expected], client: Client) -> None:
        """First all that the hub says of the files, then their bytes."""
        known = self._asked(files, client)
        unknown = [one.path for one in known if not one.verifiable]
        if unknown:
            raise HubError(
                f"{self.endpoint} gives no size or digest for {listing(unknown)} of {self.name}",
                hint="what cannot be verified is not converted",
            )
        self.listing = listing_with(self.listing, {one.path: one for one in known})
        absent = [one for one in known if not self._is_here(one)]
        count = _Count(absent, self._progress)
        fetch_all(self._cache, client, absent, Job(file=self.file, moved=count))
        missing = [one.path for one in absent if not self._is_here(one)]
        if missing:
            raise HubError(f"{listing(missing)} of {self.name} disappeared from {self._cache.contents}")

    def _asked(self, files: Sequence[Expected], client: Client) -> list[Expected]:
        api = Api(client, self.listing.canonical, self.listing.commit)

        def ask(one: Expected) -> Expected:
            return merged(one, api.head(self.listing, one.path), self.endpoint)

        with ThreadPoolExecutor(AT_ONCE, "hf2q-head") as team:
            futures = [team.submit(ask, one) for one in files]
            try:
                return [future.result() for future in futures]
            except BaseException:
                client.stopped.set()
                team.shutdown(wait=False, cancel_futures=True)
                raise


class _Count:
    """Adds up what arrives, for `Progress`."""

    def __init__(self, files: Iterable[Expected], progress: Progress | None) -> None:
        self._total = sum({one.key: one.size or 0 for one in files}.values())
        self._done = 0
        self._progress = progress
        self._lock = threading.Lock()

    def __call__(self, path: str, count: int) -> None:
        with self._lock:
            self._done += count
            if self._progress is not None:
                self._progress(path, self._done, self._total)


def expect_online(repository: Repository, what: str) -> Client:
    """The client, for what only the hub itself can answer. Errors: UsageError offline."""
    if repository.client is None:
        raise UsageError(f"HF_HUB_OFFLINE forbids reading {what}", hint="unset HF_HUB_OFFLINE")
    return repository.client
