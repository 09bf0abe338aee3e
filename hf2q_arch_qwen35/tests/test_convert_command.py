"""``hf2q convert`` as it is typed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from hf2q.cli import main
from hf2q.convert.sidecars import SIDECARS


@pytest.fixture
def folder(write, dense, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write(tmp_path / "tiny", dense())


@pytest.fixture
def run(capsys):
    def call(*words):
        code = main(["convert", *map(str, words)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def lines_of(text):
    """Lines with single spaces: how wide columns are is not tested."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_conversion_says_what_it_made(folder, run, tmp_path):
    code, out, err = run(folder, "--quant", "bf16")
    assert (code, err) == (0, "")
    made = ["Tiny-1.9M-BF16.gguf", "Tiny-1.9M-BF16.gguf.receipt.json"]
    copied = [name for name in SIDECARS if (folder / name).exists()]
    assert "tokenizer.json" in copied
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*made, *copied, "tiny"])
    lines = lines_of(out)
    assert lines[:2] == ["wrote Tiny-1.9M-BF16.gguf", "what bf16 of qwen35"]
    assert lines[2].startswith("tensors 70, ")
    assert any(line.startswith("BF16 40 tensors") for line in lines)
    assert any(line.startswith("F32 30 tensors") for line in lines)


def test_json_is_all_there_is_on_stdout(folder, run, tmp_path):
    code, out, err = run(folder, "--quant", "f16", "-o", tmp_path / "x.gguf", "--json", "--no-mtp")
    told = json.loads(out)
    assert (code, err) == (0, "")
    assert told["output"] == str(tmp_path / "x.gguf")
    assert told["file_bytes"] == (tmp_path / "x.gguf").stat().st_size
    assert told["tensor_bytes"] == sum(total["nbytes"] for total in told["qtypes"].values())
    assert told["parameters"] == sum(total["parameters"] for total in told["qtypes"].values())
    assert told["ignored"] == {"MTP, left out on request": 15}
    assert told["fallbacks"] == []
    assert told["via"] == "f16"
    assert "tensors" not in told


def test_a_dry_run_shows_the_plan(folder, run, tmp_path):
    code, out, _ = run(folder, "--quant", "bf16", "--dry-run")
    assert code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]
    lines = lines_of(out)
    assert lines[0] == "tensor shape type bytes why"
    assert "blk.0.ssm_conv1d.weight 256 x 4 F32 4,096 always F32" in lines
    assert "token_embd.weight 512 x 256 BF16 262,144 default of bf16" in lines
    assert "would write Tiny-1.9M-BF16.gguf" in lines
    _, out, _ = run(folder, "--quant", "bf16", "--dry-run", "--json")
    told = json.loads(out)
    assert told["file_bytes"] is None
    assert len(told["tensors"]) == 70
    assert told["tensors"][0]["inputs"] == ["model.embed_tokens.weight"]


def test_an_existing_output_needs_force(folder, run):
    assert run(folder, "--quant", "bf16", "-o", "x.gguf")[0] == 0
    code, out, err = run(folder, "--quant", "bf16", "-o", "x.gguf")
    assert (code, out) == (3, "")
    assert err == "error: x.gguf exists\nhint: --force replaces it, -o chooses another output\n"
    assert run(folder, "--quant", "bf16", "-o", "x.gguf", "--force")[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--quant", "bf16", "-o", "tiny/model.safetensors", "--force"), 3, "a file of the source"),
        (("--quant", "bf16", "-o", "no/x.gguf"), 1, "there is no directory no"),
        (("--quant", "bf16", "--via", "f16"), 3, "--via f16 contradicts it"),
        (("--quant", "bf16", "--via", "q8_0"), 3, "--via"),
        (("--quant", "bf16", "--threads", "0"), 3, "0 threads asked for"),
        (("--quant", "bf16", "--threads", "1025"), 3, "expected a whole number from 1 to 1024"),
        (("--quant", "bf16", "--threads", "many"), 3, "--threads"),
        (("--quant", "bf16", "--threads", "1.5"), 3, "'1.5' is no whole number"),
        (("--quant", "bf16", "-o", ""), 3, "empty text"),
        (("--quant", "bf16", "-o", "tiny/model-00001-of-00001.safetensors"), 3, "does not end in .gguf"),
        (("--quant", "bf16", "--pre", "nope"), 3, "nope"),
        (("--quant", "q9_z"), 3, "no quant 'q9_z'"),
        (("--quant", "tq1_0"), 3, "cannot be converted to"),
        (("--quant", "bf16", "--frobnicate"), 3, "--frobnicate"),
        ((), 3, "--quant"),
    ],
)
def test_what_cannot_be_done(folder, run, tmp_path, words, code, message):
    found, out, err = run(folder, *words)
    assert (found, out) == (code, "")
    assert message in err
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_refusals_as_json(folder, run):
    code, out, err = run(folder, "--quant", "q9_z", "--json")
    assert (code, out) == (3, "")
    assert json.loads(err)["error"]["type"] == "UnknownNameError"


def test_damaged_checkpoints(folder, run, tmp_path):
    weights = folder / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1)
    code, out, err = run(folder, "--quant", "bf16")
    assert (code, out) == (3, "")
    assert "model.safetensors" in err
    shutil.rmtree(folder)
    code, _, err = run(folder, "--quant", "bf16")
    assert code == 3
    assert "there is no directory" in err


def test_shapes_that_do_not_fit_are_listed_or_refused(write, dense, run, tmp_path, monkeypatch):
    pytest.importorskip("hf2q_quant_kquant")
    monkeypatch.chdir(tmp_path)
    folder = write(tmp_path / "tiny", dense(hidden_size=96))
    code, out, _ = run(folder, "--quant", "q6_k", "-o", "x.gguf")
    assert code == 0
    lines = lines_of(out)
    assert "other types than the mix would give, because of their shape" in lines
    assert "blk.0.ffn_gate.weight 96 columns Q6_K → Q8_0" in lines
    code, _, err = run(folder, "--quant", "q6_k", "-o", "y.gguf", "--no-fallback")
    assert code == 3
    assert "do not fit q6_k" in err
    assert not (tmp_path / "y.gguf").exists()


@pytest.mark.parametrize("threads", ["0", "-1", "x", "\u00b2", "\u0663", "1_0", "9" * 5000])
def test_a_number_of_threads_that_is_none(folder, run, monkeypatch, threads):
    monkeypatch.setenv("HF2Q_THREADS", threads)
    code, out, err = run(folder, "--quant", "bf16")
    assert (code, out) == (3, "")
    assert "expected" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted\n"), (signal.SIGTERM, 143, ""), (signal.SIGHUP, 129, "")],
)
def test_a_signal_leaves_nothing(folder, tmp_path, number, code, said):
    """In the middle: a process of its own, stopped as soon as its unfinished file appears."""
    if signal.getsignal(number) == signal.SIG_IGN:  # a child would ignore it too
        pytest.skip(f"signal {number} is ignored here")
    script = (
        "import os, sys, time\n"
        "import hf2q.convert.pipeline as p\n"
        "encode = p._encode\n"
        "p._encode = lambda *a: (time.sleep(0.2), encode(*a))[1]\n"  # slow enough to be caught
        "from hf2q.cli import main\n"
        f"sys.exit(main(['convert', {str(folder)!r}, '--quant', 'bf16', '-o', 'x.gguf']))\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while child.poll() is None and not any(path.name.endswith(".tmp") for path in tmp_path.iterdir()):
        time.sleep(0.01)
    child.send_signal(number)
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (code, said)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]
