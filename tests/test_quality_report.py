"""The report: its numbers are those of the measurements, nothing of a file becomes markup, and a browser shows it."""

import importlib.util
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from hf2q.cli import main
from hf2q.convert import convert
from hf2q.errors import FormatError
from hf2q.plugins import Plugins
from hf2q.quality.divergence import Comparison, Divergence, WindowDivergence
from hf2q.quality.report.card import markdown_card
from hf2q.quality.report.charts import _Axis
from hf2q.quality.report.colours import ErrorClasses, ramp, type_classes
from hf2q.quality.report.markup import VOID, clean, joined, tag
from hf2q.quality.report.measure import QUANTILES, make_report, summarised
from hf2q.quality.report.numbers import nats, size
from hf2q.quality.report.page import html_page
from hf2q.types import MetadataField
from tiny_gguf import ARCH, some, write_gguf

ROOT = Path(__file__).parent
CHECKPOINT = ROOT / "data" / "qwen3_5"
HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(2)>|`&\u202e\n# x'


class Page(HTMLParser):
    """A page as (elements, text); elements that are not closed in order fail."""

    def __init__(self, text):
        super().__init__()
        self.found, self.text, self.open = [], "", []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, element, attributes):
        self.found.append((element, dict(attributes)))
        self.open.append(element)

    def handle_startendtag(self, element, attributes):
        assert element in VOID
        self.found.append((element, dict(attributes)))

    def handle_endtag(self, element):
        assert self.open.pop() == element

    def handle_data(self, data):
        self.text += data

    def count(self, element):
        return sum(name == element for name, _ in self.found)


@pytest.fixture(scope="module")
def plugins():
    return Plugins.load()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    for recipe in ("f32", "q8_0", "q4_k_m"):
        convert(CHECKPOINT, recipe, folder / f"{recipe}.gguf", sidecars=False)
    (folder / "text").write_text((ROOT / "data" / "eval.txt").read_text()[:3000])
    return folder


@pytest.fixture
def hostile(tmp_path, plugins):
    """A report about files in which every text is markup."""
    keys = (ARCH, MetadataField.string("general.name", HOSTILE), MetadataField.string("general.license", HOSTILE))
    names = ["<b>t</b>", "blk.0.<script>alert(3)</script>", "blk.1.<script>alert(3)</script>", 'blk.1."x" onclick="y"']
    a = {name: some((2, 8), seed) for seed, name in enumerate(names)}
    b = {name: x.astype(np.float16) for name, x in a.items()}
    write_gguf(tmp_path / "whole.gguf", a, keys)
    folder = tmp_path / "other"
    folder.mkdir()
    files = [tmp_path / "<i>half|`.gguf", folder / "<i>half|`.gguf"]
    for path in files:
        write_gguf(path, b, keys)
    return make_report(files, tmp_path / "whole.gguf", plugins=plugins)


# ------------------------------------------------------------------------------------------------------------- numbers


def test_what_is_kept_of_a_comparison():
    kl = (0.0, 1e-12, 0.003, 0.0031, 500.0)
    window = WindowDivergence(kl=kl, same_top=(True,) * 5, reference_loss=(1.0,) * 5, candidate_loss=(1.0,) * 5)
    values = dict.fromkeys(Divergence.__struct_fields__, 0) | {"method": "plain", "corpus": "x", "corpus_sha256": "y"}
    found = summarised(Comparison(summary=Divergence(**values), cut=(), results=(window,)), "cpu")
    assert [share for share, _ in found.quantiles] == list(QUANTILES)
    assert (found.quantiles[0][1], found.quantiles[5][1], found.quantiles[-1][1]) == (0, 0.003, 500)
    assert sum(count for _, _, count in found.histogram) == 5
    assert found.histogram[0][2] == 2  # what is below the first bin
    assert found.histogram[-1][2] == 1
    inside = next(count for low, high, count in found.histogram if low <= 0.003 < high)
    assert inside == 2
    assert all(math.isclose(a[1], b[0]) for a, b in zip(found.histogram, found.histogram[1:], strict=False))


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0"), (1.2986, "1.30"), (12.34, "12.3"), (0.009694, "0.00969"), (3.04e-8, "3.04e-08")]
)
def test_divergences_are_shown_to_three_digits(value, shown):
    assert nats(value) == shown


def test_sizes():
    assert [size(n) for n in (0, 999, 1000, 999_949, 999_950, 5e12)] == [
        "0 B", "999 B", "1.0 kB", "999.9 kB", "1.0 MB", "5.0 TB"
    ]  # fmt: skip


def test_classes_of_errors_reach_from_the_smallest_to_the_largest():
    classes = ErrorClasses([0.0, None, 0.001, 0.02, 0.3])
    assert [classes.of(error) for error in (0.0, None, 0.001, 0.3)] == ["none", "lost", "e0", "e6"]
    bounds = classes.bounds()
    assert math.isclose(bounds[0][1], 0.001)
    assert math.isclose(bounds[-1][2], 0.3)
    for name, low, high in bounds:
        assert classes.of(math.sqrt(low * high)) == name
    assert ErrorClasses([0.1]).of(0.1) == "e0"
    assert ErrorClasses([0.0]).bounds() == []


def test_types_are_in_order_of_their_bits():
    assert list(type_classes(["F32", "Q4_K", "Q2_K", "Q8_0", "Q4_K"])) == ["Q2_K", "Q4_K", "Q8_0", "F32"]
    assert (ramp(0), ramp(1), ramp(2)) == ("#440154", "#fde725", "#fde725")


def test_ticks_are_round_and_few():
    for low, high in ((0, 7), (0, 123456), (2.8e6, 7.1e6), (0.013, 0.014)):
        ticks = _Axis(low, high, 0, 100, logarithmic=False).ticks()
        assert 2 <= len(ticks) <= 6
        assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in ticks)
    assert _Axis(1e-4, 2e-1, 0, 100, logarithmic=True).ticks() == [1e-4, 1e-3, 1e-2, 1e-1]
    assert _Axis(2, 3, 0, 100, logarithmic=True).ticks() == [2, 3]
    assert _Axis(5, 5, 0, 100, logarithmic=False).place(5) == 50


def test_markup_is_escaped_and_directions_are_spelled_out():
    assert tag("p", HOSTILE, title=HOSTILE).count("<") == 2
    assert joined("a", None, ["<", tag("rect", x=1.5)]) == 'a&lt;<rect x="1.5"/>'
    assert clean("a\u202eb\x00\n") == "a\\u202eb\\x00\\n"


# ---------------------------------------------------------------------------------------------------------- end to end


@pytest.fixture(scope="module")
def written(made):
    """Page, card and data of two files, measured against the checkpoint."""
    words = ["report", str(made / "q4_k_m.gguf"), str(made / "q8_0.gguf"), "--against", str(CHECKPOINT)]
    words += ["--corpus", str(made / "text"), "--n-ctx", "16", "--chunks", "2", "--threads", "1"]
    assert (
        main([*words, "-o", str(made / "r.html"), "--markdown", str(made / "r.md"), "--record", str(made / "w")]) == 0
    )
    return made


def test_the_numbers_are_those_of_the_measurements(written, capsys):
    options = ["--corpus", str(written / "text"), "--n-ctx", "16", "--chunks", "2", "--threads", "1"]
    files = [str(written / name) for name in ("q4_k_m.gguf", "q8_0.gguf")]
    # of a checkpoint's directory, what predicts is its f32 file; the record of the run says so window by window
    assert main(["report", *files, "--against", str(written / "f32.gguf"), *options, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    page, card = (written / "r.html").read_text(), (written / "r.md").read_text()
    for path, found in zip(files, report["files"], strict=True):
        for text in (page, card):
            assert nats(found["predictions"]["summary"]["mean"]) in text
            assert f"{found['predictions']['summary']['ratio']:.4f}" in text
            assert f"{found['weights']['total']['minimum']:.6f}" in text
            assert found["facts"]["files"][0]["sha256"] in text
        assert len((written / "w" / f"{Path(path).name}.jsonl").read_text().splitlines()) == 3
    assert main(["kld", str(written / "f32.gguf"), path, *options, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    summary = found["predictions"]["summary"]
    assert summary == {name: told[name] for name in summary}
    assert main(["cosine", path, str(CHECKPOINT), "--json"]) == 0
    assert found["weights"]["tensors"] == json.loads(capsys.readouterr().out)["tensors"]
    assert main(["info", path, "--json"]) == 0
    bits = json.loads(capsys.readouterr().out)["bits_per_weight"]
    assert math.isclose(found["facts"]["bits_per_weight"], bits, abs_tol=1e-4)
    assert not list(written.glob(".hf2q-report-*"))


def test_the_page_is_whole_and_needs_nothing_else(written):
    text = (written / "r.html").read_text()
    page = Page(text)
    assert not page.count("script") + page.count("link") + page.count("img") + page.count("iframe")
    assert "url(" not in text
    assert "@import" not in text
    links = [attributes["href"] for element, attributes in page.found if "href" in attributes]
    ids = {attributes["id"] for _, attributes in page.found if "id" in attributes}
    assert links
    assert {link.removeprefix("#") for link in links} <= ids
    assert page.count("table") == page.count("caption")
    assert page.count("svg") == 1 + 2 * 2
    assert all(a.get("aria-label") and a.get("role") for e, a in page.found if e in ("svg", "div") and a.get("role"))
    scopes = [attributes.get("scope") for element, attributes in page.found if element == "th"]
    assert set(scopes) == {"row", "col"}
    # each tensor is in both maps and in the table of its file
    assert page.text.count("blk.0.ffn_down.weight") >= 2
    assert sum(a.get("title", "").startswith("blk.0.ffn_down.weight: ") for _, a in page.found) == 4
    assert "receipt: recipe digest" in page.text


def test_a_report_without_a_text(tmp_path, capsys):
    a, b = (write_gguf(tmp_path / f"{n}.gguf", {"blk.0.w": some(8).astype(kind)}) for n, kind in enumerate("fe"))
    path = tmp_path / "r.html"
    words = ["report", str(b), "--against", str(a)]
    assert main([*words, "-o", str(path)]) == 0
    page = Page(path.read_text())
    assert "Predictions were not measured" in page.text
    assert "mean KL" not in page.text
    assert page.count("svg") == 1
    assert main([*words, "-o", str(path)]) == 3
    assert "--force replaces it" in capsys.readouterr().err
    path.write_text("")
    assert main([*words, "-o", str(path), "--force"]) == 0
    assert path.read_text()


def test_files_that_lose_nothing(tmp_path, plugins):
    path = write_gguf(tmp_path / "x.gguf", {"blk.0.w": some((2, 8)), "zero": np.zeros(4, np.float32)})
    page = Page(html_page(make_report([path, path], path, plugins=plugins)))
    assert [attributes["title"] for _, attributes in page.found if attributes.get("class") == "none"] == [
        f"{name}: 0.000 %" for _ in range(2) for name in ("zero", "blk.0.w")
    ]
    assert "x.gguf (2)" in page.text
    assert not re.search(r"\bnan\b|\binf\b", page.text)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "nothing to write"),
        (["-o", "{made}/text"], "exists"),
        (["-o", "{made}/x.gguf", "--force"], "file of weights"),
        (["-o", "{made}/f32.gguf", "--force"], "file of weights"),
        (["-o", "{made}/no/x.html"], "cannot be written"),
        (["-o", "{made}", "--force"], "cannot be written"),
        (["-o", "{made}/x", "--markdown", "{made}/x"], "cannot both be"),
        (["--json", "--n-ctx", "64"], "--n-ctx 64 cannot be followed"),
        (["--json", "--chunks", "2", "--exact"], "--chunks 2 and --exact cannot be followed"),
        (["--json", "--corpus", "nothing"], "there is no file nothing"),
    ],
)
def test_what_is_refused_before_anything_is_measured(made, words, told, capsys):
    given = [word.replace("{made}", str(made)) for word in words]
    assert main(["report", str(made / "q8_0.gguf"), "--against", str(made / "f32.gguf"), *given]) == 3
    assert told in capsys.readouterr().err


def test_no_file_is_no_report(made, capsys):
    assert main(["report", "--against", str(made / "f32.gguf"), "--json"]) == 3
    assert "no file" in capsys.readouterr().err


def test_a_receipt_of_another_file_is_refused(tmp_path, made, plugins):
    path = tmp_path / "q8_0.gguf"
    path.write_bytes((made / "q4_k_m.gguf").read_bytes())
    (tmp_path / "q8_0.gguf.receipt.json").write_bytes((made / "q8_0.gguf.receipt.json").read_bytes())
    with pytest.raises(FormatError, match="the receipt beside it tells of another file"):
        make_report([path], made / "f32.gguf", plugins=plugins)


# ------------------------------------------------------------------------------------------------------------- hostile


def test_nothing_of_a_file_becomes_markup(hostile):
    page = Page(html_page(hostile))
    assert {"script", "img", "b", "i"} & {element for element, _ in page.found} == set()
    assert not any(name.startswith("on") for _, attributes in page.found for name in attributes)
    assert "<script>alert(3)</script>" in page.text
    assert "\u202e" not in page.text
    assert "<i>half|`.gguf (2)" in page.text  # two of one name


def test_the_card_is_one_table_whatever_names_there_are(hostile):
    card = markdown_card(hostile)
    header, body = card.split("---\n", 2)[1:]
    assert json.loads(re.search(r"^license: (.*)$", header, re.MULTILINE)[1]) == HOSTILE
    rows = [line for line in body.splitlines() if line.startswith("|")]
    assert len(rows) == 4
    assert {row.count("|") for row in rows} == {7}
    outside = re.sub(r"`[^`\n]*`", "", body)
    assert not re.search(r"(?<!\\)[<>]", outside)
    assert sum(line.startswith("# ") for line in body.splitlines()) == 1
    assert "hf2q serve --model MODEL.gguf" in body


# ------------------------------------------------------------------------------------------------------------- browser


@pytest.fixture(scope="module")
def browser():
    spec = importlib.util.spec_from_file_location("browser", ROOT.parent / "core" / "tests" / "api" / "browser.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield from module.browser()


@pytest.fixture
def visit(browser):
    """A function that opens a page without a network; a request, a complaint or a dialog fails the test."""
    contexts, wrong = [], []

    def open_page(path, **options):
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 800}, "offline": True} | options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(dialog.message) or dialog.dismiss())
        page.on("console", lambda message: wrong.append(message.text))
        page.on("request", lambda request: None if request.url == path.as_uri() else wrong.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.mark.timeout(60)
def test_a_browser_shows_it(visit, written):
    page = visit(written / "r.html")
    assert page.title() == "What 2 files cost"
    assert page.locator("svg circle").count() == 2
    box = page.locator("svg .bar").first.bounding_box()
    assert box["height"] > 0
    cell = page.locator("td[title='blk.0.ffn_down.weight: Q4_K'], td[title='blk.0.ffn_down.weight: Q6_K']").first
    assert cell.evaluate("e => getComputedStyle(e).backgroundColor") not in ("rgba(0, 0, 0, 0)", "rgb(255, 255, 255)")
    table = page.locator("details table").last
    assert not table.is_visible()
    page.locator("summary").last.click()
    assert table.is_visible()


@pytest.mark.timeout(60)
def test_on_a_phone_in_the_dark(visit, written):
    page = visit(written / "r.html", viewport={"width": 360, "height": 640}, is_mobile=True, color_scheme="dark")
    wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 27)"
    # whatever is wider than the screen can be reached with the keyboard too
    assert page.locator("table:not([tabindex] table), svg:not([tabindex] svg)").count() == 0


@pytest.mark.timeout(60)
def test_hostile_names_do_nothing_in_a_browser(visit, hostile, tmp_path):
    path = tmp_path / "r.html"
    path.write_text(html_page(hostile))
    page = visit(path)
    assert page.locator("script, img, b, i, [onclick], [onerror]").count() == 0
    assert "<script>alert(3)</script>" in page.inner_text("body")
