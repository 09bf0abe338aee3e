"""A repository at one commit: what its revision was resolved to, its files, and their digests.

What huggingface_hub says (`HfApi.model_info`, `get_hf_file_metadata`) is checked, and statements that contradict each
other are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from hf2q.errors import HubError, MissingFileError
from hf2q.hub.answers import Asked, ask, no_revision
from hf2q.hub.client import Client, understood
from hf2q.hub.digests import Expected, is_sha1, is_sha256
from hf2q.types import Record

if TYPE_CHECKING:
    from huggingface_hub import HfFileMetadata, ModelInfo
    from huggingface_hub.hf_api import RepoSibling

DEFAULT_REVISION = "main"
_MOST_PAGES = 200
_COMMIT = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_SHORT = re.compile("[0-9a-f]{4,63}")


class Listing(Record, frozen=True, kw_only=True):
    """All files of a repository at one commit, by path. `canonical` is the id that the hub uses itself."""

    repo: str
    canonical: str
    revision: str
    commit: str
    files: Mapping[str, Expected]


class Api:
    """Questions about one repository. Errors of every method: HubError, AccessError, MissingFileError."""

    def __init__(self, client: Client, repo: str, revision: str | None) -> None:
        self._client = client
        self._repo = repo
        self._revision = revision
        self._base = f"{client.endpoint}/api/models/{repo}"

    def listing(self) -> Listing:
        """Resolve the revision, once, and list what is there."""
        from huggingface_hub.utils import validate_repo_id

        info = self._info()
        where = f"{self._client.endpoint}: {self._repo}"
        commit, revision = info.sha, self._revision or DEFAULT_REVISION
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise HubError(f"{where}: the commit of {revision} is {str(commit)[:80]!r}, expected a SHA-1")
        if _COMMIT.fullmatch(revision) and commit != revision:
            raise HubError(f"{where}: asked for commit {revision}, the hub answers with {commit}")
        with understood(self._base):
            validate_repo_id(info.id)
            files = {one.rfilename: _expected(one) for one in info.siblings or ()}
        if not files:
            raise HubError(f"{where} has no files at {commit}")
        return Listing(repo=self._repo, canonical=info.id, revision=revision, commit=commit, files=files)

    def head(self, listing: Listing, path: str) -> Expected | None:
        """What the headers of a file say about it; None when the hub does not answer such requests."""
        from huggingface_hub import get_hf_file_metadata
        from huggingface_hub.errors import HfHubHTTPError

        asked, client = file_of(self._client.endpoint, listing, path), self._client

        def once() -> HfFileMetadata | None:
            try:
                with understood(asked.url):
                    return get_hf_file_metadata(
                        asked.url, token=False, timeout=client.timeout, headers=client.headers, endpoint=client.endpoint
                    )
            except HfHubHTTPError as error:
                if error.response.status_code in (405, 501):
                    return None
                raise

        told = ask(once, client, asked)
        if told is None:
            return None
        check_commit({told.commit_hash} if told.commit_hash else set(), asked)
        tag = (told.etag or "").lower()
        return Expected(
            path=path, size=told.size, sha256=tag if is_sha256(tag) else "", git=tag if is_sha1(tag) else ""
        )

    def _info(self) -> ModelInfo:
        try:
            return self._model_info()
        except MissingFileError:
            if self._revision is None:
                raise
        asked, self._revision = self._asked(), None
        self._model_info()  # refuses when the repository is not there either
        self._revision = self._lengthened(asked.revision)
        if self._revision is None:
            raise no_revision(asked, self._client.endpoint)
        return self._model_info()

    def _model_info(self) -> ModelInfo:
        client = self._client

        def once() -> ModelInfo:
            with understood(self._base):
                return client.api.model_info(
                    self._repo, revision=self._revision, timeout=client.timeout, files_metadata=True
                )

        return ask(once, client, self._asked())

    def _lengthened(self, revision: str) -> str | None:
        """The full form of an abbreviated commit of the default branch; None when it is none.

        `HfApi.list_repo_commits` lists them too, but cannot be told how long a silent server is waited for: it gives
        its pager no timeout, which for the session means for ever, and the pager lets `http_backoff` ask for all pages
        but the first (huggingface_hub 1.33, hf_api.py, line 4333; utils/_pagination.py, lines 36 and 45).

        Errors: HubError when there are several.
        """
        if not _SHORT.fullmatch(revision) or _COMMIT.fullmatch(revision):
            return None
        url, found = f"{self._base}/commits/{DEFAULT_REVISION}", set[str]()

        def once() -> tuple[list[str], str]:
            with self._client.answer(url) as reply, understood(url):
                reply.read()
                return [one["id"] for one in reply.json()], reply.links.get("next", {}).get("url", "")

        for _ in range(_MOST_PAGES):
            ids, following = ask(once, self._client, self._asked())
            found |= {one for one in ids if one.startswith(revision) and _COMMIT.fullmatch(one)}
            if not following:
                break
            url = urljoin(url, following)
            if urlsplit(url)[:2] != urlsplit(self._base)[:2]:  # the token would go there
                raise HubError(f"{self._client.endpoint} continues a list at {url}, which is not trusted")
        if len(found) > 1:
            raise HubError(
                f"{self._repo}: {revision} may be any of {', '.join(sorted(found))}", hint="write more of it"
            )
        return found.pop() if found else None

    def _asked(self) -> Asked:
        return Asked(repo=self._repo, revision=self._revision or DEFAULT_REVISION)


def file_of(endpoint: str, listing: Listing, path: str) -> Asked:
    """A file and where it is, by commit: a branch that moves meanwhile makes no difference."""
    from huggingface_hub import hf_hub_url

    url = hf_hub_url(listing.canonical, path, revision=listing.commit, endpoint=endpoint)
    return Asked(repo=listing.canonical, revision=listing.commit, file=path, url=url)


def check_commit(named: set[str], asked: Asked) -> None:
    """Refuse an answer about another commit than the one asked for. Errors: HubError."""
    if other := named - {asked.revision}:
        raise HubError(
            f"{asked.file}: asked for commit {asked.revision}, the hub answers with {', '.join(sorted(other))[:200]}",
            hint="files of different commits do not make a checkpoint; try again",
        )


def merged(one: Expected | None, other: Expected | None, where: str) -> Expected:
    """What two statements about a file say together. Errors: HubError when they contradict each other."""
    if one is None or other is None:
        found = one or other
        assert found is not None
        return found
    for name in ("size", "sha256", "git"):
        first, second = getattr(one, name), getattr(other, name)
        if first and second and first != second:
            raise HubError(
                f"{where}: the hub says that {name} of {one.path} is {first}, and that it is {second}",
                hint="such a file cannot be verified; try again later",
            )
    return Expected(
        path=one.path,
        size=other.size if one.size is None else one.size,
        sha256=one.sha256 or other.sha256,
        git=one.git or other.git,
    )


def _expected(told: RepoSibling) -> Expected:
    """By a record whose fields may be anything. Of a file in LFS, `blob_id` is the pointer in Git and says nothing
    about the contents. Errors: TypeError.
    """
    if not isinstance(told.rfilename, str):
        raise TypeError(f"the list of files holds {str(told.rfilename)[:80]}")
    if told.lfs is not None:
        sha256 = str(told.lfs.sha256).lower()
        return Expected(path=told.rfilename, size=_count(told.lfs.size), sha256=sha256 if is_sha256(sha256) else "")
    git = str(told.blob_id or "").lower()
    return Expected(path=told.rfilename, size=_count(told.size), git=git if is_sha1(git) else "")


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
