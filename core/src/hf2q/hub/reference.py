"""What a user may write for a repository on the Hub: ``org/name``, or the address of one of its pages.

Something is local when it exists, when it begins like a path (``./``, ``../``, ``/``, ``~``), or when it is named like
a model file. huggingface_hub knows which ids there can be (`validate_repo_id`).
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hf2q.errors import UsageError
from hf2q.hub.settings import DEFAULT_ENDPOINT, constants, endpoint
from hf2q.types import Record

_ID = re.compile(r"\w(?:[\w.-]*\w)?/\w(?:[\w.-]*\w)?", re.ASCII)
_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_OTHER_KINDS = ("datasets", "spaces", "buckets", "kernels", "api")
_FILES = (".gguf", ".safetensors")
_EXAMPLE = "write org/name, for example Qwen/Qwen3.5-0.8B"


class Reference(Record, frozen=True, kw_only=True):
    """A repository as asked for.

    asked     as the user wrote it;  repo  the id in it
    revision  branch, tag or commit, None for the default branch
    file      a file in it, "" for the repository as a whole
    """

    asked: str
    repo: str
    revision: str | None = None
    file: str = ""


def parse_reference(text: str, revision: str | None = None, *, files: bool = False) -> Reference | None:
    """What `text` names on the Hub, or None when it is meant locally. `files` allows ``org/name:file.gguf``.

    Errors: UsageError for an address that is none of a model's repository, and for a revision given twice.
    """
    if _is_local(text):
        return None
    if re.match(r"https?:", text, re.IGNORECASE):
        return _with_revision(_from_address(text, files), revision)
    name, colon, file = text.partition(":")
    if colon and not files:
        return None
    if not _ID.fullmatch(name) or (not colon and name.lower().endswith(_FILES)):
        return None
    if colon and not file:
        raise UsageError(f"{text} names no file after the colon", hint="hf2q info org/name:file.gguf")
    return _with_revision(Reference(asked=text, repo=_checked(name), file=file), revision)


def repository(repo: str, revision: str | None = None) -> Reference:
    """A repository by its id alone, or by its address, whatever exists locally. Errors: UsageError."""
    if re.match(r"https?:", repo, re.IGNORECASE):
        return _with_revision(_from_address(repo, False), revision)
    return _with_revision(Reference(asked=repo, repo=_checked(repo)), revision)


def _is_local(text: str) -> bool:
    if not text or text in (".", "..") or text.startswith(("./", "../", "/", "~", ".\\", "..\\")):
        return True
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def _checked(repo: str) -> str:
    constants()  # the door to huggingface_hub
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UsageError(f"{repo!r} is not the id of a model on the Hub: {error}", hint=_EXAMPLE) from error
    if repo.startswith("datasets/"):
        raise UsageError(f"{repo!r} is not the id of a model on the Hub", hint=_EXAMPLE)
    return repo


def _with_revision(found: Reference, revision: str | None) -> Reference:
    if revision is None:
        return found
    check_revision(revision)
    if found.revision is not None and found.revision != revision:
        raise UsageError(f"{found.asked} names the revision {found.revision}, --revision {revision} another")
    return Reference(asked=found.asked, repo=found.repo, revision=revision, file=found.file)


def check_revision(revision: str) -> None:
    """Refuse what Git would not take for the name of a branch, tag or commit. Errors: UsageError."""
    parts = revision.split("/")
    bad = any(c.isspace() or not c.isprintable() or c in "~^:?*[\\" for c in revision) or ".." in revision
    if not revision or bad or any(part in ("", ".") for part in parts) or len(revision) > 250:
        raise UsageError(
            f"{revision!r} cannot be a revision", hint="--revision takes the name of a branch or tag, or a commit"
        )


def _from_address(text: str, files: bool) -> Reference:
    split = urlsplit(text)
    own = urlsplit(endpoint())
    if split.hostname not in _HOSTS and (split.hostname, split.port) != (own.hostname, own.port):
        raise UsageError(
            f"{text} is no address of {endpoint()}",
            hint=f"HF_ENDPOINT={split.scheme}://{split.netloc} chooses another hub; {_EXAMPLE}",
        )
    path = split.path
    if split.hostname not in _HOSTS or endpoint() == DEFAULT_ENDPOINT:
        path = path.removeprefix(own.path.rstrip("/"))
    parts = [unquote(part) for part in path.split("/") if part]
    if len(parts) < 2 or parts[0] in _OTHER_KINDS or not _ID.fullmatch("/".join(parts[:2])):
        raise UsageError(f"{text} is not the address of a model", hint=f"{DEFAULT_ENDPOINT}/org/name")
    repo, rest = _checked("/".join(parts[:2])), parts[2:]
    if not rest:
        return Reference(asked=text, repo=repo)
    kind, *rest = rest
    if kind not in ("tree", "blob", "resolve", "raw", "commit") or not rest:
        raise UsageError(f"{text} is not the address of a model", hint=f"{DEFAULT_ENDPOINT}/{repo}")
    revision, file = rest[0], "/".join(rest[1:])
    check_revision(revision)
    if file and (kind in ("tree", "commit") or not files):
        raise UsageError(
            f"{text} is the address of {file} in {repo}, expected that of the repository",
            hint=f"{DEFAULT_ENDPOINT}/{repo}/tree/{revision}",
        )
    return Reference(asked=text, repo=repo, revision=revision, file=file)
