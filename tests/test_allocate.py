"""``--quant auto-bpw`` and ``auto-size`` on the trained checkpoint: budgets, replay, the table, and what is refused."""

import json
from importlib import import_module
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from hf2q.cli import main
from hf2q.convert import convert
from hf2q.convert.importance import read_importance
from hf2q.convert.verify import verify
from hf2q.errors import UnknownNameError, UsageError
from hf2q.formats.gguf import open_model
from hf2q.plugins import Plugins
from hf2q.policy import parse_tensor_type
from hf2q.policy.options import compile_pattern
from hf2q.quality.allocate import fit
from hf2q.quality.allocate.budget import parse_budget
from hf2q.quality.allocate.candidates import candidates, mix_for
from hf2q.quality.allocate.measure import SAMPLE, losses, sample_places
from hf2q.quality.allocate.search import search
from hf2q.quality.allocate.types_file import pattern_for
from tiny_gguf import some

CHECKPOINT = Path(__file__).parent / "data" / "qwen3_5"
MATRIX = Path(__file__).parent / "data" / "qwen3_5.imatrix"


@pytest.fixture(scope="module")
def plugins():
    return Plugins.load()


@pytest.fixture(scope="module", autouse=True)
def measured():
    """What each tensor of the checkpoint loses in each type is measured once: all searches here begin with it."""
    known = {}

    def once(rows, importance, codecs, *, name, threads):
        weights = None if importance is None else importance.tobytes()
        key = name, rows.dtype, weights, tuple(codec.name for codec in codecs)
        if key not in known:
            known[key] = losses(rows, importance, codecs, name=name, threads=threads)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("hf2q.quality.allocate.search"), "losses", once)
        yield


class Held:
    """Rows of an array, and which of them were read."""

    dtype = "F32"

    def __init__(self, array):
        self.shape, self.flat, self.read_rows = array.shape, array.reshape(-1, array.shape[-1]), 0

    def read(self, start, stop):
        self.read_rows += stop - start
        return self.flat[start:stop].copy()


# ------------------------------------------------------------------------------------------------------------ measuring


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 3000), st.sampled_from([1, 7, 32, 4096, SAMPLE * 2]), st.sampled_from([1, 2, 3, 8, 64]))
def test_samples_are_bounded_and_stay_inside_a_matrix(each, columns, matrices):
    places = list(sample_places(each * matrices, columns, matrices))
    assert places
    read = 0
    last = 0
    for matrix, start, stop in places:
        assert matrix * each <= start < stop <= (matrix + 1) * each
        assert start >= last
        last, read = stop, read + stop - start
    assert read * columns <= max(SAMPLE, columns)
    if each * matrices * columns <= SAMPLE:
        assert read == each * matrices


def test_losses_are_shares_weighted_by_importance(plugins):
    x = some((3, 4, 64))
    importance = np.abs(some((3, 64), 1))
    codecs = [plugins.codec(name) for name in ("Q4_0", "Q8_0")]
    found = losses(Held(x), importance, codecs, name="x", threads=1)
    for codec, loss in zip(codecs, found, strict=True):
        lost = whole = 0.0
        for matrix, weights in zip(x, importance, strict=True):
            known = None if codec.name == "Q8_0" else weights
            lost += float(((codec.decode(codec.encode(matrix, known)) - matrix) ** 2.0 * weights).sum())
            whole += float((matrix**2.0 * weights).sum())
        assert loss == pytest.approx(lost / whole, rel=1e-4)
    assert found[0] > 10 * found[1] > 0
    assert losses(Held(x * 1024), importance, codecs, name="x", threads=1) == pytest.approx(found)
    assert losses(Held(x * 0), None, codecs, name="x", threads=1) == (0.0, 0.0)


def test_a_large_tensor_is_read_in_part(plugins):
    held = Held(some((4096, 256)))
    losses(held, None, [plugins.codec("Q8_0")], name="x", threads=1)
    assert held.read_rows == SAMPLE // 256


def test_candidates_fit_and_need_no_importance_that_there_is_not(plugins):
    for columns in (256, 512, 96, 32, 31):
        for name in candidates(columns, plugins, weighted=False):
            assert columns % plugins.codec(name).block_size == 0
            plugins.codec(name).encode(some((1, columns)))
    assert {"IQ2_XS", "IQ2_S"} < set(candidates(256, plugins, weighted=True))
    assert mix_for([("Q4_K", 5), ("Q5_K", 9), ("F32", 99), ("Q4_K", 3)]) == "q5_k_m"


def test_patterns_match_their_tensor_alone():
    for name in ("blk.1.attn_q.weight", "output.weight", "v.Blk+(x)"):
        pattern = compile_pattern(parse_tensor_type(f"{pattern_for(name)}=q4_k")[0], "x")
        assert pattern.search(name)
        assert not pattern.search(f"blk.1{name}")
        assert not pattern.search(name.replace(".", "x"))


# ------------------------------------------------------------------------------------------------------------- budgets


@pytest.mark.parametrize(("bits", "matrix"), [("4.6", None), ("2.7", MATRIX)])
def test_bits_per_weight_are_kept_and_the_file_can_be_made_again(tmp_path, capsys, bits, matrix):
    first, again = tmp_path / "first.gguf", tmp_path / "again.gguf"
    given = [] if matrix is None else ["--imatrix", str(matrix), "--no-mtp"]
    main(["convert", str(CHECKPOINT), "--quant", f"auto-bpw={bits}", "-o", str(first), "--json", *given])
    told = json.loads(capsys.readouterr().out)
    assert float(bits) - 0.01 < told["bits_per_weight"] <= float(bits)
    search = told["search"]
    assert search["exact"]
    assert search["nbytes"] == told["tensor_bytes"]
    with open_model(first) as model:
        types = {name: tensor.qtype for name, tensor in model.tensors.items()}
    assert {one["name"]: types[one["name"]] for one in search["tensors"]} == {
        one["name"]: one["qtype"] for one in search["tensors"]
    }
    assert len({one["qtype"] for one in search["tensors"]}) > 1
    if matrix is not None:
        assert "IQ2_XS" in types.values()
    file = tmp_path / "first.types.txt"
    assert search["types_file"] == str(file)
    replay = ["--quant", search["recipe"], "--tensor-type-file", str(file)]
    main(["convert", str(CHECKPOINT), *replay, "-o", str(again), *given])
    assert first.read_bytes() == again.read_bytes()
    assert verify(first, CHECKPOINT, imatrix=matrix).equal


def test_a_size_is_the_largest_that_the_file_has(tmp_path, capsys):
    path = tmp_path / "sized.gguf"
    main(["convert", str(CHECKPOINT), "--quant", "auto-size=4MB", "-o", str(path), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert 3_960_000 < path.stat().st_size == told["file_bytes"] <= 4_000_000


def test_more_bytes_lose_less_and_importance_of_blocks_counts(plugins):
    found = [search(CHECKPOINT, parse_budget(f"auto-bpw={bits}"), plugins=plugins) for bits in ("4.2", "5", "7")]
    assert found[0].loss > found[1].loss > found[2].loss
    for one in found:
        assert one.nbytes <= one.budget
        assert one.nbytes == sum(tensor.nbytes for tensor in one.tensors)
        assert one.parameters == sum(prod(tensor.shape) for tensor in one.tensors)
    weights = {tensor.name: tensor.weight for tensor in found[0].tensors if tensor.tried}
    assert weights["token_embd.weight"] == 2  # it is the output as well
    assert weights["blk.0.ffn_up.weight"] == 1 / 16
    assert weights["blk.8.ffn_up.weight"] == pytest.approx(1 / 160)  # drafts


def test_the_choice_loses_less_than_mixes_of_its_size(plugins):
    for mix in ("q4_k_m", "q3_k_m"):
        fixed = convert(CHECKPOINT, mix, dry_run=True, plugins=plugins)
        types = {tensor.name: tensor.qtype for tensor in fixed.plan.tensors}
        found = search(CHECKPOINT, parse_budget(f"auto-bpw={fixed.bits_per_weight + 1e-6:.6f}"), plugins=plugins)
        rivals = {one.name: one for one in found.rivals}
        assert rivals[mix].nbytes == sum(tensor.nbytes for tensor in fixed.plan.tensors)
        assert "q8_0" not in rivals
        lost = sum(
            next(one.loss for one in tensor.tried if one.qtype == types[tensor.name]) * tensor.weight
            for tensor in found.tensors
            if tensor.tried
        )
        assert found.loss < rivals[mix].loss == pytest.approx(lost)


def test_a_matrix_computed_for_it_and_a_table(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["convert", str(CHECKPOINT), "--quant", "auto-bpw=5", "--imatrix", str(MATRIX), "--dry-run"])
    shown = capsys.readouterr().out
    assert "blk.*.ffn_down.weight" in shown
    assert "no choice of these types loses less" in shown
    assert "within the budget" in shown
    assert "q4_k_s" in shown
    assert "Qwen3_5-6.6M-AUTO-BPW-5.gguf" in shown
    assert list(tmp_path.iterdir()) == []


def test_a_text_decides_what_counts(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fit, "BANDS", 2)  # fewer files to run
    text = tmp_path / "text.txt"
    text.write_text((CHECKPOINT.parent / "eval.txt").read_text()[:500])
    path = tmp_path / "out" / "by-text.gguf"
    path.parent.mkdir()
    command = ["convert", str(CHECKPOINT), "--quant", "auto-bpw=5", "-o", str(path), "--auto-corpus", str(text)]
    command += ["--imatrix", str(MATRIX)]
    main([*command, "--json", "--no-sidecars", "--no-receipt"])
    search = json.loads(capsys.readouterr().out)["search"]
    assert search["nbytes"] <= search["budget"]
    weights = {one["name"]: one["weight"] for one in search["tensors"]}
    # alpha and beta gate a few numbers; the embeddings are also the output
    assert weights["token_embd.weight"] > 10 * weights["blk.0.ffn_up.weight"] > 100 * weights["blk.0.ssm_alpha.weight"]
    blocks = [weights[f"blk.{number}.ffn_up.weight"] for number in range(8)]
    assert len(set(blocks)) == 2, "each band was measured"
    assert min(blocks) < 10 * weights["blk.8.ffn_up.weight"] < max(blocks), "drafting counts a tenth"
    assert weights["blk.8.nextn.eh_proj.weight"] == 1 / 160  # there is nothing to measure
    measured = {one["name"]: one["divergence"] for one in search["mixes"] if one["divergence"] is not None}
    assert search["winner"] in ("the search", "the search without a text", *measured)
    assert 0 < search["divergence"] <= min(measured.values(), default=1.0)
    assert sorted(file.name for file in path.parent.iterdir()) == ["by-text.gguf", "by-text.types.txt"]


# ------------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("quant", "message"),
    [
        ("auto-bpw=1", "less than the smallest choice of types, 2,"),
        ("auto-bpw=30", "more than the largest choice of types, 7,"),
        ("auto-size=100kB", "less than the smallest choice"),
        ("auto-size=1TB", "is no unit"),
        ("auto-size=1GiB", "more than the largest choice"),
        ("auto-bpw=many", "'many' is no number of bits"),
    ],
)
def test_budgets_that_cannot_be_kept(tmp_path, capsys, quant, message):
    path = tmp_path / "none.gguf"
    assert main(["convert", str(CHECKPOINT), "--quant", quant, "-o", str(path)]) != 0
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--pure"], "--pure contradicts"),
        (["--tensor-type", "ffn=q4_k"], "--tensor-type contradicts"),
        (["--output-tensor-type", "q8_0"], "--output-tensor-type contradicts"),
        (["--leave-output-tensor"], "--leave-output-tensor contradicts"),
        (["--format", "mlx"], "cannot be used with --format mlx"),
        (["--split-max-size", "1M"], "writes several"),
        (["--auto-corpus", "calibration", "--dry-run"], "which --dry-run must not"),
        (["--auto-corpus", "no-such-text"], "no corpus of that name"),
        (["--quant", "q4_0", "--auto-corpus", "calibration"], "is for a search of types"),
    ],
)
def test_options_that_contradict_a_search(tmp_path, capsys, flags, message):
    path = tmp_path / "none.gguf"
    quant = [] if "--quant" in flags else ["--quant", "auto-size=4MB"]
    assert main(["convert", str(CHECKPOINT), *quant, "-o", str(path), *flags]) != 0
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["there.gguf", "there.types.txt"])
def test_nothing_is_replaced_unasked(tmp_path, capsys, name):
    (tmp_path / name).write_text("mine")
    command = ["convert", str(CHECKPOINT), "--quant", "auto-bpw=5", "-o", str(tmp_path / "there.gguf")]
    assert main(command) != 0
    assert f"{name} exists" in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "mine"
    assert main([*command, "--force"]) in (0, None)
    assert (tmp_path / name).read_bytes() != b"mine"


def test_old_names_and_the_library_are_told_of_the_search(tmp_path, plugins):
    with pytest.raises(UnknownNameError) as old:
        convert(CHECKPOINT, "dynamic-quant-4-6", tmp_path, plugins=plugins)
    assert "auto-bpw=4.5" in old.value.hint
    with pytest.raises(UnknownNameError) as new:
        convert(CHECKPOINT, "auto-bpw=4.5", tmp_path, plugins=plugins)
    assert "hf2q.quality.allocate.search" in new.value.hint


def test_a_source_that_is_quantized_is_refused_as_by_any_mix(tmp_path, plugins):
    convert(CHECKPOINT, "q4_0", tmp_path / "q4_0.gguf", sidecars=False, plugins=plugins)
    with pytest.raises(UsageError, match="quantized"):
        search(tmp_path / "q4_0.gguf", parse_budget("auto-bpw=4"), plugins=plugins)
    found = search(tmp_path / "q4_0.gguf", parse_budget("auto-bpw=4"), plugins=plugins, allow_requantize=True)
    assert found.nbytes <= found.budget


def test_importance_changes_the_choice(plugins, caplog):
    budget = parse_budget("auto-bpw=4.4")
    plain = search(CHECKPOINT, budget, plugins=plugins, mtp=False)
    known = search(CHECKPOINT, budget, plugins=plugins, mtp=False, importance=read_importance(MATRIX))
    assert plain.pairs != known.pairs
    assert "importance" not in caplog.text
    whole = read_importance(MATRIX)
    other = structs.replace(whole, imatrix=structs.replace(whole.imatrix, entries={}))
    with pytest.raises(UsageError, match="knows none of the tensors"):
        search(CHECKPOINT, budget, plugins=plugins, importance=other)
