"""What the HTTP server allows, and how long it waits."""

from __future__ import annotations

from hf2q.types import Record

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names of a server that is for this machine alone."""

ANY_IP = "<ip>"
"""Stands for any IP address among the names of a server: no page can make an address of another its own."""


class ApiSettings(Record, frozen=True, kw_only=True):
    """Limits and rules of the HTTP server.

    Limits of one request; more of any of them is refused with 413 or 400:

    max_body      bytes of a body
    max_head      bytes of the request line and the headers together
    max_messages, max_tools, max_stops, max_images  entries of the fields of these names
    max_image_bytes, max_image_pixels  of one image: its bytes, and its width times its height
    max_choices   answers to one request: prompts times ``n``
    max_inputs    texts of one request for embeddings
    max_echo      tokens of a prompt whose log probabilities are asked for

    Seconds:

    head_s        until the head of a request has come;  body_s  until its body has: else it is cut off
    stall_s       that a client may read nothing of its answer, before the answer is given up
    ping_s        of silence after which a stream sends a comment
    load_wait_s   that a request waits for its model to be loaded

    Who may ask:

    max_connections  open at one time; more are answered with 503
    keys          digests of API keys, see `hf2q.serve.api.keys.digest`; none: no key is needed
    public_health  whether ``/health`` and ``/readyz`` need no key
    hosts         names that requests may call this server by (their Host header), without port; None: any. A name
                  that begins with ``*.`` stands for all below it; ``<ip>`` stands for any IP address
    cors_origins  origins whose pages may use this server; ``*`` for all

    What else the server does:

    allow_remote_images  fetch images that messages name by http and https URLs; of the open internet alone
    """

    max_body: int = 32 << 20
    max_head: int = 64 << 10
    max_messages: int = 4096
    max_tools: int = 512
    max_stops: int = 4
    max_images: int = 64
    max_image_bytes: int = 20 << 20
    max_image_pixels: int = 64 << 20
    max_choices: int = 32
    max_inputs: int = 2048
    max_echo: int = 4096
    head_s: float = 20.0
    body_s: float = 120.0
    stall_s: float = 60.0
    ping_s: float = 15.0
    load_wait_s: float = 300.0
    max_connections: int = 1024
    keys: tuple[bytes, ...] = ()
    public_health: bool = False
    hosts: frozenset[str] | None = None
    cors_origins: frozenset[str] = frozenset()
    allow_remote_images: bool = False
