"""Quality gates: bounds of families, the corpus that is picked, and the command on the trained checkpoint."""

import hashlib
import json
import math
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hf2q
from hf2q.cli import main
from hf2q.convert import convert
from hf2q.errors import QualityError
from hf2q.plugins import Plugins
from hf2q.quality import gates, pick
from hf2q.quality.gates import Measured, bits_of, judge, mix_of
from hf2q.quality.metrics import log_softmax
from hf2q.testing.scripted import scripted_model
from hf2q.types import Thresholds

ROOT = Path(__file__).parent
BOUNDS = Thresholds(ppl_ratio_4_6=1.10, ppl_ratio_4_8=1.05, median_kl=0.02)


@pytest.mark.parametrize(
    ("qtype", "bits"),
    [("Q4_K", 4), ("q6_k", 6), ("IQ4_NL", 4), ("IQ3_XXS", 3), ("Q8_0", 8), ("TQ1_0", 1), ("MXFP4", 4), ("NVFP4", 4)]
    + [(qtype, None) for qtype in ("F32", "F16", "BF16", "I32", "F8_E4M3", "")],
)
def test_nominal_bits(qtype, bits):
    assert bits_of(qtype) == bits


def test_the_kind_of_a_mix_is_told_by_its_blocks():
    def of(*qtypes, outside="Q6_K"):
        return mix_of([("output.weight", outside), *((f"blk.{i}.attn_q.weight", q) for i, q in enumerate(qtypes))])

    assert of("Q4_K", "Q6_K", "F32") == "4-6"
    assert of("Q4_K", "Q5_K", "Q6_K") == "4-6"
    assert of("IQ4_XS", "Q8_0") == "4-8"
    assert of("Q4_0") is None, "no mix, whatever the output is"
    assert of("Q4_K", "Q5_K") is None
    assert of("Q5_K", "Q6_K") is None
    assert of("Q3_K", "Q6_K") is None
    assert of("F16") is None
    assert mix_of([]) is None


@pytest.mark.parametrize(("mix", "most"), [("4-6", 1.10), ("4-8", 1.05)])
def test_bounds_hold_up_to_themselves(mix, most):
    assert judge("x", BOUNDS, mix, Measured(ppl_ratio=most, median_kl=0.02)).outcome == "passed"
    above = judge("x", BOUNDS, mix, Measured(ppl_ratio=math.nextafter(most, 2), median_kl=0.02))
    assert (above.outcome, len(above.violations)) == ("failed", 1)
    assert "perplexity ratio" in above.violations[0]
    assert str(most).rstrip("0") in above.violations[0]
    both = judge("x", BOUNDS, mix, Measured(ppl_ratio=2.0, median_kl=0.03))
    assert [text.split(" is ")[0] for text in both.violations] == ["perplexity ratio", "median KL in nats"]
    assert not both.passed


@given(st.one_of(st.none(), st.floats()), st.one_of(st.none(), st.floats()))
def test_only_numbers_within_bounds_pass(ratio, kl):
    found = judge("x", BOUNDS, "4-6", Measured(ppl_ratio=ratio, median_kl=kl))
    fine = ratio is not None and kl is not None and 0 <= ratio <= 1.10 and 0 <= kl <= 0.02
    assert found.passed == fine
    assert bool(found.violations) != fine


def test_what_was_not_measured():
    missing = judge("x", BOUNDS, "4-8", Measured(ppl_ratio=1.0))
    assert missing.violations == ("median KL in nats was not measured, and nothing says why",)
    assert judge("x", BOUNDS, "4-8", Measured(ppl_ratio=math.nan, median_kl=0.0)).violations == (
        "perplexity ratio is nan, which is no measurement",
    )
    skipped = judge("x", BOUNDS, "4-8", Measured(skipped="no GPU"))
    assert (skipped.outcome, skipped.reason, skipped.passed) == ("skipped", "no GPU", True)


def test_without_a_bound_a_file_passes_and_says_so():
    for thresholds, mix, why in (
        (None, "4-6", "the family x has no bounds"),
        (BOUNDS, None, "the bounds of x are for mixes of 4 to 6 and 4 to 8 bits, which this is not"),
    ):
        found = judge("x", thresholds, mix, Measured(ppl_ratio=9.0, median_kl=9.0))
        assert (found.outcome, found.reason, found.passed) == ("unbounded", why, True)


def test_families_keep_their_bounds():
    """Literals of the specification: a silent change would loosen every gate."""
    archs = Plugins.load().archs
    for name, floor in (("qwen35", 100), ("qwen35moe", 150)):
        entry = archs[name]
        assert entry.thresholds == BOUNDS
        assert entry.disk_floor_gb == floor
        assert entry.smoke_prompts


# -------------------------------------------------------------------------------------------------------------- corpora


def test_the_ramp_is_the_known_one():
    ids = pick.ramp()
    data = struct.pack(f"<{len(ids)}I", *ids)
    assert (len(data), ids[:4], ids[-1]) == (2048, (3, 20, 37, 54), 8690)


def test_the_full_corpus_is_taken_when_it_is_valid(tmp_path, monkeypatch, caplog):
    model = scripted_model()
    text = tmp_path / "wiki.test.raw"
    for path, content, why in (
        (None, None, "no full corpus was named"),
        (text, None, "cannot be read"),
        (text, b"abc", "3 bytes of text, expected at least 1,048,576"),
        (text, b"\xff" * pick.LEAST_BYTES, "is not UTF-8"),
        (tmp_path / "it.zip", b"no archive", "has the SHA-256"),
    ):
        if content is not None:
            path.write_bytes(content)
        found = pick.pick(model, path)
        assert found.corpus is None
        assert why in found.reason
        assert f"corpus: ramp ({found.reason})" in caplog.text
    monkeypatch.setattr(pick, "LEAST_BYTES", 8)
    text.write_bytes(b"abcdefgh")
    assert "8 tokens for this model, expected at least 280,000" in pick.pick(model, text).reason
    monkeypatch.setattr(pick, "LEAST_TOKENS", 8)
    found = pick.pick(model, text)
    assert (found.name, found.corpus.text) == ("full", "abcdefgh")
    assert f"corpus: full ({text} is valid)" in caplog.text
    archive = tmp_path / "wikitext-2-raw-v1.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(pick.MEMBER, "abcdefghi")
    assert pick.pick(model, archive).corpus is None
    monkeypatch.setattr(pick, "ARCHIVE_SHA256", hashlib.sha256(archive.read_bytes()).hexdigest())
    assert pick.pick(model, archive).corpus.text == "abcdefghi"


def test_ids_are_measured_like_text():
    model = scripted_model(context_length=4)
    ids = tuple(model.tokenizer.encode("abcdefgh", add_bos=False))
    assert pick.measure_ids(model, model, ids, n_ctx=512) == (1.0, 0.0)
    with pytest.raises(QualityError, match="outside the vocabulary"):
        pick.measure_ids(model, model, (10**6,), n_ctx=4)


# ----------------------------------------------------------------------------------------------------------- end to end


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gates")
    for recipe in ("f32", "q4_k_m", "q8_0"):
        convert(ROOT / "data" / "qwen3_5", recipe, folder / f"{recipe}.gguf", sidecars=False, receipt=False)
    (folder / "text").write_text((ROOT / "data" / "eval.txt").read_text()[:2000])
    return folder


def check(made, recipe, *more):
    words = ["quality", str(made / f"{recipe}.gguf"), "--against", str(made / "f32.gguf"), "--json"]
    return main([*words, "--backend", "reference", *map(str, more)])


def test_a_file_is_judged(made, capsys, monkeypatch):
    text = ("--corpus", made / "text", "--n-ctx", "64", "--chunks", "2")
    code = check(made, "q4_k_m", *text)
    first = capsys.readouterr()
    found = json.loads(first.out)
    kinds = [qtype for qtype in ("4-6", "4-8") if qtype == found["mix"]]
    assert kinds, "the fixture's q4_k_m is one of the mixes with bounds"
    broken = found["ppl_ratio"] > found["bounds"][0]["most"] or found["median_kl"] > 0.02
    assert found["passed"] == (not broken)
    assert code == (2 if broken else 0)
    monkeypatch.setattr(
        gates, "bounds_for", lambda thresholds, mix: (gates.Bound(name="median_kl", most=0, label="KL"),)
    )
    assert check(made, "q4_k_m", *text) == 2
    told = capsys.readouterr()
    assert "allowed is at most 0" in told.err
    assert json.loads(told.out)["violations"]


def test_a_file_without_bounds_is_not_measured(made, capsys):
    assert check(made, "q8_0") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["outcome"] == "unbounded"
    assert "ppl_ratio" not in found


def test_the_ramp_needs_its_vocabulary(made, capsys):
    assert check(made, "q4_k_m") == 1
    assert "the ramp has token 8690, which is outside the vocabulary of 2048" in capsys.readouterr().err
    assert check(made, "q4_k_m", "--chunks", "2") == 3
    assert check(made, "q4_k_m", "--corpus", "a", "--full-corpus", "b") == 3


def test_measuring_ids_agrees_with_whole_logits(made):
    with (
        hf2q.load(made / "f32.gguf", backend="reference") as first,
        hf2q.load(made / "q8_0.gguf", backend="reference") as second,
    ):
        ids = tuple(range(100, 112))
        p, q = (log_softmax(model.logits(list(ids[:-1]))) for model in (first, second))
        rows = range(len(ids) - 1)
        gaps = [p[i, ids[i + 1]] - q[i, ids[i + 1]] for i in rows]
        ratio, _ = pick.measure_ids(first, second, ids, n_ctx=512)
        assert math.isclose(ratio, math.exp(sum(gaps) / len(gaps)), rel_tol=1e-6)
