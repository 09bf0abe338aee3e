"""Smoke runs: each step of the preflight with its exit code, transcripts, one whole run on the trained checkpoint."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from hf2q.cli import main
from hf2q.errors import AccessError, UsageError
from hf2q.plugins import Plugins
from hf2q.quality import smoke
from hf2q.quality import smoke_preflight as preflight
from hf2q.quality.smoke import check_answers, check_expected, check_first, check_same, check_stderr, check_tensors
from hf2q.quality.smoke_answer import Ran
from hf2q.quality.smoke_preflight import GB, Stopped, Wanted, check_disk, check_memory, check_token
from hf2q.quality.smoke_transcript import Said, as_seen, first_difference, normalised, transcript
from hf2q.testing.hub import FakeHub

CHECKPOINT = Path(__file__).parent / "data" / "qwen3_5"


# ---------------------------------------------------------------------------------------------------------- transcripts


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("eval time =   12.34 ms", "eval time =<X.XX> ms"),
        ("1.2.3", "<X.XX>.3"),
        ("in 8 runs, v3", "in 8 runs, v3"),
        (".5 and 5.", ".5 and 5."),
        ("a\t0.5\nb 1.5", "a<X.XX>\nb<X.XX>"),
        ("a\n0.5", "a\n<X.XX>"),
    ],
)
def test_fractions_are_normalised(text, found):
    assert normalised(text) == found
    assert normalised(found) == found or "." in found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("abc\b\bd", "ad"),
        ("\b\ba", "a"),
        ("10%\r100%", "100%"),
        ("a\r\nb", "a\nb"),
        ("a\x07\x1b[0m\x7f\x85b", "a[0mb"),
        ("a\nb\bc", "a\nc"),
        ("a\n\bb", "a\nb"),
        ("naïve ☃\u200d", "naïve ☃\u200d"),
        ("a\tb", "ab"),
    ],
)
def test_text_is_as_a_terminal_leaves_it(text, found):
    assert as_seen(text) == found


def test_a_transcript_and_where_two_part():
    said = Said(prompt="Hi", text=" there\n1.5", told=("n_eval = 8", "eval time = 0.123 s / 8 runs"))
    text = transcript("toy", "q8_0", [said])
    assert text == (
        "# arch: toy\n# quant: q8_0\n# prompt: 'Hi'\n---stdout---\nHi there\n<X.XX>\n---stderr---\n"
        "n_eval = 8\neval time =<X.XX> s / 8 runs\n"
    )
    faster = msgspec.structs.replace(said, told=("n_eval = 8", "eval time = 9.9 s / 8 runs"))
    assert transcript("toy", "q8_0", [faster]) == text
    assert transcript("toy", "q8_0", [said], ["a warning\x07 1.5"]) == text + "a warning<X.XX>\n"
    assert first_difference(text, text) == ""
    assert first_difference("a\nb", "a\nc") == "line 2 is 'c', expected 'b'"
    assert first_difference("a\nb", "a") == "line 2 is no line, expected 'b'"
    assert first_difference("a", "a\nb") == "line 2 is 'b', expected no line"


# ------------------------------------------------------------------------------------------------------------ preflight


def code_of(work, *arguments, **named):
    with pytest.raises(Stopped) as caught:
        work(*arguments, **named)
    return caught.value.code, caught.value.message


def refused():
    raise AccessError("no token for the Hub: broken")


def test_steps_that_do_not_pass_have_their_codes():
    assert code_of(check_token, lambda: None)[0] == 2
    assert code_of(check_token, lambda: "")[0] == 2
    assert code_of(check_token, refused) == (2, "no token for the Hub: broken")
    assert "secret" not in check_token(lambda: "secret").found
    folder = Path("/x")
    assert code_of(check_disk, 110 * GB - 1, 110, folder)[0] == 3
    unknown = code_of(check_disk, None, 0, folder)
    assert unknown[0] == 3, "what is not known does not pass, whatever is asked for"
    assert "not known" in unknown[1]
    assert check_disk(110 * GB, 110, folder).step == "disk"
    assert code_of(check_memory, 100, lambda: 99)[0] == 4
    assert check_memory(100, lambda: 100).step == "memory"
    assert "unknown" in check_memory(100, lambda: None).found


def test_free_disk_of_a_folder_that_will_be(tmp_path, monkeypatch):
    assert preflight.free_disk(tmp_path / "a" / "b") > 0

    def fails(place):
        raise OSError("no such system call")

    monkeypatch.setattr(preflight.shutil, "disk_usage", fails)
    assert preflight.free_disk(tmp_path) is None


def plan(tmp_path, *, token="t", free=10**15, **fields):
    wanted = Wanted(**{"arch": "qwen35", "quant": "q8_0", "folder": tmp_path, "backend": "reference", **fields})
    steps = []
    found = smoke.plan(wanted, Plugins.load(), steps.append, token=lambda: token, free=lambda folder: free)
    return [step.step for step in steps], found


def test_the_preflight_goes_in_order(tmp_path):
    """Everything is wrong at first; what is mended uncovers the next."""
    bad = {"arch": "nothing", "token": None, "free": None, "backend": "nothing", "local": None, "repo": "not/../one"}
    for mended, code in (
        ({}, 7),
        ({"arch": "qwen35"}, 2),
        ({"token": "t"}, 3),
        ({"free": 110 * GB - 1}, 3),
        ({"free": 110 * GB}, 4),
        ({"backend": "reference"}, 6),
        ({"local": tmp_path / "nothing"}, 8),
        ({"local": tmp_path}, 8),
    ):
        bad |= mended
        assert code_of(plan, tmp_path, **bad)[0] == code, mended
    steps, found = plan(tmp_path, **bad | {"local": CHECKPOINT, "token": None})
    assert steps == ["arch", "disk", "engine", "local-dir", "memory"]
    assert found.summary.plan.arch == "qwen35"
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_another_family(tmp_path):
    code, message = code_of(plan, tmp_path, arch="gemma4", local=CHECKPOINT)
    assert code == 8
    assert "holds a model of the arch qwen35, expected gemma4" in message


def test_a_family_without_repositories(tmp_path):
    entry = Plugins.load().archs["qwen35"]
    wanted = Wanted(arch="qwen35", quant="q8_0", folder=tmp_path)
    assert preflight.repository_of(wanted, entry) == entry.hf_repos[0]
    assert preflight.repository_of(wanted, msgspec.structs.replace(entry, hf_repos=())) == ""
    assert code_of(preflight.check_source, wanted, "", lambda: None)[0] == 6


# --------------------------------------------------------------------------------------------------------------- checks


def ran(tokens=8, finite=True):
    return [Ran(said=Said(prompt="p", text="", told=()), tokens=(1,) * tokens, finite=finite)]


def test_checks_of_a_run():
    check_answers(ran())
    assert code_of(check_answers, ran(tokens=7)) == (8, "after the prompt 'p' 7 tokens came, expected 8")
    assert code_of(check_answers, ran(finite=False))[0] == 8
    assert check_tensors(3, 3).step == "tensors"
    assert code_of(check_tensors, 2, 3) == (8, "the file has 2 tensors, by the catalog there are 3")
    assert code_of(check_same, "repeatability", "a", "b")[0] == 8


@pytest.mark.parametrize("line", ["an error: x", "ERROR x", "x panicked", "ops.c:3: assertion failed", "segfault at 0"])
def test_stderr_must_not_tell_of_an_error(line):
    check_stderr(["a warning", "Errand"])
    code, message = code_of(check_stderr, ["a warning", line])
    assert code == 8
    assert repr(line) in message


def test_answers_must_begin_as_expected():
    one = [Ran(said=Said(prompt="p", text=" jumps over", told=()), tokens=(1,) * 8, finite=True)]
    assert check_first(one, [" jumps"]).step == "first token"
    assert code_of(check_first, one, ["jumps"])[0] == 8
    check_expected((), ("p", "q"))
    check_expected(("a", "b"), ("p", "q"))
    with pytest.raises(UsageError, match="1 beginnings are expected, and the family has 2 prompts"):
        check_expected(("a",), ("p", "q"))


# ---------------------------------------------------------------------------------------------------------- the command


def run(*words):
    base = ["smoke", "--arch", "qwen35", "--quant", "q8_0", "--backend", "reference", "--disk-gb", "0"]
    return main([*base, *map(str, words)])


def test_a_whole_run_and_its_transcript(tmp_path, capsys):
    text = tmp_path / "qwen35-q8_0.txt"
    assert run("--local-dir", CHECKPOINT, "--transcript", text, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["result"] == "passed"
    names = ["arch", "disk", "engine", "local-dir", "memory", "convert", "tensors", "stderr", "tokens"]
    assert [step["step"] for step in found["steps"]] == [*names, "repeatability", "transcript"]
    assert text.read_text() == found["transcript"]
    assert "\nThe quick brown fox" in found["transcript"]
    assert "n_eval = 8\neval time =<X.XX> s / 8 runs\n" in found["transcript"]
    text.write_text(found["transcript"].replace("n_eval = 8", "n_eval = 9"))
    answer = found["transcript"].split("---stdout---\nThe quick brown fox")[1]
    assert run("--local-dir", CHECKPOINT, "--transcript", text, "--expect", answer[:2]) == 8
    told = capsys.readouterr()
    assert "first token    ok" in told.out
    assert "transcript     FAILED" in told.out
    assert "'n_eval = 8', expected 'n_eval = 9'" in told.err


def test_a_run_that_dies_or_complains(tmp_path, monkeypatch, capsys):
    """As the engine would: a module of its own that the child finds first."""
    (tmp_path / "sitecustomize.py").write_text("import os, sys; exec(os.environ.get('SMOKE_TEST', ''))")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("SMOKE_TEST", "sys.stderr.write('assertion failed\\n')")
    assert run("--local-dir", CHECKPOINT) == 8
    assert "the run says on stderr: 'assertion failed'" in capsys.readouterr().err
    monkeypatch.setenv("SMOKE_TEST", "os.kill(os.getpid(), 11)")
    assert run("--local-dir", CHECKPOINT, "--json") == 8
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == "run"
    assert "SIGSEGV" in found["reason"]


def test_a_dry_run_stops_after_the_preflight(tmp_path, capsys):
    assert run("--local-dir", CHECKPOINT, "--dry-run", "--output-dir", tmp_path) == 0
    out = capsys.readouterr().out
    assert out.startswith("would convert")
    assert out.endswith("result         planned\n")
    assert list(tmp_path.iterdir()) == []
    assert run("--local-dir", tmp_path, "--dry-run", "--json") == 8
    assert json.loads(capsys.readouterr().out)["step"] == "local-dir"


def test_what_the_command_refuses(tmp_path, capsys):
    assert run("--local-dir", CHECKPOINT, "--repo", "a/b") == 3
    assert run("--local-dir", CHECKPOINT, "--output-dir", tmp_path / "nothing") == 3
    assert run("--local-dir", CHECKPOINT, "--transcript", tmp_path / "nothing" / "x") == 3
    assert run("--local-dir", CHECKPOINT, "--expect", "") == 3
    assert run("--local-dir", CHECKPOINT, "--expect", "a", "--expect", "b", "--dry-run") == 3
    assert main(["smoke", "--arch", "nothing"]) == 7
    assert main(["smoke", "--arch", "qwen35", "--quant", "nothing"]) == 3
    capsys.readouterr()
    (tmp_path / "qwen35-q8_0.gguf").write_bytes(b"mine")
    assert run("--local-dir", CHECKPOINT, "--output-dir", tmp_path) == 3
    assert (tmp_path / "qwen35-q8_0.gguf").read_bytes() == b"mine"


def test_a_repository(tmp_path):
    def smoke_of(repo, **more):
        words = ["--repo", repo, "--quant", "q8_0", "--disk-gb", "0", "--backend", "reference", "--json"]
        command = [sys.executable, "-m", "hf2q", "smoke", "--arch", "qwen35", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=env | more)
        return done.returncode, json.loads(done.stdout)

    env = {name: value for name, value in os.environ.items() if not name.lower().startswith(("hf_", "hugging"))}
    env = {name: value for name, value in env.items() if not name.lower().endswith("_proxy")}
    with FakeHub() as hub:
        hub.commit("Org/Tiny", {path.name: path.read_bytes() for path in CHECKPOINT.iterdir() if path.suffix != ".npz"})
        env |= {"HF_ENDPOINT": hub.endpoint, "HF2Q_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path)}
        code, found = smoke_of("Org/Tiny")
        assert (code, found["step"]) == (2, "token")
        code, found = smoke_of("Org/Nothing", HF_TOKEN="hf_x")
        assert (code, found["step"]) == (6, "repo")
        assert "there is no repository Org/Nothing" in found["reason"]
        code, found = smoke_of("Org/Tiny", HF_TOKEN="hf_x")
        assert (code, found["result"]) == (0, "passed")
        assert found["steps"][1] == {"step": "token", "found": "there is one"}
