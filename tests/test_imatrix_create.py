"""Importance matrices computed end to end: against llama-imatrix, interrupted, from the command line, for `convert`."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from hf2q.cli import main
from hf2q.convert import convert
from hf2q.convert.receipt import read_receipt
from hf2q.errors import QualityError
from hf2q.formats.gguf import open_gguf
from hf2q.formats.imatrix import read_imatrix, write_imatrix
from hf2q.quality.imatrix.compare import compare
from hf2q.quality.imatrix.compute import compute
from hf2q.quality.shipped import open_corpus, shipped

DATA = Path(__file__).parent / "data"
EVAL = DATA / "eval.txt"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imatrix")
    convert(DATA / "qwen3_5", "f32", folder / "f32.gguf", sidecars=False)
    (folder / "text").write_text(EVAL.read_text()[:4000])
    return folder


def test_sums_and_counts_are_those_of_llama_imatrix(made):
    """The golden file is of llama-imatrix on the same text, 20 chunks of 256 tokens (data/PROVENANCE.md)."""
    pytest.importorskip("numba")
    theirs = read_imatrix(DATA / "qwen3_5.imatrix")
    ours = compute(made / "f32.gguf", open_corpus(str(EVAL)), n_ctx=256, most=20)
    found = compare(ours, theirs)
    assert found.agrees
    assert len(found.tensors) == 62
    assert found.relative < 5e-3
    assert (ours.chunk_count, ours.chunk_size) == (theirs.chunk_count, theirs.chunk_size) == (20, 256)
    assert not any(name.startswith("blk.8.") for name in ours.entries)  # MTP


def test_an_interrupted_run_ends_as_a_whole_one(made, tmp_path):
    text, record = open_corpus(str(made / "text")), tmp_path / "run.sums"
    options = {"n_ctx": 32, "most": 3, "backend": "reference"}
    whole = compute(made / "f32.gguf", text, **options)

    def stop(what, done, total):
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compute(made / "f32.gguf", text, record=record, report=stop, **options)
    seen = []
    again = compute(
        made / "f32.gguf", text, record=record, report=lambda what, done, total: seen.append(done), **options
    )
    assert seen == [1, 2]
    for name in ("whole", "again"):
        write_imatrix(tmp_path / name, locals()[name], "gguf")
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "again").read_bytes()
    seen.clear()
    assert compare(whole, compute(made / "f32.gguf", text, record=record, report=stop, **options)).absolute == 0
    with pytest.raises(QualityError, match="sums of 3 chunks, and 2 were asked for"):
        compute(made / "f32.gguf", text, record=record, **{**options, "most": 2})
    with pytest.raises(QualityError, match="another run: n_ctx is 32 there, 16 here"):
        compute(made / "f32.gguf", text, record=record, **{**options, "n_ctx": 16})


def test_chunks_are_read_by_themselves_and_add_up(made):
    text = open_corpus(str(made / "text"))
    options = {"n_ctx": 32, "backend": "reference"}
    first, second, both = (
        compute(made / "f32.gguf", text, skip=skip, most=most, **options) for skip, most in ((0, 1), (1, 1), (0, 2))
    )
    for name, entry in both.entries.items():
        parts = first.entries[name], second.entries[name]
        assert entry.counts == sum(part.counts for part in parts)
        np.testing.assert_allclose(entry.sums, sum(part.sums.astype(np.float64) for part in parts), rtol=1e-5)


def test_activations_that_overflow_name_the_tensor(made, tmp_path):
    raw, name = bytearray((made / "f32.gguf").read_bytes()), "blk.2.post_attention_norm.weight"
    with open_gguf(made / "f32.gguf") as file:
        row = file.rows(name).tobytes()
    at = raw.find(row)
    assert raw.find(row, at + 1) < 0
    raw[at : at + len(row)] = np.full(len(row) // 4, 1e30, np.float32).tobytes()
    (tmp_path / "big.gguf").write_bytes(raw)
    with (
        np.errstate(all="ignore"),
        pytest.raises(QualityError, match=r"go into blk\.2\.ffn_\w+\.weight are not finite"),
    ):
        compute(tmp_path / "big.gguf", open_corpus(str(made / "text")), n_ctx=16, most=1, backend="reference")


def test_the_command(made, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["imatrix", str(made / "f32.gguf"), "--corpus", str(made / "text"), "--n-ctx", "32", "--chunks", "2"]
    words += ["--backend", "reference"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["output"], told["chunks"], told["n_ctx"], told["entries"]) == ("f32.imatrix.gguf", 2, 32, 62)
    assert main(words) == 3
    assert "f32.imatrix.gguf exists" in capsys.readouterr().err
    assert main([words[0], "create", *words[1:], "--force"]) == 0
    assert "2 chunks of 32 tokens" in capsys.readouterr().out
    assert main([*words, "--process-output", "-o", "old.dat"]) == 0
    assert len(read_imatrix("old.dat").entries) == 62  # the output of this model is its embeddings: not counted
    assert main(["imatrix", "show", "f32.imatrix.gguf"]) == 0
    short = [*words[:-4], "--backend", "reference", "-o", "short.gguf", "--skip", "100"]
    assert main(short) == 1
    assert re.search(r"text has \d+ tokens for this model, expected at least 3264", capsys.readouterr().err)
    assert not Path("short.gguf").exists()


def test_the_gate(made, tmp_path, capsys):
    theirs = DATA / "qwen3_5.imatrix"
    assert main(["imatrix", "compare", str(theirs), str(theirs), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["agrees"]
    known = read_imatrix(theirs)
    other = known.filter(exclude=["blk.0.ffn_up"])
    write_imatrix(tmp_path / "other.gguf", other, "gguf")
    assert main(["imatrix", "compare", str(theirs), str(tmp_path / "other.gguf")]) == 2
    streams = capsys.readouterr()
    assert "only in the first" in streams.out
    assert "blk.0.ffn_up.weight" in streams.out
    assert "1 tensors are in one only, 0 of 61 differ" in streams.err
    assert main(["imatrix", "compare", str(theirs), str(theirs), "--abs", "nan"]) == 3


# ------------------------------------------------------------------------------------------------------------- convert


def test_convert_computes_what_it_needs_and_keeps_it(made, tmp_path, capsys):
    pytest.importorskip("numba")
    text = str(made / "text")
    words = ["--quant", "q4_k_m", "--imatrix-corpus", text, "--imatrix-n-ctx", "64", "--no-sidecars"]
    source = str(DATA / "qwen3_5")
    assert main(["convert", source, *words, "-o", str(tmp_path / "a.gguf")]) == 0
    matrix = tmp_path / "a.imatrix.gguf"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf", "a.gguf.receipt.json", "a.imatrix.gguf"]
    recipe = read_receipt(tmp_path / "a.gguf.receipt.json").recipe
    assert (recipe.imatrix.datasets, recipe.imatrix.n_ctx) == (("text",), 64)
    assert recipe.imatrix.chunks == read_imatrix(matrix).chunk_count
    convert(source, "q4_k_m", tmp_path / "b.gguf", imatrix=matrix, sidecars=False)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    # from a GGUF file, which runs as it is; the matrix goes where it is asked for
    words[-1:] = ["--imatrix-out", str(tmp_path / "m.gguf"), "-o", str(tmp_path / "c.gguf")]
    assert main(["convert", str(made / "f32.gguf"), *words]) == 0
    assert compare(read_imatrix(matrix), read_imatrix(tmp_path / "m.gguf")).agrees
    assert main(["convert", str(made / "f32.gguf"), *words]) == 3
    assert "exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--imatrix-out", "x"], "a matrix that is computed, and none is"),
        (["--imatrix-n-ctx", "64"], "a matrix that is computed, and none is"),
        (["--imatrix-corpus", "calibration", "--imatrix", "x"], "both --imatrix x and --imatrix-corpus calibration"),
        (["--imatrix-corpus", "calibration", "--dry-run"], "reads no weights"),
        (["--imatrix-corpus", "calibration", "--imatrix-n-ctx", "0"], "Must be >= 1"),
        (["--imatrix-corpus", "nothing"], "no corpus of that name"),
        (["--imatrix-corpus", "calibration", "--imatrix-out", "no/where.gguf"], "no file in a directory"),
    ],
)
def test_options_that_cannot_be_followed(tmp_path, monkeypatch, capsys, words, told):
    monkeypatch.chdir(tmp_path)
    assert main(["convert", str(DATA / "qwen3_5"), "--quant", "q4_k_m", "-o", "a.gguf", *words]) == 3
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------------------------------------------------------------- corpus


def six_words(text):
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[at : at + 6]) for at in range(len(words) - 5)}


def test_the_shipped_text_is_no_part_of_the_held_out_one():
    assert "calibration" in shipped()
    text = open_corpus("calibration").text
    assert 150_000 < len(text.encode()) < 300_000
    assert "\r" not in text
    assert not six_words(text) & six_words(EVAL.read_text())
