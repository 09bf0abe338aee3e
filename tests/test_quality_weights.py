"""Cosines of weights: definitions on small files, what cannot be compared, and the trained checkpoint end to end."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from hf2q.cli import main
from hf2q.convert import convert
from hf2q.errors import QualityError, TensorMismatchError
from hf2q.formats.gguf import open_model
from hf2q.plugins import Plugins
from hf2q.quality import similarity
from hf2q.quality.similarity import compare, compare_weights, layer_of, layer_order
from hf2q.quality.weights import from_model, open_weights
from tiny_gguf import some, write_gguf

CHECKPOINT = Path(__file__).parent / "data" / "qwen3_5"


@pytest.fixture(scope="module")
def plugins():
    return Plugins.load()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    for recipe in ("f32", "q4_k_m"):
        convert(CHECKPOINT, recipe, folder / f"{recipe}.gguf", sidecars=False)
    return folder


# --------------------------------------------------------------------------------------------------------- definitions


def test_the_numbers_are_those_of_whole_tensors(tmp_path, plugins, monkeypatch):
    monkeypatch.setattr(similarity, "PIECE", 20)  # several pieces, also of one row
    a = {
        "token_embd.weight": some((4, 64)),
        "blk.0.a": some((3, 5, 8), 1),
        "blk.0.b": some(7, 2),
        "blk.1.c": some((1, 9)),
    }
    b = {name: x + np.float32(0.1) * some(x.shape, 9) for name, x in a.items()}
    found = compare(write_gguf(tmp_path / "b", b), write_gguf(tmp_path / "a", a), plugins=plugins)
    for one in found.tensors:
        x, y = (np.float64(side[one.name]).ravel() for side in (a, b))
        assert math.isclose(one.cosine, x @ y / np.linalg.norm(x) / np.linalg.norm(y), rel_tol=1e-12)
        assert math.isclose(one.relative_error, np.linalg.norm(x - y) / np.linalg.norm(x), rel_tol=1e-12)
        assert math.isclose(one.max_error, np.abs(x - y).max())
        assert (one.elements, one.nbytes) == (x.size, 4 * x.size)
    by_name = {one.name: one for one in found.tensors}
    assert [layer.layer for layer in found.layers] == ["", "blk.0", "blk.1"]
    layer, pair = found.layers[1], [by_name["blk.0.a"], by_name["blk.0.b"]]
    assert math.isclose(layer.mean, (pair[0].cosine + pair[1].cosine) / 2)
    assert (layer.minimum, layer.worst) == min((one.cosine, one.name) for one in pair)
    square = sum(one.elements * one.relative_error**2 for one in pair) / sum(one.elements for one in pair)
    assert math.isclose(layer.relative_error, math.sqrt(square))
    assert (found.total.tensors, found.total.elements) == (4, 256 + 120 + 7 + 9)
    assert found.total.minimum == min(one.cosine for one in found.tensors)


def test_of_ties_the_first_is_the_worst(tmp_path, plugins):
    x = {name: some(8) for name in ("blk.0.b", "blk.0.a")}
    path = write_gguf(tmp_path / "x", x)
    layer = compare(path, path, plugins=plugins).layers[0]
    assert (layer.worst, layer.relative_error) == ("blk.0.b", 0)
    assert math.isclose(layer.minimum, 1)


def test_zeros_have_no_direction(tmp_path, plugins):
    zero, one = np.zeros(8, np.float32), np.ones(8, np.float32)
    a = write_gguf(tmp_path / "a", {"both": zero, "candidate": one, "reference": zero})
    b = write_gguf(tmp_path / "b", {"both": zero, "candidate": zero, "reference": one})
    found = compare(b, a, plugins=plugins)
    told = {one.name: (one.cosine, one.relative_error) for one in found.tensors}
    assert told == {"both": (None, 0), "candidate": (0, 1), "reference": (0, None)}
    assert (found.total.mean, found.total.worst) == (0, "candidate")
    alone = compare(*[write_gguf(tmp_path / "z", {"both": zero})] * 2, plugins=plugins).total
    assert (alone.mean, alone.minimum, alone.worst, alone.relative_error) == (1, 1, "", 0)


def test_tables_of_numbers_do_not_drown_the_others(tmp_path, plugins):
    x, table = some((4, 8)), np.arange(8, dtype=np.int32) + 1_000_000
    a = write_gguf(tmp_path / "a", {"blk.0.w": x, "blk.0.t": table})
    b = write_gguf(tmp_path / "b", {"blk.0.w": x * 2, "blk.0.t": table})
    layer = compare(b, a, plugins=plugins).layers[0]
    assert math.isclose(layer.relative_error, math.sqrt(32 / 40))


def test_layers_are_named_by_blocks():
    names = ["blk.3.attn_q.weight", "v.blk.12.ln1.bias", "token_embd.weight", "blk.x.y", "v.blk.2.a", "blk.10.a"]
    assert [layer_of(name) for name in names] == ["blk.3", "v.blk.12", "", "", "v.blk.2", "blk.10"]
    assert sorted({layer_of(name) for name in names}, key=layer_order) == ["", "blk.3", "blk.10", "v.blk.2", "v.blk.12"]


def test_memory_does_not_grow_with_a_tensor(tmp_path, plugins):
    path = write_gguf(tmp_path / "x", {"a": some((40, 100_000))})
    read = []
    with open_model(path) as model:
        weights = from_model(model, plugins)

        def counted(name, start, stop):
            read.append(stop - start)
            return weights.read(name, start, stop)

        both = type(weights)(path=weights.path, tensors=weights.tensors, read=counted)
        compare_weights(both, both)
    assert max(read) * 100_000 <= similarity.PIECE
    assert sum(read) == 2 * 40


# -------------------------------------------------------------------------------------------- what cannot be compared


def test_every_tensor_that_does_not_fit_is_named(tmp_path, plugins):
    a = write_gguf(tmp_path / "a", {"same": some(8), "shape": some((2, 8)), "only.a": some(8)})
    b = write_gguf(
        tmp_path / "b", {"same": some(8), "shape": some((4, 4)), **{f"only.{i}": some(1) for i in range(30)}}
    )
    with pytest.raises(TensorMismatchError, match="32 differ") as caught:
        compare(b, a, plugins=plugins)
    told = caught.value.message
    assert all(f"only.{i} (only in the candidate)" in told for i in range(30))
    assert "only.a (only in the reference)" in told
    assert "shape (4 x 4, in the reference 2 x 8)" in told
    assert "same" not in told.replace("the same tensors", "")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("side", ["candidate", "reference"])
def test_numbers_that_are_not_finite(tmp_path, plugins, bad, side):
    x = some((3, 8))
    wrong = x.copy()
    wrong[2, 5] = bad
    paths = {"candidate": x, "reference": x} | {side: wrong}
    files = [write_gguf(tmp_path / name, {"w": values}) for name, values in paths.items()]
    with pytest.raises(QualityError, match=rf"{side}: tensor 'w' holds {bad} at row 2, column 5"):
        compare(*files, plugins=plugins)


def test_a_file_without_tensors(tmp_path, plugins):
    path = write_gguf(tmp_path / "x", {})
    with pytest.raises(QualityError, match="holds no tensors"):
        compare(path, path, plugins=plugins)


# ---------------------------------------------------------------------------------------------------------- end to end


def test_a_checkpoint_is_its_f32_file(made, plugins):
    by_file = compare(made / "q4_k_m.gguf", made / "f32.gguf", plugins=plugins)
    by_checkpoint = compare(made / "q4_k_m.gguf", CHECKPOINT, plugins=plugins)
    assert by_checkpoint.tensors == by_file.tensors
    exact = compare(made / "f32.gguf", CHECKPOINT, plugins=plugins)
    assert exact.total.relative_error == 0
    assert 0.99 < by_file.total.minimum < by_file.total.mean < 1


def test_a_file_without_prediction_of_further_tokens(made, plugins, tmp_path):
    """What the file was made with decides what the checkpoint is planned as."""
    for provenance in (True, False):
        path = tmp_path / f"{provenance}.gguf"
        convert(CHECKPOINT, "f16", path, mtp=False, sidecars=False, receipt=False, provenance=provenance)
        found = compare(path, CHECKPOINT, plugins=plugins)
        assert not any(".nextn." in one.name for one in found.tensors)
    with pytest.raises(TensorMismatchError, match=r"nextn\.eh_proj\.weight \(only in the candidate\)"):
        compare(made / "f32.gguf", path, plugins=plugins)


def test_a_checkpoint_alone_can_be_read(plugins):
    with open_weights(CHECKPOINT, plugins) as weights:
        assert weights.read("output_norm.weight", 0, 1).shape == (1, *weights.tensors["output_norm.weight"].shape)
        assert {weight.qtype for weight in weights.tensors.values()} == {"F32"}


def test_the_command(made, capsys):
    pair = ["cosine", str(made / "q4_k_m.gguf"), str(made / "f32.gguf")]
    assert main([*pair, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main([*pair, "--worst", "2", "--threads", "1"]) == 0
    shown = capsys.readouterr().out
    assert told["total"]["worst"] in shown.splitlines()[-2]
    assert f"worst tensors, 2 of {len(told['tensors'])}" in shown
    assert f"{told['total']['minimum']:.6f}" in shown
    assert main([*pair, "--worst", "0"]) == 3
    assert main(["cosine", str(made / "q4_k_m.gguf"), str(made / "nothing")]) == 3
