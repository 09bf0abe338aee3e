"""Parts of a file that stays on the hub."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hf2q.errors import HubError
from hf2q.hub.answers import Asked, ask
from hf2q.hub.api import check_commit
from hf2q.hub.client import Client, Trouble, place

if TYPE_CHECKING:
    from httpx import Response

MOST_SKIPPED = 64 << 20


def read_range(client: Client, asked: Asked, start: int, stop: int) -> tuple[bytes, int | None]:
    """Bytes `start` to `stop` of a file (fewer when it ends before), and its size when the answer tells.

    A server that knows no ranges sends the whole file: it is read up to `stop`, from a `start` that is not far.
    Errors: HubError, AccessError, MissingFileError.
    """
    from huggingface_hub.errors import HfHubHTTPError

    def once() -> tuple[bytes, int | None]:
        with client.answer(asked.url, {"Range": f"bytes={start}-{stop - 1}"}) as reply:
            check_commit(client.commits(reply), asked)
            if reply.status_code == 206:
                total = _total(reply, start)
                length = reply.headers.get("Content-Length", "")
                count = stop - start if total is None else min(stop, total) - start
                return _read(reply, min(count, int(length)) if length.isdecimal() else count), total
            if start > MOST_SKIPPED:
                raise HubError(f"{asked.url}: the server knows no ranges, and the wanted part begins at byte {start}")
            length = reply.headers.get("Content-Length", "")
            whole = int(length) if length.isdecimal() else None
            end = stop if whole is None else min(stop, whole)
            return _read(reply, end)[start:], whole

    try:
        return ask(once, client, asked)
    except HubError as error:
        if isinstance(error.__cause__, HfHubHTTPError) and error.__cause__.response.status_code == 416:
            return b"", None
        raise


def _total(reply: Response, start: int) -> int | None:
    text = reply.headers.get("Content-Range", f"bytes {start}-0/*")
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", text.strip())
    if match is None or int(match[1]) != start:
        raise HubError(f"{place(reply.url)}: asked for bytes from {start} on, the answer is {text[:80]!r}")
    return None if match[2] == "*" else int(match[2])


def _read(reply: Response, count: int) -> bytes:
    data = bytearray()
    for piece in reply.iter_raw() if count else ():
        data += piece
        if len(data) >= count:
            return bytes(data[:count])
    if len(data) < count:
        raise Trouble(f"{place(reply.url)}: the answer ended after {len(data)} of {count} bytes")
    return bytes(data)
