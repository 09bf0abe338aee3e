"""`SchemaError`: what a schema asks that cannot be enforced, and where in it."""

from __future__ import annotations

from collections.abc import Iterable


class SchemaError(Exception):
    """Parameters: `message` what is wrong; `path` the JSON pointer of the place, "" for the whole schema."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.path = path

    def __str__(self) -> str:
        return f"{self.message} (at {self.path or 'the top'})"


def pointer(parts: Iterable[str | int]) -> str:
    """The JSON pointer (RFC 6901) of a place."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)
