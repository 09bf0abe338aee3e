"""`hf2q.load`: what cannot be meant is refused, with its name and what was expected."""

from pathlib import Path

import numpy as np
import pytest

import hf2q
from hf2q.convert import convert
from hf2q.errors import UsageError


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("arguments") / "model.gguf"
    convert(Path(__file__).parent / "data" / "qwen3_5", "q8_0", path)
    return path


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"path": None}, "path is None, expected the path of a GGUF file"),
        ({"path": ""}, "path is '', expected the path of a GGUF file"),
        ({"path": b"model.gguf"}, "path is b'model.gguf', expected"),
        ({"mmproj": 3}, "mmproj is 3, expected the path of a GGUF file"),
        ({"backend": None}, "backend is None, expected the name of one, or 'auto'"),
        ({"threads": 0}, "0 threads asked for, expected a whole number from 1 to 1024"),
        ({"threads": 1.5}, "1.5 threads asked for"),
        ({"threads": "2"}, "'2' threads asked for"),
        ({"threads": True}, "True threads asked for"),
        ({"ctx": 1}, "a context of 1 tokens was asked for; the model takes 2 to 4096"),
        ({"ctx": 5000}, "a context of 5000 tokens"),
        ({"ctx": 16.0}, "a context of 16.0 tokens"),
        ({"ctx": "16"}, "a context of '16' tokens"),
    ],
)
def test_arguments_that_cannot_be_meant(file, given, told):
    with pytest.raises(UsageError) as caught:
        hf2q.load(**{"path": file, "backend": "reference"} | given)
    assert told in caught.value.message


def test_the_context_may_be_any_whole_number(file):
    with hf2q.load(str(file), backend="reference", ctx=np.int32(16)) as model:
        assert model.context_length == 16
    with pytest.raises(ValueError, match=r"is closed: the array 'tokenizer\.ggml\.tokens' cannot be read any more"):
        model.metadata["tokenizer.ggml.tokens"]
    assert model.logits([1, 2]).shape == (2, model.n_vocab)  # it runs on
