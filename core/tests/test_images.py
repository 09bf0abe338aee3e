"""Pictures from files: what is taken, what is refused, and the pixels that come out."""

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import hf2q.formats.images as images
from hf2q.errors import Hf2qError, MissingFileError, RequestError, UsageError
from hf2q.formats.images import read_image, resized

PIXELS = np.random.RandomState(0).randint(0, 256, (5, 7, 3)).astype(np.uint8)


def encoded(image, kind="PNG", **options):
    held = io.BytesIO()
    image.save(held, kind, **options)
    return held.getvalue()


PNG = encoded(Image.fromarray(PIXELS))


@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("BMP", {}), ("WEBP", {"lossless": True})])
def test_pixels_come_out_as_they_went_in(kind, options, tmp_path):
    data = encoded(Image.fromarray(PIXELS), kind, **options)
    (tmp_path / "a.bin").write_bytes(data)
    for source in (data, tmp_path / "a.bin", str(tmp_path / "a.bin"), PIXELS):
        found = read_image(source)
        assert found.dtype == np.uint8
        assert (found == PIXELS).all()


def test_a_jpeg_is_near():
    flat = np.full((16, 16, 3), 100, np.uint8)
    assert np.abs(read_image(encoded(Image.fromarray(flat), "JPEG")).astype(int) - 100).max() <= 2


def test_other_kinds_of_pixels_become_rgb():
    assert (read_image(encoded(Image.fromarray(PIXELS[..., 0]))) == PIXELS[..., :1]).all()
    alpha = np.concatenate([PIXELS, PIXELS[..., :1]], axis=-1)
    assert (read_image(encoded(Image.fromarray(alpha))) == PIXELS).all()


def test_an_image_is_turned_as_it_says():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert read_image(encoded(Image.fromarray(PIXELS), exif=exif)).shape == (7, 5, 3)


def png_of(width, height):
    """A PNG that states a size and holds nothing."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(8193, 8193), (20000, 20000), (100000, 100000)])
def test_an_image_too_large_is_refused_before_it_is_decoded(size):
    with pytest.raises(RequestError, match="pixels"):
        read_image(png_of(*size))


def test_too_many_bytes_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(images, "MAX_BYTES", len(PNG) - 1)
    (tmp_path / "a.png").write_bytes(PNG)
    for source in (PNG, tmp_path / "a.png"):
        with pytest.raises(RequestError, match="bytes"):
            read_image(source)


def animated():
    frames = [Image.fromarray(PIXELS), Image.fromarray(255 - PIXELS)]
    return encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it is none of PNG"),
        (b"GGUF" + bytes(100), "it is none of PNG"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "it is none of PNG"),
        (PNG[:60], "it is damaged"),
        (animated(), "it is animated, 2 frames"),
        (encoded(Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 257)), "its pixels are of the kind I;16"),
        (encoded(Image.fromarray(PIXELS), "TIFF"), "it is none of PNG"),
    ],
)
def test_what_is_no_picture_is_refused(data, said):
    with pytest.raises(RequestError, match=said) as raised:
        read_image(data)
    assert raised.value.param == "image"


@pytest.mark.parametrize("array", [PIXELS.astype(np.float32), PIXELS[..., 0], PIXELS[..., :2], PIXELS[:0]])
def test_an_array_must_be_rgb_pixels(array):
    with pytest.raises(RequestError, match="expected uint8"):
        read_image(array)


@pytest.mark.parametrize("source", [5, None, [PIXELS]])
def test_a_source_must_be_one_that_is_known(source):
    with pytest.raises(RequestError, match="expected a file, the bytes of one, or pixels uint8"):
        read_image(source)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(MissingFileError, match="there is no file"):
        read_image(tmp_path / "absent.png")
    with pytest.raises(RequestError, match="cannot be read"):
        read_image(tmp_path)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(PNG) - 1), st.integers(0, 255), st.booleans())
def test_damaged_bytes_are_an_image_or_one_error(at, value, cut):
    data = bytearray(PNG)
    data[at] = value
    try:
        found = read_image(bytes(data[:at] if cut else data))
    except Hf2qError:
        return
    assert found.dtype == np.uint8
    assert found.ndim == 3


def test_resizing():
    assert resized(PIXELS, (5, 7)) is PIXELS
    wide = resized(PIXELS, (10, 21))
    assert wide.shape == (10, 21, 3)
    assert (wide == np.asarray(Image.fromarray(PIXELS).resize((21, 10), Image.Resampling.BICUBIC))).all()
    flat = np.full((4, 4, 3), 77, np.uint8)
    assert (resized(flat, (9, 2)) == 77).all()


def test_without_pillow_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(UsageError, match="Pillow") as raised:
        read_image(PNG)
    assert "hf2q[serve]" in raised.value.hint
