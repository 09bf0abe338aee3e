"""Images of a request: from the URLs in its messages to pixels, within limits.

``data:`` URLs alone, unless the server is set up to fetch others. Paths and ``file:`` URLs are refused whatever the
settings: a client must not choose which files of this machine are read.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, overload

from hf2q.errors import RequestError
from hf2q.serve.api.chat_messages import ImageRef
from hf2q.serve.api.remote import fetch
from hf2q.serve.api.settings import ApiSettings

if TYPE_CHECKING:
    from hf2q.formats.images import Pixels

FETCH_SECONDS = 10.0
"""For one image, redirects included."""


class Images(Sequence["Pixels"]):
    """The images of a request, decoded when they are asked for: pixels uint8 (height, width, 3).

    Errors of that: RequestError naming the image that is none, or too large.
    """

    def __init__(
        self,
        refs: Sequence[ImageRef],
        files: Sequence[bytes],
        max_pixels: int,
        check: Callable[[], None] | None = None,
    ) -> None:
        self._refs, self._files, self._max_pixels, self._check = refs, files, max_pixels, check

    def checked(self, check: Callable[[], None] | None) -> Images:
        """The same, with `check` called before each is decoded."""
        return Images(self._refs, self._files, self._max_pixels, check)

    def __len__(self) -> int:
        return len(self._files)

    @overload
    def __getitem__(self, index: int) -> Pixels: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Pixels]: ...
    def __getitem__(self, index: int | slice) -> Pixels | Sequence[Pixels]:
        if isinstance(index, slice):
            return Images(self._refs[index], self._files[index], self._max_pixels, self._check)
        if self._check is not None:
            self._check()
        from hf2q.formats.images import read_image

        ref = self._refs[index]
        try:
            pixels = read_image(self._files[index])
        except RequestError as error:
            raise _invalid(ref, error.message, hint=error.hint) from error
        area = pixels.shape[0] * pixels.shape[1]
        if area > self._max_pixels:
            raise _invalid(ref, f"the image has {area} pixels, of which at most {self._max_pixels} are taken")
        return pixels

    @property
    def digest(self) -> str:
        """What tells these images from others, "" for none."""
        if not self._files:
            return ""
        return hashlib.sha256(b"".join(hashlib.sha256(file).digest() for file in self._files)).hexdigest()


def read_images(refs: Sequence[ImageRef], settings: ApiSettings) -> Images:
    """The images. May wait for other servers, where the settings allow that.

    Errors: RequestError naming the image that cannot be had, or that has too many bytes.
    """
    if len(refs) > settings.max_images:
        raise _invalid(
            refs[settings.max_images],
            f"there are {len(refs)} images, of which at most {settings.max_images} are taken",
        )
    return Images(refs, [_data(ref, settings) for ref in refs], settings.max_image_pixels)


def _data(ref: ImageRef, settings: ApiSettings) -> bytes:
    scheme = ref.url[:8].partition(":")[0].lower() if ":" in ref.url[:8] else ""
    if scheme == "data":
        return _decoded(ref, settings.max_image_bytes)
    if scheme not in ("http", "https"):
        raise _unsupported(ref, f"is {ref.url[:40]!r}, expected a data: URL with the image in base64")
    if not settings.allow_remote_images:
        raise _unsupported(ref, f"is an {scheme} URL, but this server does not fetch images")
    return fetch(ref.url, ref.param, seconds=FETCH_SECONDS, limit=settings.max_image_bytes)


def _decoded(ref: ImageRef, limit: int) -> bytes:
    head, comma, body = ref.url.partition(",")
    kind, *options = head[len("data:") :].lower().split(";")
    if not comma or options[-1:] != ["base64"]:
        raise _invalid(ref, "it is a data: URL, but not one in base64")
    if not kind.startswith("image/"):
        raise _invalid(ref, f"it is of the type {kind[:40]!r}, expected an image's")
    if len(body) > (limit + 2) // 3 * 4:
        raise _invalid(ref, f"it has more than the {limit} bytes that are taken")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _invalid(ref, "it is not valid base64") from error


def _invalid(ref: ImageRef, why: str, *, hint: str | None = None) -> RequestError:
    return RequestError(f"{ref.param}: {why}", hint=hint, param=ref.param, code="invalid_value")


def _unsupported(ref: ImageRef, why: str) -> RequestError:
    return RequestError(f"{ref.param} {why}", param=ref.param, code="unsupported_value")
