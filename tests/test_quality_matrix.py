"""The peer matrix: its cells, what figures mean, the table; and the runner with programs that stand in for a peer."""

import argparse
import importlib
import json
import math
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf2q.quality.matrix import COLUMNS, Cell, Figures, Result, cells, markdown

ROOT = Path(__file__).resolve().parents[1]

AS_SPECIFIED = [
    (model, *row)
    for model in ("27B dense", "apex MoE")
    for row in (
        ("GGUF", "None", "q4_k_m", "llama.cpp uncalibrated Q4_K_M", 1.10, 1.10, 1.02),
        ("GGUF", "Imatrix", "imatrix-q4_k_m", "llama.cpp imatrix Q4_K_M", 1.10, 1.10, 1.02),
        ("safetensors", "DWQ", "dwq-4-6", "mlx-lm DWQ", 1.10, 1.10, 1.02),
        ("GGUF", "DWQ", "dwq-4-6", "own current pipeline", 1.0, 0.50, 1.0),
    )
]
"""A second copy on purpose: nobody changes a tolerance by accident."""

CELL = Cell(model="m", backend="b", calibrator="c", recipe="r", peer="p", speed=1.1, rss=1.1, ppl=1.02)
PEER = Figures(wall=10.0, rss=1000, ppl=5.0)
OWN = Figures(wall=11.0, rss=1100, ppl=5.1)


def result(own=OWN, peer=PEER, **fields):
    return Result(cell=CELL, own=own, peer=peer, **fields)


def test_the_cells_are_the_specified_ones():
    assert [msgspec.structs.astuple(cell) for cell in cells()] == AS_SPECIFIED


def test_a_cell_passes_up_to_its_tolerances():
    assert str(result().outcome) == "Pass"
    for name, value, reason in (
        ("wall", 11.01, "wall ratio 1.101 > 1.10"),
        ("rss", 1102, "RSS ratio 1.102 > 1.10"),
        ("ppl", 5.11, "PPL ratio 1.022 > 1.02"),
    ):
        assert str(result(msgspec.structs.replace(OWN, **{name: value})).outcome) == f"Fail({reason})"


@pytest.mark.parametrize("name", ["wall", "rss", "ppl"])
@pytest.mark.parametrize("who", ["own", "peer"])
def test_without_a_figure_nothing_passes(name, who):
    side = {"own": OWN, "peer": PEER}[who]

    def outcome(value):
        return result(**{who: msgspec.structs.replace(side, **{name: value})}).outcome

    for value in (None, math.nan):
        assert outcome(value).verdict == "NotMeasured"
        assert f"no {'hf2q' if who == 'own' else 'peer'}" in outcome(value).reason
    for value in (0.0, -1.0, math.inf, -math.inf):
        assert outcome(value).verdict == "Fail"


def test_what_is_broken_counts_before_what_is_missing():
    slow = Figures(wall=100.0)
    assert str(result(slow).outcome) == "Fail(wall ratio 10.000 > 1.10)"
    assert str(result(not_measured="no GPU").outcome) == "NotMeasured(no GPU)"
    assert str(Result(cell=CELL).outcome).startswith("NotMeasured(no hf2q wall, no peer wall")


FIGURE = st.one_of(st.none(), st.floats())
FIGURES = st.builds(Figures, wall=FIGURE, rss=FIGURE, ppl=FIGURE)


@given(FIGURES, FIGURES)
def test_a_pass_means_all_three(own, peer):
    def within(a, b, most):
        return a is not None and b is not None and 0 < a < math.inf and 0 < b < math.inf and a <= most * b

    fine = within(own.wall, peer.wall, 1.1) and within(own.rss, peer.rss, 1.1) and within(own.ppl, peer.ppl, 1.02)
    one = result(own, peer)
    assert (one.outcome.verdict == "Pass") == fine
    assert bool(one.outcome.reason) != fine
    assert {line.count("|") for line in markdown([one], "x", "y").splitlines() if "|" in line} == {15}


def rows(text):
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_has_fourteen_columns_and_says_what_is_not_known():
    text = markdown(
        [result(), result(Figures(wall=math.nan), Figures(), not_measured="a|b\nc")], "some | machine", "abc"
    )
    assert text.startswith("# Peer parity\n\nHardware: some / machine\n\nSHA: abc\n\n| Model | Backend |")
    header, rule, first, second = rows(text)
    assert tuple(header) == COLUMNS
    assert len(COLUMNS) == 14
    assert set(rule) == {"---"}
    assert first[4:] == ["11.000", "10.000", "1.100", "1100", "1000", "1.100", "Pass", "5.1000", "5.0000", "1.020"]
    assert second[4:] == [*["n/a"] * 6, "NotMeasured(a/b c)", "—", "—", "n/a"]


def test_an_empty_table_has_a_row():
    _, _, *left = text = markdown([], "x", "y").splitlines()[-3:]
    assert len(left) == 1
    assert [line.count("|") for line in text] == [15, 15, 15]


# ----------------------------------------------------------------------------------------------------------- the runner


def run(*words):
    command = [sys.executable, str(ROOT / "bench" / "peer_matrix.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


def test_without_models_nothing_is_measured(tmp_path):
    done = run("--write", tmp_path)
    assert done.returncode == 0, done.stderr
    (page,) = tmp_path.iterdir()
    assert page.name.startswith("peer-parity-results-20")
    assert page.read_text() == done.stdout
    found = [row[10] for row in rows(done.stdout)[2:]]
    assert len(found) == 8
    assert all(verdict.startswith("NotMeasured(") for verdict in found)
    assert found[0] == "NotMeasured(no checkpoint: --dense names one)"


def test_a_cell_is_measured_against_a_peer(tmp_path):
    """The peer copies a file that we made: its perplexity is ours, to the bit."""
    source = ROOT / "tests" / "data" / "qwen3_5"
    (tmp_path / "convert.py").write_text("import sys; open(sys.argv[-1], 'wb').write(b'x')")
    peer = tmp_path / "quantize"
    peer.write_text(f'#!/bin/sh\n{sys.executable} -m hf2q convert {source} --quant q4_k_m --no-sidecars -o "$2"\n')
    peer.chmod(0o755)
    (tmp_path / "text").write_text((ROOT / "tests" / "data" / "eval.txt").read_text()[:400])
    words = ["--dense", source, "--peer-convert", tmp_path / "convert.py", "--peer-quantize", peer]
    done = run(*words, "--corpus", tmp_path / "text", "--chunks", 1, "--pause", 0, "--runs", 1, "--json")
    first, *others = json.loads(done.stdout)
    assert first["own"]["ppl"] == first["peer"]["ppl"]
    assert first["own"]["wall"] > 0
    assert first["peer"]["rss"] > 1e6
    assert first["outcome"]["verdict"] != "NotMeasured"
    assert done.returncode == (1 if first["outcome"]["verdict"] == "Fail" else 0)
    assert {one["outcome"]["verdict"] for one in others} == {"NotMeasured"}


def test_a_program_that_fails_ends_the_run(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    peer_matrix = importlib.import_module("peer_matrix")
    options = argparse.Namespace(pause=0, runs=1)
    with pytest.raises(peer_matrix.Failed, match="broken"):
        peer_matrix.side([["sh", "-c", "echo broken >&2; exit 3"]], options, lambda: None)
