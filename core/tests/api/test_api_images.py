"""Images in messages: which URLs are read, in which order, within which limits; and what a fetch may reach."""

import base64
import contextlib
import functools
import http.server
import io
import threading
import time

import msgspec
import numpy as np
import openai
import pytest
from PIL import Image

from hf2q.backends.media import ImageEmbeddings
from hf2q.errors import RequestError
from hf2q.serve.api.remote import fetch, is_public
from hf2q.serve.api.settings import ApiSettings
from hf2q.serve.vision import Vision
from hf2q.testing.scripted import scripted_tokenizer

CHAT = "/v1/chat/completions"
PLACE = "<|endoftext|>"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|endoftext|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Tower:
    """One token for each pixel row."""

    n_deepstack = 0

    def prepare(self, pixels):
        return (pixels,)

    def embed(self, pixels):
        return embeddings(pixels.shape[0])


def embeddings(tokens):
    return ImageEmbeddings(np.zeros((tokens, 4), np.float32), (), (tokens, 1))


def sees(model):
    (token,) = scripted_tokenizer().encode(PLACE)
    model.vision = Vision(Tower(), placeholder=PLACE, token=token)


@contextlib.contextmanager
def serving(running, **more):
    """A server whose engine leaves images out, since its graph sees nothing; the requests it got."""
    seen = []
    with running("I see", chat_template=TEMPLATE, change=sees, **more) as site:
        submit = site.engine.submit

        def without(request):
            seen.append(request)
            return submit(msgspec.structs.replace(request, images=()))

        site.engine.submit = without
        yield site, seen


@pytest.fixture(scope="module")
def seeing(running):
    with serving(running) as found:
        yield found


def picture(kind="PNG", size=(3, 2), colour=(255, 0, 0)):
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, kind)
    return out.getvalue()


def data_url(data, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def part(url, **more):
    return {"type": "image_url", "image_url": {"url": url, **more}}


def text(said):
    return {"type": "text", "text": said}


def ask(*parts, **more):
    return {"model": "scripted", "messages": [{"role": "user", "content": list(parts)}], **more}


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_kinds_of_images(seeing, kind):
    site, seen = seeing
    seen.clear()
    assert site.json("POST", CHAT, ask(part(data_url(picture(kind), f"image/{kind.lower()}"))))[0] == 200
    ((placed,),) = [request.images for request in seen]
    assert placed.image.tokens == 2


def test_with_the_official_client(seeing):
    site, _ = seeing
    with openai.OpenAI(base_url=f"{site.base}/v1", api_key="none") as client:
        content = [text("what is it?"), part(data_url(picture()), detail="auto")]
        answer = client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": content}])
    assert answer.choices[0].message.content == "I see"


def test_images_stay_where_they_are(seeing):
    site, seen = seeing
    seen.clear()
    body = ask(text("a"), part(data_url(picture())), text("b"), part(data_url(picture(size=(1, 3)))), text("c"))
    assert site.json("POST", CHAT, body)[0] == 200
    tokenizer = site.engine.model.tokenizer
    said = tokenizer.decode(seen[0].prompt_ids)
    assert f"user\na{PLACE * 2}b{PLACE * 3}c<|im_end|>" in said
    assert [placed.image.tokens for placed in seen[0].images] == [2, 3]


def test_scopes_tell_images_apart(seeing):
    site, seen = seeing
    seen.clear()
    for colour in ((1, 2, 3), (3, 2, 1), (1, 2, 3)):
        site.json("POST", CHAT, ask(part(data_url(picture(colour=colour)))))
    scopes = [request.scope for request in seen]
    assert len(set(scopes)) == 2
    assert scopes[0] == scopes[2]


PNG = picture()
BAD = [
    ("file:///etc/passwd", "unsupported_value"),
    ("/etc/passwd", "unsupported_value"),
    ("../x.png", "unsupported_value"),
    ("", "unsupported_value"),
    ("ftp://example.com/x.png", "unsupported_value"),
    ("javascript:alert(1)", "unsupported_value"),
    ("https://example.com/x.png", "unsupported_value"),
    ("HTTP://example.com/x.png", "unsupported_value"),
    ("data:", "invalid_value"),
    ("data:image/png", "invalid_value"),
    ("data:image/png,AAAA", "invalid_value"),
    ("data:image/png;base64", "invalid_value"),
    ("data:image/png;base64,????", "invalid_value"),
    ("data:image/png;base64,AAA", "invalid_value"),
    ("data:image/png;base64,", "invalid_value"),
    (data_url(PNG, "text/html"), "invalid_value"),
    (data_url(b"GIF89a"), "invalid_value"),
    (data_url(PNG[:40]), "invalid_value"),
    (data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"), "invalid_value"),
    (data_url(b"\0" * (21 << 20)), "invalid_value"),
]


@pytest.mark.parametrize(("url", "code"), BAD, ids=lambda value: str(value)[:30])
def test_urls_that_are_refused(seeing, url, code):
    site, seen = seeing
    seen.clear()
    status, _, body = site.json("POST", CHAT, ask(part(data_url(PNG)), part(url)))
    error = body["error"]
    assert (status, error["param"], error["code"]) == (400, "messages[0].content[1].image_url.url", code), error
    assert len(error["message"]) < 400
    assert not seen


def test_limits(running):
    limits = ApiSettings(max_images=2, max_image_pixels=20, max_image_bytes=200)
    with serving(running, settings=limits) as (site, seen):
        small = part(data_url(PNG))
        assert site.json("POST", CHAT, ask(small, small))[0] == 200
        for body, place in (
            (ask(small, small, small), 2),
            (ask(part(data_url(picture(size=(5, 5))))), 0),
            (ask(part(data_url(PNG + b"\0" * 200))), 0),
        ):
            status, _, found = site.json("POST", CHAT, body)
            param = f"messages[0].content[{place}].image_url.url"
            assert (status, found["error"]["param"]) == (400, param)
        assert len(seen) == 1


def test_a_bomb_is_not_decoded(seeing):
    site, _ = seeing
    out = io.BytesIO()
    Image.new("1", (12_000, 12_000)).save(out, "PNG")
    start = time.monotonic()
    status, _, body = site.json("POST", CHAT, ask(part(data_url(out.getvalue()))))
    assert (status, body["error"]["code"]) == (400, "invalid_value")
    assert "pixels" in body["error"]["message"]
    assert time.monotonic() - start < 2


# ------------------------------------------------------------------------------------------------------------ fetching


class Pages(http.server.BaseHTTPRequestHandler):
    """A server with an image, and with what a guard must not fall for."""

    def do_GET(self):
        port = self.server.server_address[1]
        where = {
            "/moved": "/image",
            "/loop": "/loop",
            "/inside": "http://10.0.0.1/secret",
            "/named": f"http://localhost:{port}/image",
            "/file": "file:///etc/passwd",
        }.get(self.path)
        if where:
            self.send_response(302)
            self.send_header("location", where)
            self.end_headers()
        elif self.path == "/none":
            self.send_error(404)
        elif self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):  # the client has had enough
                for _ in range(100):
                    self.wfile.write(b"x")
                    time.sleep(0.02)
        else:
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(PNG if self.path != "/large" else b"x" * 100_000)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def pages():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


get = functools.partial(fetch, param="p", seconds=5, limit=10_000, allowed=lambda address: address == "127.0.0.1")


def test_fetch(pages):
    assert get(f"{pages}/image") == PNG
    assert get(f"{pages}/moved") == PNG


@pytest.mark.parametrize("path", ["/loop", "/inside", "/file", "/none", "/large"])
def test_fetch_refuses(pages, path):
    with pytest.raises(RequestError) as caught:
        get(pages + path)
    assert (caught.value.param, caught.value.code) == ("p", "invalid_image_url")


def test_fetch_has_one_deadline(pages):
    start = time.monotonic()
    with pytest.raises(RequestError):
        get(f"{pages}/slow", seconds=0.2)
    assert time.monotonic() - start < 1.5


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://localhost/",
        "http://0.0.0.0/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://10.1.2.3/",
        "http://192.168.1.1/",
        "http://172.16.0.1/",
        "http://169.254.169.254/latest/meta-data",
        "http://[fe80::1]/",
        "http://[fd00::1]/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://user:secret@127.0.0.1/",
        "http:///x",
        "file:///etc/passwd",
        "http://127.0.0.1:99999/",
    ],
)
def test_nothing_inside_can_be_reached(url):
    with pytest.raises(RequestError) as caught:
        fetch(url, "p", seconds=2, limit=100)
    assert caught.value.code == "invalid_image_url"


def test_which_addresses_are_public():
    assert is_public("8.8.8.8")
    assert is_public("2001:4860:4860::8888")
    for address in ("127.0.0.1", "10.0.0.1", "100.64.0.1", "224.0.0.1", "::1", "::", "fe80::1%eth0", "::ffff:10.0.0.1"):
        assert not is_public(address)


def test_fetching_is_off_and_can_be_turned_on(running, pages):
    with serving(running, settings=ApiSettings(allow_remote_images=True)) as (site, seen):
        # on: but this one is not on the open internet
        status, _, body = site.json("POST", CHAT, ask(part(f"{pages}/image")))
        assert (status, body["error"]["code"]) == (400, "invalid_image_url")
        assert body["error"]["param"] == "messages[0].content[0].image_url.url"
        assert not seen
