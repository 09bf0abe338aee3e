"""Pictures from files: PNG, JPEG, WebP, GIF and BMP as RGB pixels, and resizing. Needs Pillow, of the extra ``serve``.

An image comes from anywhere. Bounds are checked before anything is decoded, only the formats named are tried, and
whatever else Pillow finds wrong is one error.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hf2q.errors import MissingFileError, RequestError, UsageError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MAX_BYTES = 64 << 20
"""Of an encoded image."""
MAX_PIXELS = 1 << 26
"""Of a decoded one: 67 million, 200 MB."""

MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})
"""Pillow's words for 8 bits a colour and less; it cuts off what does not fit when it converts others."""

Pixels: TypeAlias = NDArray[np.uint8]


def read_image(source: str | os.PathLike[str] | bytes | NDArray[Any]) -> Pixels:
    """An image as RGB pixels uint8 (height, width, 3): from a file, its bytes, or an array that is one already.

    It is turned as its EXIF data say; transparency is dropped, as transformers does.

    Errors: MissingFileError; RequestError for what is no image of `FORMATS`, damaged, animated, deeper than 8 bits, or
    beyond `MAX_BYTES` or `MAX_PIXELS`; UsageError without Pillow.
    """
    if isinstance(source, np.ndarray):
        if source.dtype != np.uint8 or source.ndim != 3 or source.shape[2] != 3 or 0 in source.shape:
            raise _refused("an array", f"it is {source.dtype} {source.shape}, expected uint8 (height, width, 3)")
        _check_area("an array", source.shape[1], source.shape[0])
        return source
    if isinstance(source, bytes | bytearray | memoryview):
        name, data = "an image", bytes(source)
        if len(data) > MAX_BYTES:
            raise _refused(name, f"it has {len(data)} bytes, of which at most {MAX_BYTES} are taken")
    elif isinstance(source, str | os.PathLike):
        name, data = os.fspath(source), _read(Path(source))
    else:
        raise _refused(f"{source!r:.60}", "expected a file, the bytes of one, or pixels uint8 (height, width, 3)")
    return _decoded(name, data)


def resized(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """`pixels` at another size (height, width), bicubic; the same pixels when it is theirs. Errors: UsageError."""
    height, width = size
    if pixels.shape[:2] == (height, width):
        return pixels
    pillow = _pillow()
    image = pillow.fromarray(np.ascontiguousarray(pixels))
    return np.asarray(image.resize((width, height), resample=pillow.Resampling.BICUBIC))


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise MissingFileError(f"there is no file {path}") from error
    except OSError as error:
        raise _refused(str(path), f"it cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise _refused(str(path), f"it has more than the {MAX_BYTES} bytes that are taken")
    return data


def _decoded(name: str, data: bytes) -> Pixels:
    pillow = _pillow()
    from PIL import ImageOps

    try:
        with pillow.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_area(name, *image.size)
            if getattr(image, "n_frames", 1) != 1:
                raise _refused(name, f"it is animated, {image.n_frames} frames", hint="take one frame of it")
            if image.mode not in MODES:
                raise _refused(name, f"its pixels are of the kind {image.mode}", hint="save it with 8 bits a colour")
            turned = ImageOps.exif_transpose(image)
            return np.array(turned.convert("RGB"))
    except RequestError:
        raise
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise _refused(name, f"it has more than the {MAX_PIXELS} pixels that are taken") from error
    except pillow.UnidentifiedImageError as error:
        raise _refused(name, f"it is none of {', '.join(FORMATS)}") from error
    except Exception as error:  # a decoder may raise anything for bytes that are damaged
        raise _refused(name, f"it is damaged: {error}") from error


def _check_area(name: str, width: int, height: int) -> None:
    if width * height > MAX_PIXELS or not width * height:
        raise _refused(name, f"it is {width} × {height} pixels, of which at most {MAX_PIXELS} are taken")


def _refused(name: str, why: str, *, hint: str | None = None) -> RequestError:
    return RequestError(f"{name} is not taken as an image: {why}", hint=hint, param="image")


def _pillow() -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise UsageError(
            "images need Pillow, which is not installed", hint="pip install 'hf2q[serve]', or pip install pillow"
        ) from error
    return Image
