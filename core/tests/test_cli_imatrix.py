"""``hf2q imatrix show`` and ``convert``, from the command line."""

import json
from pathlib import Path

import pytest

from hf2q.cli import main

DATA = Path(__file__).parent / "data" / "imatrix"


def test_show_tells_everything(capsys):
    assert main(["imatrix", "show", str(DATA / "sorted.imatrix"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["format"], told["datasets"], told["chunk_count"], told["chunk_size"]) == (
        "gguf",
        ["a.txt", "dir/b ü.txt"],
        7,
        300,
    )
    experts = told["entries"][0]
    assert experts["name"] == "blk.10.ffn_down_exps.weight"
    assert [experts[key] for key in ("counts", "width", "covered", "least", "most")] == [4, 32, 3, 0, 700]
    assert main(["imatrix", "show", str(DATA / "legacy.dat")]) == 0
    out = capsys.readouterr().out
    assert "legacy" in out
    assert "blk.2.attn_k_b.weight        1 x 48   7       all" in out


@pytest.mark.parametrize(
    ("source", "output", "words", "expected"),
    [
        ("sorted.imatrix", "out.dat", [], "legacy.dat"),
        ("sorted.imatrix", "out.bin", ["--format", "gguf"], "sorted.imatrix"),
        ("legacy.dat", "out.gguf", ["--chunk-size", "300"], "back.imatrix"),
    ],
)
def test_convert_writes_the_format_asked_for(tmp_path, capsys, source, output, words, expected):
    path = tmp_path / output
    assert main(["imatrix", "convert", str(DATA / source), str(path), "--json", *words]) == 0
    assert path.read_bytes() == (DATA / expected).read_bytes()
    told = json.loads(capsys.readouterr().out)
    assert (told["output"], told["entries"]) == (str(path), 5 if expected == "sorted.imatrix" else 4)
    assert told["left_out"] == (1 if output == "out.dat" else 0)


def test_an_existing_output_is_replaced_by_force_only(tmp_path, capsys):
    path = tmp_path / "out.dat"
    path.write_bytes(b"old")
    assert main(["imatrix", "convert", str(DATA / "sorted.imatrix"), str(path)]) == 3
    assert path.read_bytes() == b"old"
    assert "--force" in capsys.readouterr().err
    assert main(["imatrix", "convert", str(DATA / "sorted.imatrix"), str(path), "--force"]) == 0
    assert path.read_bytes() == (DATA / "legacy.dat").read_bytes()
    assert main(["imatrix", "convert", str(path), str(path), "--force"]) == 3
    assert "is the file to convert" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "words", "told"),
    [
        ("legacy.dat", ["out.txt"], "--format gguf or --format dat"),
        ("legacy.dat", ["out.dat", "--chunk-size", "512"], "a legacy file does not hold it"),
        ("sorted.imatrix", ["out.gguf", "--chunk-size", "512"], "the source says it itself"),
        ("legacy.dat", ["out.gguf", "--chunk-size", "0"], "--chunk-size is 0"),
        ("nothing.dat", ["out.gguf"], "does not exist"),
        ("legacy.dat", ["out.gguf", "--format", "csv"], "csv"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path, monkeypatch, capsys, source, words, told):
    monkeypatch.chdir(tmp_path)
    assert main(["imatrix", "convert", str(DATA / source), *words]) == 3
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_names_from_a_file_do_not_reach_the_terminal_raw(tmp_path, capsys):
    raw = (DATA / "legacy.dat").read_bytes().replace(b"blk.2.ffn_up.weight", b"blk\x1b[31m_up.weight.")
    path = tmp_path / "m.dat"
    path.write_bytes(raw)
    assert main(["imatrix", "show", str(path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\\x1b[31m" in out
