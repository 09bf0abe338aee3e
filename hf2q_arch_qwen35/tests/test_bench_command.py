"""`hf2q bench`: the form of what it prints, and what it refuses; how fast is nobody's business here."""

import json

import numpy as np
import pytest

from hf2q.cli import main
from hf2q.convert import convert
from hf2q.errors import RequestError
from hf2q.serve.load import load
from hf2q.serve.sequence import next_logits_together


@pytest.fixture(scope="module")
def model(tmp_path_factory, write, dense):
    folder = tmp_path_factory.mktemp("bench")
    write(folder / "src", dense())
    convert(folder / "src", "q8_0", folder / "m.gguf")
    return folder / "m.gguf"


def test_json_has_both_rates(model, capsys):
    words = ["bench", str(model), "-p", "5", "-n", "3", "-r", "2", "--threads", "1", "--backend", "reference", "--json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    for test, tokens in (("prefill", 5), ("decode", 3)):
        assert told[test]["tokens"] == tokens
        assert len(told[test]["samples"]) == 2
        assert min(told[test]["samples"]) <= told[test]["tokens_per_second"] <= max(told[test]["samples"])
    assert told["size"] == model.stat().st_size
    assert told["parameters"] > 0
    assert (told["backend"], told["threads"], told["arch"]) == ("reference", 1, "qwen35")


def test_the_table_has_a_line_for_each_test(model, capsys):
    assert main(["bench", str(model), "-p", "4", "-n", "2", "-r", "1", "--backend", "reference"]) == 0
    out = capsys.readouterr().out
    assert "pp4" in out
    assert "tg2" in out
    assert main(["bench", str(model), "-p", "0", "-n", "2", "-r", "1", "--backend", "reference"]) == 0
    assert "pp" not in capsys.readouterr().out.replace("tg2", "")


@pytest.mark.parametrize("words", [["-p", "0", "-n", "0"], ["-p", "1.5"], ["-n", "-1"], ["-r", "0"], ["-n", "9999999"]])
def test_what_cannot_be_measured_is_refused(model, words, capsys):
    assert main(["bench", str(model), "--backend", "reference", *words]) in (1, 3)
    assert capsys.readouterr().err


def test_several_sequences_generate_together_and_their_tokens_add_up(model, capsys):
    words = ["bench", str(model), "-p", "0", "-n", "3", "-r", "1", "--slots", "2", "--backend", "reference"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["slots"] == 2
    assert told["decode"]["tokens"] == 6
    assert told["peak_memory"] is None or told["peak_memory"] > 0
    assert main(words) == 0
    assert "tg3 x 2" in capsys.readouterr().out


def test_sequences_of_different_lengths_get_the_logits_they_get_alone(model):
    with load(model, backend="reference") as loaded:
        together, alone = [[loaded.sequence() for _ in range(3)] for _ in range(2)]
        for row, pair in enumerate(zip(together, alone, strict=True)):
            for sequence in pair:
                sequence.prefill(range(1, 3 + row))
        logits = next_logits_together(together, [5, 6, 7])
        for row, sequence in enumerate(alone):
            np.testing.assert_allclose(logits[row], sequence.next_logits([5 + row]), rtol=1e-4, atol=1e-4)
        with pytest.raises(RequestError, match="a token for each of 3 sequences, found 2"):
            next_logits_together(together, [5, 6])
