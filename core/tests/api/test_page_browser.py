"""The page in a real browser, over a server with a scripted model."""

import json
import re
import threading
import time

import pytest
from browser import browser as started

from hf2q.serve.api.auth import digest
from hf2q.serve.api.settings import ApiSettings

pytestmark = pytest.mark.timeout(60)

SLOW = threading.Event()
"""While it is set, the model takes its time."""

FORMATTED = """## A title

With **bold**, *soft*, `code <b>x</b>` and a [link](https://example.org/a?b=1).

- one
- two
  - inner

```html
<script>alert(1)</script>
```

| a | b |
|---|---|
| 1 | 2 |

> quoted

<img src=x onerror="alert(2)"> [bad](javascript:alert(3)) [also](data:text/html,x)"""


def reply(conversation):
    """Depends on what was said last."""
    said = re.findall(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", conversation, re.DOTALL)[-1]
    if said == "format":
        return FORMATTED
    if said == "think":
        return "<think>\nFirst this, then that.\n</think>\n\nThe answer."
    if said == "long":
        return "word " * 3000
    if said == "history":
        return "|".join(re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", conversation, re.DOTALL)[0])
    return f"You said: {said}"


@pytest.fixture(scope="module")
def browser():
    yield from started()


@pytest.fixture(scope="module")
def server(running):
    with running(reply, before=lambda rows, tokens: time.sleep(0.01 if SLOW.is_set() else 0)) as site:
        yield site


class Watched:
    """A page, and what went wrong in it."""

    def __init__(self, browser, **options):
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 800}} | options)
        self.page = page = self.context.new_page()
        self.wrong = wrong = []
        self.sent = []
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}") or dialog.dismiss())
        page.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
        page.on("request", self.asked)

    def asked(self, request):
        if not request.url.startswith(self.base):
            self.wrong.append(f"asked {request.url}")
        if request.method == "POST":
            self.sent.append(json.loads(request.post_data))

    def visit(self, site):
        """The page of a server, as somebody sees it who has never been there."""
        self.base = site.base
        self.page.goto(site.base)
        self.page.evaluate("[localStorage, sessionStorage].forEach((each) => each.clear())")
        self.wrong.clear()
        self.sent.clear()
        return self.page


@pytest.fixture(scope="module")
def shared(browser):
    """One page for most tests: a fresh one takes a while."""
    return Watched(browser)


@pytest.fixture
def opened(browser, shared):
    """A function that opens the page of a server; whatever goes wrong in the page fails the test, but `errors`."""
    used = []

    def visit(site, *, errors=(), **options):
        watched = Watched(browser, **options) if options else shared
        used.append((watched, errors))
        page = watched.visit(site)
        page.sent = watched.sent
        return page

    yield visit
    for watched, errors in used:
        watched.page.unroute_all()
        watched.page.goto("about:blank")
        assert [each for each in watched.wrong if not any(word in each for word in errors)] == []


def ask(page, text):
    page.fill("#question", text)
    page.press("#question", "Enter")


def answer(page, number=0):
    """The text of an answer that is complete."""
    found = page.locator("article.assistant").nth(number)
    page.wait_for_function(
        "n => document.querySelectorAll('article.assistant')[n]?.getAttribute('aria-busy') === 'false'", arg=number
    )
    return found


def test_a_conversation(opened, server):
    page = opened(server)
    page.wait_for_selector("#ready[data-kind=good]")
    assert page.input_value("#model") == "scripted"
    ask(page, "hello")
    assert answer(page).locator(".text").last.inner_text() == "You said: hello"
    assert re.search(
        r"\d+ prompt tokens.* · \d+ generated · first after .* s", answer(page).locator(".foot").inner_text()
    )
    ask(page, "history")
    # what was said first is still known
    assert answer(page, 1).locator(".text").last.inner_text() == "user|hello"
    page.click("#new")
    assert page.locator("article").count() == 0
    ask(page, "history")
    assert answer(page).locator(".text").last.inner_text() == "user|history"


def test_markdown_is_shown_and_nothing_becomes_markup(opened, server):
    page = opened(server)
    ask(page, "format")
    text = answer(page).locator("> .text").last
    assert text.locator("h4").inner_text() == "A title"
    assert text.locator("strong").inner_text() == "bold"
    assert text.locator("em").inner_text() == "soft"
    assert text.locator("p code").inner_text() == "code <b>x</b>"
    assert text.locator("pre").inner_text() == "<script>alert(1)</script>"
    assert text.locator("ul ul li").inner_text() == "inner"
    assert text.locator("td").all_inner_texts() == ["1", "2"]
    assert text.locator("blockquote").inner_text() == "quoted"
    links = text.locator("a")
    assert [link.get_attribute("href") for link in links.all()] == ["https://example.org/a?b=1"]
    assert links.first.get_attribute("rel") == "noopener noreferrer"
    assert page.locator("#log :is(img, script, iframe, b)").count() == 0
    assert '<img src=x onerror="alert(2)">' in text.inner_text()
    assert "javascript:alert(3)" in text.inner_text()


def test_reasoning_is_folded_away(opened, server):
    page = opened(server)
    ask(page, "think")
    found = answer(page)
    assert found.locator("> .text").inner_text() == "The answer."
    assert not found.locator("details .text").is_visible()
    found.locator("summary").click()
    assert found.locator("details .text p").inner_text() == "First this, then that."


def test_stop_ends_the_answer_and_the_request(opened, server):
    page = opened(server)
    SLOW.set()
    try:
        ask(page, "long")
        page.wait_for_function("() => document.querySelector('article.assistant')?.innerText.includes('word word')")
        # the status shows it meanwhile
        page.wait_for_selector("#slots li[data-phase=decode]")
        assert "generated" in page.locator("#slots li[data-phase=decode] p").inner_text()
        before = server.engine.stats().cancelled
        page.click("#stop")
        assert answer(page).locator(".foot").inner_text().endswith("stopped")
        server.wait_for(lambda: server.engine.stats().cancelled == before + 1)
        assert page.is_visible("#send")
        page.wait_for_selector("#slots li[data-phase=idle]")
    finally:
        SLOW.clear()
    ask(page, "hello")
    assert answer(page, 1).locator(".text").last.inner_text() == "You said: hello"


def test_settings_are_sent_and_kept(opened, server):
    page = opened(server, errors=("status of 400",))
    page.click("#show-settings")
    page.fill("[name=system]", "Be brief.")
    page.fill("[name=temperature]", "0,5")
    page.fill("[name=max_tokens]", "many")
    page.click("#settings menu .main")
    assert "Most tokens is a number" in page.inner_text("#settings-wrong")
    page.fill("[name=max_tokens]", "7")
    page.fill("[name=tools]", "{")
    page.click("#settings menu .main")
    assert "not JSON" in page.inner_text("#settings-wrong")
    page.fill("[name=tools]", "[]")
    page.click("#settings menu .main")
    assert not page.is_visible("#settings")
    page.reload()
    ask(page, "hello")
    answer(page)
    body = page.sent[-1]
    assert (body["temperature"], body["max_completion_tokens"]) == (0.5, 7)
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert "tools" not in body
    assert answer(page).locator(".foot").inner_text().endswith("cut at the limit")


def test_a_refusal_is_shown(opened, server):
    page = opened(server, errors=("status of 400",))
    page.route("**/v1/chat/completions", lambda route: route.continue_(post_data=json.dumps({"model": "scripted"})))
    ask(page, "hello")
    assert "messages is missing" in answer(page).locator(".wrong").inner_text()
    page.unroute("**/v1/chat/completions")
    ask(page, "again")
    assert answer(page, 1).locator(".text").last.inner_text() == "You said: again"


def frames(*deltas, reason="stop"):
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    return "".join(f"data: {json.dumps(chunk)}\r\n\r\n: ping\r\n\r\n" for chunk in chunks) + "data: [DONE]\r\n\r\n"


def test_tool_calls_are_shown_and_answered(opened, server):
    """With a server of the test's own making: the wire is all that the page knows."""
    page = opened(server)
    calls = [
        {"role": "assistant", "content": ""},
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"<b>Rome</b>"}'}}]},
    ]
    answers = [frames(*calls, reason="tool_calls"), frames({"role": "assistant"}, {"content": "It rains."})]
    sent = []

    def fulfil(route):
        sent.append(json.loads(route.request.post_data))
        route.fulfill(content_type="text/event-stream", body=answers[len(sent) - 1])

    page.route("**/v1/chat/completions", fulfil)
    ask(page, "weather?")
    call = answer(page).locator(".call")
    assert call.locator(".name").inner_text() == "f"
    assert json.loads(call.locator("pre").inner_text()) == {"city": "<b>Rome</b>"}
    call.locator("textarea").fill("rain")
    page.click("text=Send result")
    assert answer(page, 1).locator(".text").last.inner_text() == "It rains."
    said = sent[1]["messages"]
    assert said[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"city":"<b>Rome</b>"}'}
    assert said[2] == {"role": "tool", "tool_call_id": "call_1", "content": "rain"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('data: {"error": {"message": "the engine failed", "type": "x", "code": "y"}}\n\n', "the engine failed"),
        ('data: {"choices": [{"index": 0, "delta": {"content": "half"}, "finish_reason": null}]}\n\n', "ended before"),
    ],
)
def test_streams_that_fail(opened, server, body, words):
    page = opened(server)
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    ask(page, "hello")
    assert words in answer(page).locator(".wrong").inner_text()


def test_a_server_with_a_key(opened, running):
    with running(reply, settings=ApiSettings(keys=(digest("the key"),))) as site:
        page = opened(site, errors=("status of 401",))
        page.wait_for_selector("#key[open]")
        page.fill("[name=key]", "wrong")
        page.press("[name=key]", "Enter")
        page.wait_for_function("() => document.querySelector('#key-why').textContent.includes('does not accept')")
        page.fill("[name=key]", "the key")
        page.press("[name=key]", "Enter")
        page.wait_for_selector("#ready[data-kind=good]")
        ask(page, "hello")
        assert answer(page).locator(".text").last.inner_text() == "You said: hello"
        assert page.evaluate("Object.values(localStorage).join().includes('the key')") is False


def test_on_a_phone(opened, server):
    page = opened(server, viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True, color_scheme="dark")
    page.wait_for_selector("#ready[data-kind=good]")
    assert not page.is_visible("#status")
    page.tap("#show-status")
    page.wait_for_selector("#slots li")
    ask(page, "format")
    answer(page)
    wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]
    # everything that is to be pressed has a name and is large enough
    small = page.evaluate(
        """[...document.querySelectorAll("button, select, textarea")].filter(e => e.checkVisibility())
           .filter(e => e.getBoundingClientRect().height < 28 || !(e.innerText || e.labels?.length)).map(e => e.id)"""
    )
    assert small == []


RENDER = """async (text) => {
    const { update } = await import("/web/markdown.js");
    const place = document.createElement("div");
    const began = performance.now();
    for (const part of [text.slice(0, text.length / 2), text]) update(place, part);
    return [performance.now() - began, place.textContent.length];
}"""


def test_a_model_that_babbles_does_not_stall_the_page(opened, server):
    page = opened(server)
    for piece in (
        "`",
        "*",
        "**a",
        "[",
        "# ",
        "> ",
        "- ",
        "-",
        "|",
        "| - ",
        "~",
        "` `` ",
        "[a](",
        "http://a",
        "\n> ",
        "a\n",
    ):
        for text in (piece * 9000, "".join(" " * at + "- a\n" for at in range(300)), "# " + "#" * 9000 + "x"):
            took = page.evaluate(RENDER, text)[0]
            assert took < 1500, (piece, took)
    # and a long answer without paragraphs is shown whole
    assert page.evaluate(RENDER, "word " * 20_000)[1] == 100_000


SSE = """async (pieces) => {
    const { events } = await import("/web/sse.js");
    const bytes = pieces.map((piece) => new Uint8Array(piece));
    const body = new ReadableStream({ start(c) { bytes.forEach((b) => c.enqueue(b)); c.close(); } });
    const found = [];
    for await (const data of events(body)) found.push(data);
    return found;
}"""


def test_events_cut_anywhere(opened, server):
    page = opened(server)
    for end in (b"\n", b"\r\n", b"\r"):
        raw = "data: äöü 海\n: ping\n\ndata:b\ndata: c\nid: 7\n\n".encode().replace(b"\n", end)
        for size in (1, 2, 3, 7, 100):
            pieces = [list(raw[at : at + size]) for at in range(0, len(raw), size)]
            assert page.evaluate(SSE, pieces) == ["äöü 海", "b\nc"], (end, size)
