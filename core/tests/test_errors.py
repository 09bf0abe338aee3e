"""Errors that name the file they are about."""

import pytest

from hf2q.errors import FormatError, LoadError, SourceError, about


def test_the_place_comes_first_and_once():
    with pytest.raises(LoadError) as caught, about("model.gguf"), about("model.gguf"):
        raise LoadError("a key is missing", hint="convert it again")
    assert str(caught.value) == "model.gguf: a key is missing\nhint: convert it again"
    with pytest.raises(LoadError) as caught, about("model.gguf"):
        raise LoadError("there is no key in model.gguf")
    assert caught.value.message == "there is no key in model.gguf"


def test_of_one_kind_only():
    with pytest.raises(FormatError, match=r"^folder: broken"), about("folder", SourceError):
        raise FormatError("broken")
    for error in (LoadError("broken"), ValueError("broken")):
        with pytest.raises(type(error), match=r"^broken"), about("folder", SourceError):
            raise error
