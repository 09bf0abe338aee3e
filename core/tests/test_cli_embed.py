"""``hf2q embed``: where texts come from, what is printed, what is refused. With an encoder of a few lines."""

import json

import numpy as np
import pytest

import hf2q.serve.load
from hf2q.backends.reference import ReferenceOps
from hf2q.cli import main
from hf2q.serve.model import Model
from hf2q.testing.scripted import ScriptedHParams, scripted_model, scripted_tokenizer


class Lengths:
    """The state of every token is (ids of the text, 1 / 3)."""

    n_vocab = scripted_tokenizer().n_vocab

    def hidden(self, ids, lengths):
        states = np.full((*ids.shape, 2), 1 / 3, np.float32)
        states[..., 0] = np.array(lengths)[:, None]
        return states


def encoder():
    tokenizer = scripted_tokenizer()
    return Model(
        path="toy.gguf",
        arch="toy",
        hparams=ScriptedHParams(n_vocab=tokenizer.n_vocab),
        metadata={"toy.pooling_type": 1},
        tokenizer=tokenizer,
        context_length=8,
        graph=Lengths(),
        task="embed",
        ops=ReferenceOps(threads=1),
    )


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command; gives exit code, stdout, stderr. Keeps what `load` was asked for."""
    asked = []

    def call(*words, model=None):
        def load(path, **options):
            asked.append((str(path), options))
            return model or encoder()

        monkeypatch.setattr(hf2q.serve.load, "load", load)
        code = main(["embed", "m.gguf", *words])
        return (code, *capsys.readouterr())

    call.asked = asked
    return call


def test_how_the_model_is_loaded(run):
    assert run("x", "--backend", "cpu", "-t", "3", "--exact")[0] == 0
    assert run("x")[0] == 0
    assert run.asked == [
        ("m.gguf", {"backend": "cpu", "threads": 3, "exact": True, "ignore_memory": False}),
        ("m.gguf", {"backend": "auto", "threads": None, "exact": False, "ignore_memory": False}),
    ]


def test_a_line_for_each_text(run):
    code, out, err = run("abc", "x", "--no-normalize")
    assert (code, err) == (0, "")
    assert out == "3.0 0.33333334\n1.0 0.33333334\n"


def test_vectors_have_length_one(run):
    _, out, _ = run("abc")
    assert np.isclose(np.linalg.norm([float(word) for word in out.split()]), 1)


def test_texts_from_a_file_follow_those_of_the_command_line(run, tmp_path):
    path = tmp_path / "texts"
    path.write_bytes("\ufeffabcd\r\n\n  \nä\x85b".encode())
    code, out, _ = run("x", "--file", str(path), "--json")
    told = json.loads(out)
    assert code == 0
    assert [row["text"] for row in told["embeddings"]] == ["x", "abcd", "ä\x85b"]
    assert [row["tokens"] for row in told["embeddings"]] == [1, 4, 5]
    assert told["tokens"] == 10


def test_json_is_one_line_with_numbers_as_short_as_float32(run):
    code, out, _ = run("ab", "--json", "--no-normalize", "--pooling", "last")
    assert code == 0
    assert out.count("\n") == 1
    assert "0.33333334" in out
    assert json.loads(out) == {
        "model": "toy",
        "arch": "toy",
        "backend": "reference",
        "pooling": "last",
        "normalized": False,
        "dimensions": 2,
        "tokens": 2,
        "embeddings": [{"text": "ab", "tokens": 2, "embedding": [2.0, 0.33333334]}],
    }


def test_texts_that_begin_with_a_hyphen(run):
    assert run("--no-normalize", "--", "--json")[1] == "6.0 0.33333334\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "there are no texts"),
        (("--file", "nowhere.txt"), "there is no file nowhere.txt"),
        (("x", "--pooling", "max"), "pooling 'max' is not known"),
        (("x" * 9,), "a text of 9 tokens does not fit the model's context of 8"),
        (("x", "--threads", "0"), "--threads"),
        (("x", "--jsn"), "--jsn"),
    ],
)
def test_what_it_refuses(run, words, message):
    code, out, err = run(*words)
    assert (code, out) == (3, "")
    assert message in err


def test_long_texts_are_cut_when_asked(run):
    assert run("x" * 9, "--truncate", "--no-normalize")[1] == "8.0 0.33333334\n"


def test_a_file_that_is_no_text(run, tmp_path):
    path = tmp_path / "bytes"
    path.write_bytes(b"\xff")
    code, _, err = run("--file", str(path))
    assert code == 3
    assert "is not UTF-8 text" in err


def test_a_model_that_generates(run):
    code, _, err = run("x", model=scripted_model())
    assert code == 3
    assert "scripted.gguf generates text" in err
