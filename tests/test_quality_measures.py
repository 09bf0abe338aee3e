"""Perplexity and divergence: definitions on small numbers, windows, records, and the trained checkpoint end to end."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hf2q
from hf2q.cli import main
from hf2q.convert import convert
from hf2q.errors import MissingFileError, QualityError, SourceError
from hf2q.quality import divergence, perplexity
from hf2q.quality.metrics import cosine, divergences, log_softmax, losses
from hf2q.quality.record import Recorded
from hf2q.quality.shipped import open_corpus
from hf2q.quality.text import Corpus, windows
from hf2q.testing.scripted import scripted_model

ROOT = Path(__file__).parent
LOGITS = st.lists(st.floats(-30, 30, width=32), min_size=3, max_size=3)


@settings(max_examples=50, deadline=None)
@given(LOGITS, st.floats(-50, 50))
def test_log_softmax_does_not_see_a_shift(values, shift):
    logits = np.array([values], np.float32)
    found = log_softmax(logits)
    assert math.isclose(np.exp(found).sum(), 1.0)
    np.testing.assert_allclose(log_softmax(logits.astype(np.float64) + shift), found, atol=1e-6)


@settings(max_examples=50, deadline=None)
@given(LOGITS, LOGITS)
def test_divergence_is_never_negative_and_zero_only_of_itself(a, b):
    p, q = (log_softmax(np.array([values], np.float32)) for values in (a, b))
    assert divergences(p, p) == 0
    assert divergences(p, q) >= 0


def test_even_odds_have_the_vocabulary_as_perplexity():
    p = log_softmax(np.zeros((5, 8), np.float32))
    assert math.isclose(math.exp(losses(p, np.arange(5)).mean()), 8.0)


def test_what_cannot_be_measured():
    p = log_softmax(np.zeros((2, 4), np.float32))
    with pytest.raises(QualityError, match="token 4 is outside the vocabulary of 4"):
        losses(p, np.array([0, 4]))
    with pytest.raises(QualityError, match=r"logits hold nan at \(0, 1\)"):
        log_softmax(np.array([[0, np.nan]], np.float32))
    with pytest.raises(QualityError, match="cannot be compared"):
        divergences(p, p[:1])
    with pytest.raises(QualityError, match="has no direction"):
        cosine(np.zeros(3, np.float32), np.ones(3, np.float32))
    with pytest.raises(QualityError, match="have no cosine"):
        cosine(np.zeros(3, np.float32), np.ones(4, np.float32))
    assert cosine(np.array([1, 0], np.float32), np.array([0, 2], np.float32)) == 0
    assert math.isclose(cosine(np.array([1, 2], np.float32), np.array([2, 4], np.float32)), 1.0)


# ------------------------------------------------------------------------------------------------------------- windows


def corpus(text, name="text"):
    return Corpus(name=name, text=text, sha256="0" * 64)


def test_windows_of_the_two_methods():
    model = scripted_model()
    plain = windows(corpus("abcdefgh"), model, n_ctx=3)
    assert [len(window.ids) for window in plain] == [3, 3, 2]
    assert plain[0].targets == plain[0].ids[1:]
    llama = windows(corpus("abcdefgh"), model, n_ctx=4, method="llama")
    assert [(len(window.ids), window.first, len(window.targets)) for window in llama] == [(4, 2, 1), (4, 2, 1)]
    assert len(windows(corpus("abcdefgh"), model, n_ctx=3, most=2)) == 2


def test_texts_that_are_too_short_are_refused_with_both_numbers():
    model = scripted_model(context_length=16)
    with pytest.raises(QualityError, match="has 1 tokens for this model, expected at least 2"):
        windows(corpus("a"), model, n_ctx=8)
    with pytest.raises(QualityError, match="has 9 tokens for this model, expected at least 16"):
        windows(corpus("abcdefghi"), model, n_ctx=8, method="llama")
    with pytest.raises(QualityError, match="windows of 32 tokens do not fit the model's context of 16"):
        windows(corpus("abc"), model, n_ctx=32)


def test_corpora_that_cannot_be_read(tmp_path):
    with pytest.raises(MissingFileError, match="there is no file nothing, and no corpus of that name"):
        open_corpus("nothing")
    with pytest.raises(MissingFileError):
        open_corpus(str(tmp_path / "nothing"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(SourceError, match="is not UTF-8"):
        open_corpus(str(tmp_path / "binary"))


# ------------------------------------------------------------------------------------------------------------- records


def test_a_record_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "run.jsonl"
    with Recorded(path, {"a": 1}, int) as kept:
        kept.add(5)
        kept.add(6)
    with path.open("ab") as file:
        file.write(b"7")  # cut off by a kill
    with Recorded(path, {"a": 1}, int) as kept:
        assert kept.results == [5, 6]
        kept.add(8)
    with Recorded(path, {"a": 1}, int) as kept:
        assert kept.results == [5, 6, 8]
    with pytest.raises(QualityError, match="another measurement: a is 1 there, 2 here"):
        Recorded(path, {"a": 2}, int)
    path.write_bytes(b'{"a":1}\n"x"\n')
    with pytest.raises(QualityError, match="line 2: no result"):
        Recorded(path, {"a": 1}, int)
    path.write_bytes(b"[]\n")
    with pytest.raises(QualityError, match="holds no results"):
        Recorded(path, {"a": 1}, int)


# ---------------------------------------------------------------------------------------------------------- end to end


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quality")
    for recipe in ("f32", "q4_k_m"):
        convert(ROOT / "data" / "qwen3_5", recipe, folder / f"{recipe}.gguf")
    (folder / "text").write_text((ROOT / "data" / "eval.txt").read_text()[:6000])
    return folder


@pytest.fixture(scope="module")
def models(made):
    with (
        hf2q.load(made / "f32.gguf", backend="reference") as first,
        hf2q.load(made / "q4_k_m.gguf", backend="reference") as second,
    ):
        yield first, second


@pytest.mark.parametrize("method", ["plain", "llama"])
def test_divergence_and_perplexity_are_those_of_whole_logits(models, made, method):
    text = open_corpus(str(made / "text"))
    found = divergence.measure(*models, text, n_ctx=64, method=method, most=3)
    kl, nll = [], []
    for window in windows(text, models[0], n_ctx=64, method=method, most=3):
        p, q = (log_softmax(model.logits(window.ids)[window.first : -1]) for model in models)
        kl += (np.exp(p) * (p - q)).sum(-1).tolist()
        nll += (-q[np.arange(len(q)), window.targets]).tolist()
    summary = found.summary
    assert math.isclose(summary.mean, np.mean(kl), rel_tol=1e-3)
    assert math.isclose(summary.candidate_perplexity, math.exp(np.mean(nll)), rel_tol=1e-4)
    assert 0 < summary.median <= summary.p99 <= summary.maximum
    assert summary.tokens == len(kl) == len(list(found.tokens()))
    alone = perplexity.measure(models[1], text, n_ctx=64, method=method, most=3)
    assert math.isclose(alone.perplexity, summary.candidate_perplexity, rel_tol=1e-5)
    itself = divergence.measure(models[0], models[0], text, n_ctx=64, method=method, most=1).summary
    assert (itself.mean, itself.same_top, itself.ratio) == (0, 1, 1)


def test_an_interrupted_run_ends_as_a_whole_one(models, made, tmp_path):
    text, record = open_corpus(str(made / "text")), tmp_path / "run.jsonl"
    whole = perplexity.measure(models[0], text, n_ctx=32, most=4)

    def stop(what, done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        perplexity.measure(models[0], text, n_ctx=32, most=4, record=record, report=stop)
    seen = []
    again = perplexity.measure(
        models[0], text, n_ctx=32, most=4, record=record, report=lambda what, done, total: seen.append(done)
    )
    assert (again, seen) == (whole, [2, 3])
    with pytest.raises(QualityError, match="another measurement: n_ctx is 32 there, 16 here"):
        perplexity.measure(models[0], text, n_ctx=16, record=record)
    with pytest.raises(QualityError, match="another measurement: measurement is 'perplexity' there, 'divergence' here"):
        divergence.measure(*models, text, n_ctx=32, record=record)


def test_results_are_of_the_bytes_of_a_file_not_of_its_name(made, tmp_path):
    """A file that was made again, with another matrix, has the same name and size."""
    text, record, path = open_corpus(str(made / "text")), tmp_path / "run.jsonl", tmp_path / "model.gguf"
    data = bytearray((made / "q4_k_m.gguf").read_bytes())
    path.write_bytes(data)
    with hf2q.load(path, backend="reference") as model:
        perplexity.measure(model, text, n_ctx=32, most=1, record=record)
    data[-1000] ^= 1
    path.write_bytes(data)
    with (
        hf2q.load(path, backend="reference") as model,
        pytest.raises(QualityError, match="another measurement: sha256 is"),
    ):
        perplexity.measure(model, text, n_ctx=32, most=1, record=record)


def test_other_vocabularies_are_refused(models):
    with pytest.raises(QualityError, match="their predictions cannot be compared"):
        divergence.measure(models[0], scripted_model(), corpus("abc"), n_ctx=8)


def test_the_commands(made, tmp_path, capsys):
    words = ["--corpus", str(made / "text"), "--n-ctx", "32", "--chunks", "2", "--backend", "reference"]
    assert main(["ppl", str(made / "f32.gguf"), *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["windows"], found["tokens"], found["n_ctx"]) == (2, 62, 32)
    assert main(["ppl", str(made / "f32.gguf"), *words]) == 0
    assert f"{found['perplexity']:.4f}" in capsys.readouterr().out
    pair = ["kld", str(made / "f32.gguf"), str(made / "q4_k_m.gguf")]
    assert main([*pair, *words, "--json", "--csv", str(tmp_path / "t.csv")]) == 0
    told = json.loads(capsys.readouterr().out)
    with (tmp_path / "t.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == told["tokens"] == 62
    assert math.isclose(np.mean([float(row["kl"]) for row in rows]), told["mean"])
    assert main([*pair, *words]) == 0
    assert "same top token" in capsys.readouterr().out
    assert main(["ppl", str(made / "f32.gguf"), "--corpus", "nothing"]) == 3
