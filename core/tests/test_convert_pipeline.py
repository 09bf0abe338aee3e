"""The stream from rows to file: the same bytes however it is cut, and nothing left behind when it fails."""

import importlib.util
import os
import sys
import threading
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

from hf2q.convert import convert, pipeline
from hf2q.errors import EncodeError, SourceError, UsageError, WriteError
from hf2q.formats.gguf.reader import open_gguf
from hf2q.plugins import Plugins

BARE = {"provenance": False, "sidecars": False, "receipt": False}
"""Nothing but llama.cpp's file; what comes besides has tests of its own."""


@pytest.fixture
def family(monkeypatch):
    spec = importlib.util.spec_from_file_location("fake_family", Path(__file__).parent / "data" / "fake_family.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fake_family", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def plugins(family):
    points = [("builtin", "hf2q.builtin"), ("fake", "fake_family")]
    return Plugins.load(strict=True, entry_points=[EntryPoint(n, v, "hf2q") for n, v in points])


@pytest.fixture
def run(plugins, tmp_path):
    def make(folder, recipe="f16", output="out.gguf", **options):
        return convert(folder, recipe, tmp_path / output, plugins=plugins, **BARE | options)

    return make


@pytest.fixture
def folder(family, tmp_path):
    return family.write_checkpoint(tmp_path / "model")


def left_in(directory):
    return sorted(path.name for path in directory.iterdir())


def values(path, name):
    with open_gguf(path) as opened:
        tensor = opened.tensors[name]
        dtype = {"F32": np.float32, "F16": np.float16}[tensor.qtype]
        return np.array(opened.rows(name)).view(dtype).reshape(tensor.shape).astype(np.float32)


def test_values_arrive(family, run, folder, tmp_path):
    summary = run(folder)
    tensors = family.tensors_of()
    table = values(summary.output, "token_embd.weight")
    np.testing.assert_array_equal(table, tensors["model.embed.weight"].astype(np.float16).astype(np.float32))
    norm = values(summary.output, "blk.1.attn_norm.weight")
    np.testing.assert_array_equal(norm, tensors["model.layers.1.norm.weight"] * 2)
    assert summary.nbytes == Path(summary.output).stat().st_size
    assert left_in(tmp_path) == ["model", "out.gguf"]


@pytest.mark.parametrize("recipe", ["f32", "f16", "bf16"])
def test_bytes_do_not_depend_on_threads_or_cuts(run, folder, monkeypatch, recipe):
    expected = Path(run(folder, recipe, threads=1).output).read_bytes()
    for piece, threads in ((64, 3), (100, 2), (1, 5), (1 << 30, 4)):
        monkeypatch.setattr(pipeline, "PIECE", piece)
        made = run(folder, recipe, f"{piece}.gguf", threads=threads)
        assert Path(made.output).read_bytes() == expected


def test_few_pieces_are_under_way_at_a_time(family, run, plugins, tmp_path, monkeypatch):
    """A slow writer must not make the reader run ahead: that would be the whole model in memory."""
    folder = family.write_checkpoint(tmp_path / "model")
    monkeypatch.setattr(pipeline, "PIECE", 64)
    encode, under_way, most, lock = pipeline._encode, 0, 0, threading.Lock()

    def counted(*arguments):
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        return encode(*arguments)

    def written(plan, tensor, done):
        nonlocal under_way
        with lock:
            under_way -= 1

    monkeypatch.setattr(pipeline, "_encode", counted)
    run(folder, threads=3, progress=written)
    assert under_way == 0
    assert most <= pipeline.AHEAD * 3


def test_progress_ends_at_the_last_byte(run, folder):
    seen = []
    summary = run(folder, progress=lambda plan, tensor, done: seen.append((tensor.name, done)))
    assert seen[-1] == ("blk.1.ffn_up.weight", summary.plan.nbytes)
    assert [done for _, done in seen] == sorted(done for _, done in seen)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("name", "tensor"), [("up", "blk.1.ffn_up.weight"), ("norm", "blk.1.attn_norm.weight")])
@pytest.mark.parametrize("recipe", ["f16", "bf16", "f32"])
def test_values_that_cannot_be_encoded_are_placed(family, run, tmp_path, value, name, tensor, recipe):
    tensors = family.tensors_of()
    tensors[f"model.layers.1.{name}.weight"].reshape(-1)[-1] = value
    with pytest.raises(EncodeError) as caught:
        run(family.write_checkpoint(tmp_path / "model", tensors), recipe)
    row = 63 if name == "up" else 0
    assert f"tensor {tensor!r} holds {value} at row {row}, column 63" in caught.value.message
    assert left_in(tmp_path) == ["model"]


def test_values_beyond_float16_are_refused_with_the_way_out(family, run, tmp_path):
    tensors = family.tensors_of()
    tensors["model.layers.1.up.weight"][5, 7] = -65520
    folder = family.write_checkpoint(tmp_path / "model", tensors)
    with pytest.raises(EncodeError) as caught:
        run(folder, "f16")
    assert "tensor 'blk.1.ffn_up.weight' holds -65520.0 at row 5, column 7" in caught.value.message
    assert "--quant bf16" in caught.value.hint
    assert left_in(tmp_path) == ["model"]
    tensors["model.layers.1.up.weight"][5, 7] = -65519.996  # rounds to the largest float16
    assert run(family.write_checkpoint(tmp_path / "model", tensors), "f16")


def test_an_intermediate_that_overflows_names_the_other(family, plugins, tmp_path):
    """Only reachable by quantizing; the recipe here stores BF16, so the visit to F16 is all that can overflow."""
    tensors = family.tensors_of()
    tensors["model.layers.0.up.weight"][1, 2] = 1e6
    folder = family.write_checkpoint(tmp_path / "model", tensors)
    with pytest.raises(EncodeError) as caught:
        convert(folder, "to-bf16", tmp_path / "out.gguf", plugins=plugins)
    assert "row 1, column 2, which F16 cannot hold" in caught.value.message
    assert "--via bf16" in caught.value.hint
    for via in ("bf16", "f32"):
        convert(folder, "to-bf16", tmp_path / "out.gguf", plugins=plugins, via=via, force=True)


def test_values_pass_through_the_intermediate(family, plugins, tmp_path):
    folder = family.write_checkpoint(tmp_path / "model")
    original = family.tensors_of()["model.embed.weight"]
    bits = original.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
    for via, expected in (("f16", original.astype(np.float16)), ("bf16", rounded), ("f32", original)):
        made = convert(folder, "to-f32", tmp_path / "out.gguf", plugins=plugins, via=via, force=True)
        np.testing.assert_array_equal(values(made.output, "token_embd.weight"), expected.astype(np.float32))
        # what the converter keeps in F32 never visits the intermediate
        norm = family.tensors_of()["model.layers.0.norm.weight"] * 2
        np.testing.assert_array_equal(values(made.output, "blk.0.attn_norm.weight"), norm)


def test_an_interrupt_leaves_nothing(run, folder, tmp_path):
    def interrupt(plan, tensor, done):
        assert any(name.endswith(".tmp") for name in left_in(tmp_path))
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        run(folder, progress=interrupt)
    assert left_in(tmp_path) == ["model"]
    assert threading.active_count() == before


def test_a_disk_that_fills_up_leaves_nothing(run, folder, tmp_path, monkeypatch):
    real, budget = os.write, [20_000]

    def limited(descriptor, data):
        budget[0] -= len(data)
        if budget[0] < 0:
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr("hf2q.formats.gguf.writer.os.write", limited)
    with pytest.raises(WriteError, match="No space left"):
        run(folder)
    monkeypatch.undo()
    assert left_in(tmp_path) == ["model"]


def test_a_source_that_is_cut_while_it_is_read(run, folder, tmp_path):
    def cut(plan, tensor, done):
        os.truncate(folder / "model.safetensors", 2000)

    with pytest.raises(SourceError, match="changed while it was being read"):
        run(folder, threads=1, progress=cut)
    assert left_in(tmp_path) == ["model"]


def test_an_existing_file_survives_a_failed_replacement(family, run, tmp_path):
    (tmp_path / "out.gguf").write_bytes(b"precious")
    tensors = family.tensors_of()
    tensors["model.layers.1.up.weight"][0, 0] = np.nan
    folder = family.write_checkpoint(tmp_path / "model", tensors)
    with pytest.raises(UsageError, match="exists"):
        run(folder)
    with pytest.raises(EncodeError):
        run(folder, force=True)
    assert (tmp_path / "out.gguf").read_bytes() == b"precious"
    assert left_in(tmp_path) == ["model", "out.gguf"]


def test_a_dry_run_reads_no_weight_and_writes_nothing(family, run, tmp_path, caplog):
    tensors = family.tensors_of()
    tensors["model.layers.1.up.weight"][0, 0] = np.nan  # would be found if it were read
    folder = family.write_checkpoint(tmp_path / "model", tensors)
    summary = run(folder, dry_run=True)
    assert summary.dry_run
    assert summary.nbytes == summary.plan.nbytes
    assert left_in(tmp_path) == ["model"]
    run(folder, output="missing/out.gguf", dry_run=True)
    assert "there is no directory" in caplog.text
