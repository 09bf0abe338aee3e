"""`verify` of what came from a repository: by the receipt, or by the file's own keys, at the commit of then."""

import json
from pathlib import Path

import pytest

from hf2q.convert import convert
from hf2q.convert.receipt import read_receipt
from hf2q.convert.verify import verify

REPO = "Org/Tiny-1.5B"


@pytest.mark.parametrize("receipt", [True, False])
def test_the_source_of_then_is_found_again(hub, checkpoint, plugins, tmp_path, receipt):
    files = {p.relative_to(checkpoint).as_posix(): p.read_bytes() for p in checkpoint.rglob("*") if p.is_file()}
    commit = hub.commit(REPO, files)
    made = convert(REPO, "to-bf16", tmp_path / "m.gguf", receipt=receipt, plugins=plugins)
    config = json.loads(files["config.json"]) | {"layers": 1}
    hub.commit(REPO, {**files, "config.json": json.dumps(config).encode()})  # the branch moves on
    for source in (None, REPO, checkpoint):
        found = verify(made.output, source, plugins=plugins)
        assert found.equal, (source, found.wrong, found.keys, found.problems)
    assert verify(made.output, plugins=plugins).source == f"{REPO} at {commit}"
    if receipt:
        told = read_receipt(Path(made.receipt)).source
        assert (told.kind, told.name, told.revision) == ("hub", REPO, commit)
        assert {file.path for file in told.files} == {
            p.relative_to(checkpoint).as_posix() for p in checkpoint.iterdir()
        }
