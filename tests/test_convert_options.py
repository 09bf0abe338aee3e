"""Options of `hf2q convert` that decide types, as they are written on a command line."""

import json
from pathlib import Path

import pytest

from hf2q.cli import main

DATA = Path(__file__).parent / "data"
MODEL, MATRIX = str(DATA / "qwen3_5"), str(DATA / "qwen3_5.imatrix")


@pytest.fixture
def planned(capsys):
    """What a dry run says about each tensor."""

    def run(*words):
        assert main(["convert", MODEL, "--dry-run", "--json", *words]) == 0
        told = json.loads(capsys.readouterr().out)
        return {tensor["name"]: tensor for tensor in told["tensors"]}

    return run


def test_each_rule_is_named(planned, tmp_path):
    (tmp_path / "types.txt").write_text("# comment=q8_0\nffn_down=q5_k  attn_gate=f16\nffn_up=q2_k\n")
    tensors = planned(
        *("--quant", "q4_k_m", "--tensor-type", "FFN_UP=q8_0", "--tensor-type", r"blk\.0\.=q6_k"),
        *("--tensor-type-file", str(tmp_path / "types.txt"), "--output-tensor-type", "bf16"),
    )
    said = {name: (t["qtype"], t["reason"]) for name, t in tensors.items()}
    label = "--output-tensor-type BF16, for embeddings that stand in for the output"
    assert said["token_embd.weight"] == ("BF16", label)
    assert said["blk.0.ffn_up.weight"] == ("Q8_0", "--tensor-type FFN_UP=Q8_0")
    assert said["blk.0.ffn_down.weight"] == ("Q6_K", r"--tensor-type blk\.0\.=Q6_K")
    assert said["blk.1.ffn_down.weight"] == ("Q5_K", "--tensor-type ffn_down=Q5_K")
    assert said["blk.1.attn_gate.weight"] == ("F16", "--tensor-type attn_gate=F16")
    assert said["blk.1.ssm_out.weight"] == ("Q4_K", "default of q4_k_m")
    assert said["blk.1.attn_norm.weight"] == ("F32", "one-dimensional")
    assert not any(t["importance"] for t in tensors.values())


def test_pure(planned):
    tensors = planned("--quant", "q5_k_m", "--pure", "--token-embedding-type", "q8_0")
    assert {t["qtype"] for t in tensors.values()} == {"F32", "Q5_K", "Q8_0"}
    assert tensors["blk.0.ffn_down.weight"]["reason"] == "--pure"
    assert tensors["token_embd.weight"]["reason"] == "--token-embedding-type Q8_0"


def used(tensors):
    return {name for name, tensor in tensors.items() if tensor["importance"]}


def test_importance_is_shown_where_it_is_used(planned):
    every = planned("--quant", "q4_k_m", "--imatrix", MATRIX)
    assert "blk.0.ffn_down.weight" in used(every)
    assert "token_embd.weight" not in used(every)  # not in the matrix
    assert not {name for name in used(every) if name.startswith("blk.8.")}  # multi-token prediction
    assert used(planned("--quant", "q8_0", "--imatrix", MATRIX)) == set()
    words = ("--quant", "q4_k_m", "--imatrix", MATRIX)
    without = planned(*words, "--exclude-weights", "ffn_", "--exclude-weights", "attn_gate")
    assert used(without) == {name for name in used(every) if "ffn_" not in name and "attn_gate" not in name}
    only = planned(*words, "--include-weights", "blk.3.", "--include-weights", "blk.4.")
    assert used(only) == {name for name in used(every) if name.startswith(("blk.3.", "blk.4."))}


def test_tables_have_a_column_for_importance_when_there_is_a_matrix(capsys):
    for words, expected in (((), False), (("--imatrix", MATRIX), True)):
        assert main(["convert", MODEL, "--dry-run", "--quant", "q4_k_m", *words]) == 0
        out = capsys.readouterr().out
        assert ("importance" in out.splitlines()[0]) is expected
        assert ("importance" in out.partition("would write")[2]) is expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--quant", "q4_k_m", "--include-weights", "ffn"], "there is none"),
        (["--imatrix", MATRIX, "--include-weights", "a", "--exclude-weights", "b"], "cannot be used together"),
        (["--imatrix", MATRIX, "--include-weights", "nothing"], "leave nothing"),
        (["--imatrix", "no-such-file"], "no-such-file does not exist"),
        (["--tensor-type", "ffn_up"], "is not of the form PATTERN=TYPE"),
        (["--tensor-type", "ffn_up=q9_9"], "is no type of tensor"),
        (["--tensor-type", "(=q8_0"], "is no regular expression"),
        (["--tensor-type-file", "no-such-file"], "no-such-file does not exist"),
        (["--output-tensor-type", "q9"], "--output-tensor-type: 'q9' is no type"),
        (["--token-embedding-type", "q9"], "--token-embedding-type: 'q9' is no type"),
        (["--leave-output-tensor", "--output-tensor-type", "q8_0"], "contradict each other"),
        (["--quant", "f16", "--pure"], "cannot follow --pure"),
        (["--quant", "bf16", "--imatrix", MATRIX], "cannot follow --imatrix"),
        (["--keep-split"], "--keep-split cannot be used when the source is a checkpoint"),
        (["--allow-requantize"], "--allow-requantize cannot be used when the source is a checkpoint"),
        (["--split-max-size", "3T"], "is no size"),
        (["--split-max-size", "0"], "is no size"),
        (["--split-max-tensors", "0"], "expected at least 1"),
        (["--split-max-tensors", "1.5"], "is no whole number"),
    ],
)
def test_refusals(capsys, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    quant = [] if "--quant" in words else ["--quant", "q4_k_m"]
    assert main(["convert", MODEL, *quant, *words]) == 3
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("size", "files"), [("4M", 2), ("4000K", 2), ("4000000", 2), ("1g", 1)])
def test_sizes(capsys, tmp_path, size, files):
    words = ["--quant", "q4_k_m", "-o", str(tmp_path / "m.gguf"), "--dry-run", "--json", "--split-max-size", size]
    assert main(["convert", MODEL, *words]) == 0
    assert len(json.loads(capsys.readouterr().out)["files"]) == files
