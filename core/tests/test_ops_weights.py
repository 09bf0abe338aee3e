"""Weights by name, and the choice of a backend."""

import logging

import numpy as np
import pytest

from hf2q.backends.reference import ReferenceOps
from hf2q.backends.select import select_backend
from hf2q.backends.weights import ArraySource, Weights
from hf2q.codec import QuantCodec
from hf2q.errors import LoadError, UnknownNameError, UsageError
from hf2q.registry import Registry
from hf2q.types import BackendEntry

F32 = QuantCodec(name="F32", ggml_type=0, block_size=1, type_size=4, encoder="", decoder=f"{__name__}:decode_f32")


def decode_f32(data, out):
    out[...] = np.ascontiguousarray(data).view("<f4")


def codec(qtype):
    assert qtype == "F32"
    return F32


def weights(**arrays):
    return Weights(
        ArraySource({name: np.asarray(a, np.float32) for name, a in arrays.items()}), codec, ReferenceOps(threads=1)
    )


def test_tensors_are_loaded_when_asked_for_and_counted(caplog):
    found = weights(a=np.ones((2, 3)), b=[1.0, 2.0], unused=np.ones(5))
    assert "a" in found
    assert "c" not in found
    assert found.loaded == ()
    assert found.matrix("a").shape == (2, 3)
    assert found.array("b").tolist() == [1, 2]
    assert [(item.qtype, item.tensors, item.file_bytes, item.memory_bytes) for item in found.loaded] == [
        ("F32", 2, 32, 32)
    ]
    assert found.nbytes == 32
    with caplog.at_level(logging.INFO):
        found.log_summary()
    assert "F32: 2 tensors run as stored" in caplog.text


def test_rows_of_several_groups_are_handed_over_group_by_group():
    values = np.arange(24, dtype=np.float32).reshape(6, 4)
    found = weights(a=values).matrix("a", groups=2)
    assert found.shape == (2, 3, 4)
    assert np.array_equal(found.values, values.reshape(2, 3, 4))


def test_the_cost_of_decoding_is_logged(caplog):
    class Half(ArraySource):
        def rows(self, name):
            return super().rows(name)[:, ::2].copy()

    source = Half({"a": np.ones((2, 4), np.float32)})
    half = QuantCodec(
        name="HALF", ggml_type=1, block_size=1, type_size=2, encoder="", decoder=f"{__name__}:decode_half"
    )
    source.tensors = {"a": source.tensors["a"].__class__(shape=(2, 4), qtype="HALF")}
    found = Weights(source, lambda qtype: half, ReferenceOps(threads=1))
    found.matrix("a")
    with caplog.at_level(logging.INFO):
        found.log_summary()
    assert "HALF: 1 tensors decoded to float32, 0.0 MB in the file" in caplog.text


def decode_half(data, out):
    out[...] = 1


def test_a_missing_tensor_is_named():
    with pytest.raises(LoadError, match=r"arrays in memory: the tensor 'blk\.0\.x' is missing"):
        weights(a=[1.0]).matrix("blk.0.x")


# ---------------------------------------------------------------------------------------------------- the selection


def yes():
    return None


def no():
    return "no such device"


def high():
    return 5


def low():
    return 1


def last():
    return 0


class Chosen:
    def __init__(self, *, threads, exact=False):
        self.threads = threads


class Other(Chosen):
    pass


def entry(name, backend="Chosen", available="yes", priority="low"):
    here = __name__
    return BackendEntry(
        name=name,
        backend=f"{here}:{backend}",
        available=available if ":" in available else f"{here}:{available}",
        priority=f"{here}:{priority}",
        requires="pip install it",
    )


class FakePlugins:
    def __init__(self, *entries):
        self.backends = Registry("backend", [(e.name, e, "dist") for e in entries])

    def backend(self, name):
        return self.backends[name]


def test_auto_takes_the_available_backend_with_the_highest_priority():
    plugins = FakePlugins(entry("a"), entry("b", "Other", priority="high"), entry("c", available="no", priority="high"))
    assert isinstance(select_backend(plugins), Other)
    assert not isinstance(select_backend(plugins, "a"), Other)


def test_a_backend_that_cannot_run_says_why():
    plugins = FakePlugins(entry("a", available="no"), entry("b", available="not_a_module:f"))
    with pytest.raises(LoadError, match="'a' cannot run here: no such device") as caught:
        select_backend(plugins, "a")
    assert caught.value.hint == "pip install it"
    with pytest.raises(LoadError, match="not_a_module"):
        select_backend(plugins, "b")
    with pytest.raises(LoadError, match=r"no backend can run here \(a: no such device; b: "):
        select_backend(plugins)
    with pytest.raises(UnknownNameError, match="known: a, b"):
        select_backend(plugins, "cuda")


def test_falling_back_to_a_last_resort_is_said(caplog):
    assert isinstance(select_backend(FakePlugins(entry("a", priority="last"), entry("b", available="no"))), Chosen)
    assert "very slow" in caplog.text
    assert "others cannot run: b: no such device (pip install it)" in caplog.text
    caplog.clear()
    select_backend(FakePlugins(entry("a"), entry("b", available="no")))
    select_backend(FakePlugins(entry("a", priority="last"), entry("b", available="no")), "a")
    assert caplog.text == ""


def test_threads_reach_the_backend():
    assert select_backend(FakePlugins(entry("a")), threads=3).threads == 3
    with pytest.raises(UsageError):
        select_backend(FakePlugins(entry("a")), threads=0)
