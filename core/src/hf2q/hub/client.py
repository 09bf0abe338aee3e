"""Requests to a hub through the session of huggingface_hub, with bounded patience.

`patiently` tries again what may pass, a connection that broke or a server that is busy: a few times, waiting as long as
the server asks for within a bound, and then gives up with a HubError. Nothing here lets huggingface_hub retry: its
`http_backoff` waits however long Retry-After says (1.33, utils/_http.py, lines 550 and 556), and reads no date there.
"""

from __future__ import annotations

import email.utils
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, TypeVar

from hf2q.errors import HubError

if TYPE_CHECKING:
    from httpx import HTTPError, Response  # what the session of huggingface_hub 1.x gives

log = logging.getLogger(__name__)

TRIES = 5
FIRST_WAIT, LONGEST_WAIT = 0.5, 8.0
MOST_PATIENCE = 120.0
"""Seconds that a server may ask to wait; asked for more, the run ends and says so."""

PASSING = frozenset({408, 429, 500, 502, 503, 504})

T = TypeVar("T")


class Trouble(Exception):
    """An attempt that failed and may succeed later. `wait` is what the server asks for, in seconds, None for nothing;
    `progress` says that the attempt achieved something, so that it does not count.
    """

    def __init__(self, message: str, wait: float | None = None, *, progress: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.wait = wait
        self.progress = progress


class Stopped(Exception):
    """Another request failed, or the user interrupted; what has arrived stays."""


class Client:
    """Asks one hub. Thread-safe.

    endpoint  its address;  token  of the user
    timeout   seconds that a server may stay silent
    pause     waits so many seconds; default until then or until `stopped` is set, which ends all that goes on
    api       huggingface_hub's questions about repositories
    headers   of every request, the token among them
    """

    def __init__(
        self, endpoint: str, token: str | None, timeout: float, pause: Callable[[float], object] | None = None
    ) -> None:
        from huggingface_hub import HfApi
        from huggingface_hub.utils import build_hf_headers

        self.endpoint = endpoint
        self.has_token = token is not None
        self.timeout = timeout
        self.stopped = threading.Event()
        self.pause = pause or self.stopped.wait
        name, number = "hf2q", version("hf2q")
        self.api = HfApi(endpoint=endpoint, token=token or False, library_name=name, library_version=number)
        self.headers = build_hf_headers(token=token or False, library_name=name, library_version=number)

    @contextmanager
    def answer(self, url: str, headers: Mapping[str, str] | None = None) -> Iterator[Response]:
        """Ask once, following redirects (the session leaves the token out elsewhere), for a body to be read as it
        comes, with `iter_raw`.

        Errors: those of huggingface_hub, for `patiently`; HubError for a redirect away from HTTPS.
        """
        from huggingface_hub.utils import get_session, hf_raise_for_status

        asked = {**self.headers, "Accept-Encoding": "identity", **(headers or {})}
        with get_session().stream("GET", url, headers=asked, timeout=self.timeout, follow_redirects=True) as reply:
            if self.endpoint.startswith("https:") and reply.url.scheme != "https":
                raise HubError(f"{place(url)} redirects to {place(reply.url)}, which is not trusted")
            with understood(url):
                hf_raise_for_status(reply)
            yield reply

    @staticmethod
    def commits(reply: Response) -> set[str]:
        """Every commit that the hub, which is asked first, itself named on the way to an answer."""
        hops = (*reply.history, reply)
        home = hops[0].url
        at_home = [hop for hop in hops if (hop.url.scheme, hop.url.netloc) == (home.scheme, home.netloc)]
        return {commit.strip() for hop in at_home for commit in hop.headers.get_list("X-Repo-Commit")}


@contextmanager
def understood(url: str) -> Iterator[None]:
    """Turn what huggingface_hub stumbles over in an answer, whose fields it takes on trust (hf_api.py,
    `ModelInfo.__init__`; utils/_http.py, `_format`), into a HubError.
    """
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise HubError(f"the answer of {place(url)} cannot be read: {type(error).__name__}: {error}") from error


def patiently(work: Callable[[], T], client: Client) -> T:
    """Call `work` until it succeeds.

    Errors: HubError once it was in trouble too often; HfHubHTTPError for an answer that will stay as it is; whatever
    else `work` raises.
    """
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # the latter is that of its session

    tries = 0
    while True:
        try:
            return work()
        except Trouble as error:
            trouble = error
        except HfHubHTTPError as error:
            reply = error.response
            if reply.status_code not in PASSING:
                raise
            trouble = Trouble(f"{place(reply.url)} answered {reply.status_code}", _wait_asked_for(reply.headers))
        except HTTPError as error:
            trouble = _failed(error)
        tries = 1 if trouble.progress else tries + 1
        wait = trouble.wait
        if wait is not None and wait > MOST_PATIENCE:
            raise HubError(
                f"{trouble.message} and asks to wait {wait:.0f} s", hint="try again then; what is here is kept"
            ) from trouble
        if tries >= TRIES:
            raise HubError(
                f"{trouble.message} (tried {TRIES} times)", hint="try again later; what is here is kept"
            ) from trouble
        seconds = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (tries - 1)) if wait is None else wait
        log.info("%s; trying again in %.1f s", trouble.message, seconds)
        client.pause(seconds)
        if client.stopped.is_set():
            raise Stopped from trouble


def place(url: object) -> str:
    """An address for a message: without query, which signs what a CDN gives away."""
    return str(url).partition("?")[0]


def _failed(error: HTTPError) -> Trouble:
    """By what the system said, which the session wraps several times. Errors: HubError for a certificate."""
    where = place(error.request.url)
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, ssl.SSLCertVerificationError):
            raise HubError(
                f"{where}: the certificate of the server is not trusted: {found.verify_message}",
                hint="SSL_CERT_FILE names a file with certificates to trust",
            ) from error
        if isinstance(found, TimeoutError):
            return Trouble(f"{where} cannot be reached: no answer in time")
        if isinstance(found, OSError) and found.strerror:
            return Trouble(f"{where} cannot be reached: {found.strerror}")
        found = found.__cause__ or found.__context__
    return Trouble(f"{where} cannot be reached: {error or type(error).__name__}")


def _wait_asked_for(headers: Mapping[str, str]) -> float | None:
    """Seconds by Retry-After (a number or a date), else by the RateLimit header when nothing is left of it."""
    from huggingface_hub.utils import parse_ratelimit_headers

    if text := headers.get("Retry-After", "").strip():
        if text.isdecimal():
            return float(text[:9])
        try:
            return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
        except (ValueError, TypeError, OverflowError):
            return None
    limit = parse_ratelimit_headers(headers)
    return float(limit.reset_in_seconds) if limit is not None and limit.remaining == 0 else None
