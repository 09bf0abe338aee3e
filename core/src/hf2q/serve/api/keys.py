"""What is kept of API keys. Imports nothing heavy."""

from __future__ import annotations

import hashlib


def digest(key: str) -> bytes:
    """What is kept of an API key: 32 bytes from which it cannot be had back."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
