"""``hf2q serve --selftest`` on the trained checkpoint: each promise that can be asked about is kept."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hf2q.cli import main
from hf2q.convert import convert
from hf2q.serve.selftest.run import CHAT_CHECKS

SOURCE = Path(__file__).parent / "data" / "qwen3_5"


def test_the_trained_checkpoint_passes(tmp_path):
    model = tmp_path / "tiny.gguf"
    convert(SOURCE, "q8_0", model)
    words = ["serve", "--model", str(model), "--port", "0", "--selftest", "--json", "--api-key", "selftest-key"]
    done = subprocess.run([sys.executable, "-m", "hf2q", *words], capture_output=True, text=True, timeout=200)
    assert done.stdout, done.stderr
    (found,) = json.loads(done.stdout)
    results = {check["name"]: check for check in found["checks"]}
    assert [check for check in results.values() if check["result"] == "FAIL"] == []
    assert done.returncode == 0
    assert list(results) == [check.name for check in CHAT_CHECKS]
    skipped = {name for name, check in results.items() if check["result"] == "SKIP"}
    assert skipped <= {"/v1/embeddings", "/v1/responses says what a chat says"}
    assert results["tool_choice auto, streamed as unary"]["reason"] == "the model called a tool"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", str(SOURCE / "config.json"), "--json"), "--json is for --selftest"),
        (("--model", str(SOURCE / "config.json"), "--selftest", "--supervise"), "without --supervise"),
        (("--models-dir", str(SOURCE), "--selftest"), "--selftest checks the models given with --model"),
    ],
)
def test_what_it_refuses(words, message, capsys):
    assert main(["serve", *words]) == 3
    assert message in capsys.readouterr().err
