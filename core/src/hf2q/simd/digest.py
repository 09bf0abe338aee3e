"""The digest by which what is kept on disk is named and checked: BLAKE2b, 32 bytes.

hashlib has the same one, but imports OpenSSL with it: 4 MB of memory that nothing else in a generation needs.
"""

from __future__ import annotations

try:
    from _blake2 import blake2b
except ImportError:  # a Python that was built without it
    from hashlib import blake2b

DIGEST = 32
"""Bytes of it."""


def digest(*parts: bytes) -> bytes:
    """The digest of what `parts` are, one after the other."""
    total = blake2b(digest_size=DIGEST)
    for part in parts:
        total.update(part)
    return total.digest()
