"""`hf2q bench`: the form of what it prints, and what it refuses; how fast is nobody's business here."""

import json

import pytest

from hf2q.cli import main
from hf2q.convert import convert


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
