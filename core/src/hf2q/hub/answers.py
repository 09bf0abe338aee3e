"""What a refusal of the Hub means, said in the words that help."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from hf2q.errors import AccessError, Hf2qError, HubError, MissingFileError
from hf2q.hub.client import Client, patiently
from hf2q.types import Record

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"

T = TypeVar("T")


class Asked(Record, frozen=True, kw_only=True):
    """What a request is about: `repo` at `revision`; `file` in it, whose address is `url`, "" for the whole."""

    repo: str
    revision: str
    file: str = ""
    url: str = ""


def ask(work: Callable[[], T], client: Client, asked: Asked) -> T:
    """`patiently`, with the errors of huggingface_hub as ours. Errors: HubError, AccessError, MissingFileError."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return patiently(work, client)
    except HfHubHTTPError as error:
        raise refusal(error, client, asked) from error


def refusal(error: HfHubHTTPError, client: Client, asked: Asked) -> Hf2qError:
    """The error for an answer that is none of those wanted."""
    from huggingface_hub.errors import (
        DisabledRepoError,
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    status = error.response.status_code
    what = f"{asked.file} of {asked.repo}" if asked.file else asked.repo
    page = f"{client.endpoint}/{asked.repo}"
    who = "this user" if client.has_token else "anybody who is not logged in"
    then = "see that the token may read it" if client.has_token else _LOG_IN
    if isinstance(error, DisabledRepoError):
        return AccessError(f"{client.endpoint} has disabled {asked.repo} ({status})", hint=f"{page} may say why")
    if isinstance(error, GatedRepoError) or (status == 403 and not isinstance(error, RepositoryNotFoundError)):
        return AccessError(
            f"{client.endpoint} does not give {what} to {who} ({status}): the repository is gated",
            hint=f"accept its licence on {page}, then {then}",
        )
    if status == 401 and client.has_token:
        return AccessError(
            f"{client.endpoint} does not give {what} for this token (401): there is no such repository, it is private, "
            "or the token is not valid",
            hint=f"check the id, and the token: {_LOG_IN}",
        )
    if status == 401:
        return AccessError(
            f"{client.endpoint} does not give {what} without a token (401): there is no such repository, or it is "
            "private",
            hint=f"check the id; for a private repository {_LOG_IN}",
        )
    if isinstance(error, RevisionNotFoundError):
        return no_revision(asked, client.endpoint)
    if status == 404 and asked.file and not isinstance(error, RepositoryNotFoundError):
        return MissingFileError(
            f"{asked.repo} has no file {asked.file} at {asked.revision}",
            hint=f"{page}/tree/{asked.revision} lists them",
        )
    if status == 404:
        return MissingFileError(
            f"there is no repository {asked.repo} on {client.endpoint}, and no directory of that name here",
            hint=f"check the id; a directory is best written ./{asked.repo}",
        )
    return HubError(f"{client.endpoint} answered {status} when asked for {what}, expected 200")


def no_revision(asked: Asked, endpoint: str) -> MissingFileError:
    """The repository is there, the revision is not."""
    return MissingFileError(
        f"{asked.repo} has no revision {asked.revision} on {endpoint}",
        hint=f"{endpoint}/{asked.repo}/tree/main lists branches and tags",
    )
