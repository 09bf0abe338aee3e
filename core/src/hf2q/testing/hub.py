"""A hub on this machine, for tests of downloads: it answers the calls that `huggingface_hub` makes, and goes wrong to
order.

    with FakeHub() as hub:                      # HF_ENDPOINT=hub.endpoint
        commit = hub.commit("org/name", folder)
        hub.fail("/resolve/", status=503, times=2)

Answers: ``/api/models/ID[/revision/REV]``, ``/api/models/ID/tree/COMMIT``, ``/api/models/ID/commits/REV`` and
``/ID/resolve/REV/PATH`` with ETag, X-Repo-Commit, X-Linked-Size, X-Linked-ETag; files in LFS are redirected to a second
address, which knows ranges. Source of the headers: huggingface_hub, file_download.py, constants.py.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

IN_LFS = (".safetensors", ".gguf", "tokenizer.json")


class Seen:
    """One request as it came: `path` with its query, headers by lower-case name."""

    def __init__(self, method: str, path: str, headers: Mapping[str, str], away: bool) -> None:
        self.method = method
        self.path = path
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.away = away

    def __repr__(self) -> str:
        return f"{self.method} {self.path}"


class FakeHub:
    """See above.

    endpoint   address of the hub;  cdn  of the second server, another origin
    seen       every request, in order
    metadata   where digests are told: ``siblings``, ``head``, or ``nowhere``
    token      when set, everything needs it
    ranges     whether ranges are known
    """

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.metadata = "siblings"
        self.token: str | None = None
        self.ranges = True
        self.commits: dict[str, dict[str, dict[str, bytes]]] = {}
        self.refs: dict[str, dict[str, str]] = {}
        self.names: dict[str, str] = {}
        self.orders: list[tuple[re.Pattern[str], Callable[[_Handler], bool]]] = []
        self._servers = [self._serve(away=False), self._serve(away=True)]
        # by another name, since huggingface_hub takes what answers under the same for the hub itself
        ports = [server.server_address[1] for server in self._servers]
        self.endpoint, self.cdn = f"http://127.0.0.1:{ports[0]}", f"http://localhost:{ports[1]}"

    def __enter__(self) -> FakeHub:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def commit(self, repo: str, files: Path | Mapping[str, bytes], branch: str = "main") -> str:
        """Add a commit with these files and nothing else; the branch names it from now on. Returns its SHA-1."""
        if isinstance(files, Path):
            files = {p.relative_to(files).as_posix(): p.read_bytes() for p in files.rglob("*") if p.is_file()}
        known = self.commits.setdefault(repo, {})
        text = repr((repo, len(known), sorted((name, _sha256(data)) for name, data in files.items())))
        commit = hashlib.sha1(text.encode()).hexdigest()
        known[commit] = dict(files)
        self.refs.setdefault(repo, {})[branch] = commit
        return commit

    def rename(self, old: str, new: str) -> None:
        """Requests for `old` are redirected to `new`."""
        self.commits[new], self.refs[new] = self.commits.pop(old), self.refs.pop(old)
        self.names[old] = new

    def order(self, pattern: str, act: Callable[[_Handler], bool], times: int = 1 << 30) -> None:
        """Have requests whose ``METHOD path`` matches handled by `act`, so often; it returns False to leave it."""
        left = [times]

        def limited(handler: _Handler) -> bool:
            if left[0] <= 0:
                return False
            left[0] -= 1
            return act(handler)

        self.orders.append((re.compile(pattern), limited))

    def fail(self, pattern: str, status: int, times: int = 1 << 30, headers: Mapping[str, str] | None = None) -> None:
        """Have such requests answered by a status."""
        self.order(pattern, lambda handler: handler.answer(status, b"", headers or {}), times)

    def cut(self, pattern: str, after: int, times: int = 1) -> None:
        """Have the connection break after so many bytes of the contents."""

        def act(handler: _Handler) -> bool:
            handler.limit = after
            return False

        self.order(pattern, act, times)

    def requests(self, pattern: str) -> list[Seen]:
        """Those whose ``METHOD path`` matches."""
        return [one for one in self.seen if re.search(pattern, repr(one))]

    def file(self, repo: str, revision: str, path: str) -> tuple[str, bytes] | None:
        """Commit and contents."""
        commit = self.refs.get(repo, {}).get(revision, revision)
        data = self.commits.get(repo, {}).get(commit, {}).get(path)
        return None if data is None else (commit, data)

    def _serve(self, *, away: bool) -> ThreadingHTTPServer:
        server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self, "away": away}))
        server.daemon_threads = True
        return server


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are what the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    away: bool
    limit: int | None = None

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""

    def do_HEAD(self) -> None:
        """As GET, without contents."""
        self.do_GET()

    def do_GET(self) -> None:
        """Look for orders, then answer."""
        hub = self.hub
        self.limit = None
        hub.seen.append(Seen(self.command, self.path, dict(self.headers.items()), self.away))
        for pattern, act in hub.orders:
            if pattern.search(f"{self.command} {self.path}") and act(self):
                return
        path = unquote(urlsplit(self.path).path)
        if self.away:
            self._contents(path)
            return
        if hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self.answer(401, b"", {"X-Error-Message": "Invalid credentials"})
            return
        for old, new in hub.names.items():
            if f"/{old}/" in f"{path}/":
                self.answer(307, b"", {"Location": self.path.replace(old, new)})
                return
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._info(match[1], match[2] or "main")
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path):
            self._tree(match[1], match[2])
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commits/([^/]+)", path):
            self.json([{"id": one, "title": "x"} for one in hub.commits.get(match[1], {})])
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(match[1], match[2], match[3])
        else:
            self.answer(404, b"", {})

    def json(self, value: Any, headers: Mapping[str, str] | None = None) -> None:
        """Answer with JSON."""
        self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> bool:
        """Answer; the connection breaks after `limit` bytes."""
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | dict(headers)).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if self.limit is None else body[: self.limit])
        if self.limit is not None:
            self.close_connection = True
        return True

    def _info(self, repo: str, revision: str) -> None:
        hub = self.hub
        if repo not in hub.commits:
            self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
            return
        commit = hub.refs[repo].get(revision, revision)
        if commit not in hub.commits[repo]:
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return
        files = hub.commits[repo][commit]
        blobs = parse_qs(urlsplit(self.path).query).get("blobs") and hub.metadata == "siblings"
        siblings = [{"rfilename": name, **(_blob(name, data) if blobs else {})} for name, data in files.items()]
        self.json({"id": repo, "sha": commit, "siblings": siblings})

    def _tree(self, repo: str, commit: str) -> None:
        found: list[dict[str, Any]] = [{"type": "directory", "path": "folder", "oid": "0" * 40, "size": 0}]
        for name, data in self.hub.commits[repo][commit].items():
            told = _blob(name, data)
            entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": told["blobId"]}
            if "lfs" in told:
                entry["lfs"] = {"oid": told["lfs"]["sha256"], "size": len(data), "pointerSize": 130}
            found.append(entry)
        page = int(parse_qs(urlsplit(self.path).query).get("cursor", ["0"])[0])
        headers = {}
        if page + 3 < len(found):
            base = self.path.split("&cursor")[0]
            headers["Link"] = f'<{self.hub.endpoint}{base}&cursor={page + 3}>; rel="next"'
        self.json(found[page : page + 3], headers)

    def _resolve(self, repo: str, revision: str, path: str) -> None:
        found = self.hub.file(repo, revision, path)
        if found is None:
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        commit, data = found
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        told = self.hub.metadata != "nowhere"
        if path.endswith(IN_LFS):
            if told:
                headers |= {"X-Linked-Size": str(len(data)), "X-Linked-ETag": f'"{_sha256(data)}"'}
            self.answer(302, b"", {**headers, "Location": f"{self.hub.cdn}/{repo}/{commit}/{path}?signature=secret"})
            return
        self._send(data, {**headers, **({"ETag": f'"{_git(data)}"'} if told else {})})

    def _contents(self, path: str) -> None:
        match = re.fullmatch(r"/([^/]+/[^/]+)/([^/]+)/(.+)", path)
        found = self.hub.file(match[1], match[2], match[3]) if match else None
        if found is None or "signature=secret" not in self.path:
            self.answer(403, b"", {})
            return
        self._send(found[1], {"ETag": '"0123456789abcdef0123456789abcdef"'})

    def _send(self, data: bytes, headers: Mapping[str, str]) -> None:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if match is None or not self.hub.ranges:
            self.answer(200, data, headers)
            return
        start, stop = int(match[1]), min(len(data), int(match[2] or len(data)) + 1)
        if start >= len(data):
            self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        self.answer(206, data[start:stop], {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"})


def _blob(name: str, data: bytes) -> dict[str, Any]:
    if name.endswith(IN_LFS):
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{_sha256(data)}\nsize {len(data)}\n".encode()
        lfs = {"sha256": _sha256(data), "size": len(data), "pointerSize": len(pointer)}
        return {"size": len(data), "blobId": _git(pointer), "lfs": lfs}
    return {"size": len(data), "blobId": _git(data)}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _git(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
