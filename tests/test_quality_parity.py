"""Parity: manifests, comparing answers with them, and the command on the trained checkpoint."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf2q.cli import main
from hf2q.convert import convert
from hf2q.errors import FormatError, MissingFileError, QualityError, UsageError
from hf2q.quality import parity
from hf2q.quality.parity import Answer, common_prefix, compare
from hf2q.quality.parity_manifest import Manifest, ModelFile, Reference, check_files, read_manifest, write_manifest
from hf2q.testing.scripted import scripted_model

ROOT = Path(__file__).parent
DIGEST = "ab" * 32


def reference(**fields):
    return Reference(**{"name": "a", "prompt": "p", "max_tokens": 4, "text": "früh", "tokens": (1, 2), **fields})


def test_an_exact_reference_needs_every_byte_and_token():
    assert compare(reference(), Answer(text="früh", tokens=(1, 2))).passed
    assert compare(reference(tokens=None), Answer(text="früh", tokens=(9,))).passed
    other = compare(reference(), Answer(text="fräh", tokens=(1, 2)))
    assert (other.prefix, other.expected) == (3, 5), "ü and ä share their first byte"
    assert "part after 3 bytes of 5" in other.problem
    assert not compare(reference(), Answer(text="früher", tokens=(1, 2))).passed
    assert not compare(reference(), Answer(text="", tokens=())).passed
    assert "tokens part at 1: 3, expected 2" in compare(reference(), Answer(text="früh", tokens=(1, 3))).problem
    assert "tokens part at 1: the end, expected 2" in compare(reference(), Answer(text="früh", tokens=(1,))).problem
    assert (
        "tokens part at 2: 3, expected the end" in compare(reference(), Answer(text="früh", tokens=(1, 2, 3))).problem
    )


def test_a_floor_is_a_number_of_bytes():
    for floor, found, passed in ((3, "fräh", True), (4, "fräh", False), (5, "früher", True), (1, "x", False)):
        check = compare(reference(tokens=None, floor=floor), Answer(text=found, tokens=()))
        assert check.passed == passed
        assert check.expected == floor


def test_logits_by_their_digest():
    one = reference(logits_sha256=DIGEST)
    assert compare(one, Answer(text="früh", tokens=(1, 2), logits_sha256=DIGEST)).passed
    assert "logits" in compare(one, Answer(text="früh", tokens=(1, 2), logits_sha256="cd" * 32)).problem


def test_a_reference_without_text_cannot_pass():
    with pytest.raises(QualityError, match="'a' has no expected text"):
        compare(reference(text=None), Answer(text="", tokens=()))


@given(st.binary(max_size=8), st.binary(max_size=8), st.binary(max_size=8))
def test_common_prefix(start, a, b):
    found = common_prefix(start + a, start + b)
    assert found >= len(start)
    assert (start + a)[:found] == (start + b)[:found]
    assert found in (len(start + a), len(start + b)) or (start + a)[found] != (start + b)[found]


# ------------------------------------------------------------------------------------------------------------ manifests


def written(folder, **changes):
    path = folder / "m.json"
    one = {"name": "a", "prompt": "p", "max_tokens": 4, **changes.pop("reference", {})}
    path.write_text(json.dumps({"schema": "hf2q-parity/1", "references": [one], **changes}))
    return path


def test_a_manifest_is_what_was_written(tmp_path):
    manifest = Manifest(references=(reference(),), files=(ModelFile(name="x", size=3, sha256=DIGEST),))
    write_manifest(tmp_path / "m.json", manifest)
    assert read_manifest(tmp_path / "m.json") == manifest
    assert read_manifest(written(tmp_path)).references[0].text is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"schema": "hf2q-parity/2"}, "hf2q-parity/2"),
        ({"more": 1}, "unknown field `more`"),
        ({"references": []}, "nothing could fail"),
        ({"references": [{"name": "a", "prompt": "p", "max_tokens": 4}] * 2}, "two references of the name 'a'"),
        ({"reference": {"max_tokens": 0}}, ">= 1"),
        ({"reference": {"prompt": ""}}, "length >= 1"),
        ({"reference": {"seed": 1}}, "unknown field `seed`"),
        ({"reference": {"floor": 0, "text": "x"}}, ">= 1"),
        ({"reference": {"floor": 1}}, "it needs text"),
        ({"reference": {"floor": 1, "text": "x", "tokens": [1]}}, "no tokens or logits"),
        ({"reference": {"floor": 3, "text": "ü"}}, "the floor is 3 bytes, but the text has 2"),
        ({"reference": {"logits_sha256": "AB"}}, "matching regex"),
        ({"files": [{"name": "x", "size": -1, "sha256": DIGEST}]}, ">= 0"),
    ],
)
def test_manifests_that_are_refused(tmp_path, changes, why):
    with pytest.raises(FormatError, match=why.replace("`", ".")):
        read_manifest(written(tmp_path, **changes))


def test_manifests_that_are_none(tmp_path):
    with pytest.raises(MissingFileError):
        read_manifest(tmp_path / "nothing")
    for data in (b"", b"[]", b"\xff", b"{", b"[" * 5000):
        (tmp_path / "m.json").write_bytes(data)
        with pytest.raises(FormatError, match="is no manifest"):
            read_manifest(tmp_path / "m.json")


def test_the_digest_decides_and_not_the_name():
    files = (ModelFile(name="x", size=3, sha256=DIGEST),)
    manifest = Manifest(references=(reference(),), files=files)
    check_files(Path("m"), manifest, (ModelFile(name="y", size=3, sha256=DIGEST),))
    for others in ((), files * 2, (ModelFile(name="x", size=3, sha256="cd" * 32),)):
        with pytest.raises(UsageError, match="holds the references of x"):
            check_files(Path("m"), manifest, others)


def test_another_programs_text_stays_and_is_for_its_file_alone():
    model = scripted_model("answer")
    files = (ModelFile(name="x", size=3, sha256=DIGEST),)
    locked = reference(name="peer", tokens=None, floor=2)
    found = parity.update(model, Manifest(references=(locked, reference(prompt="b", max_tokens=3))), files)
    assert found.references[0] == locked
    assert found.files == files
    assert found.references[1].tokens != (1, 2)
    assert len(found.references[1].tokens) <= 3
    assert all(check.name == "peer" or check.passed for check in parity.check(model, found))
    others = (msgspec.structs.replace(files[0], sha256="cd" * 32),)
    with pytest.raises(FormatError, match="'peer' holds another program's answer"):
        parity.update(model, found, others)
    with pytest.raises(QualityError, match="no smoke prompts"):
        parity.fresh((), "toy")


# ----------------------------------------------------------------------------------------------------------- end to end


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parity")
    for recipe in ("q8_0", "q4_0"):
        convert(ROOT / "data" / "qwen3_5", recipe, folder / f"{recipe}.gguf", sidecars=False, receipt=False)
    return folder


def run(made, recipe, manifest, *more):
    return main(
        ["parity", str(made / f"{recipe}.gguf"), "--manifest", str(manifest), "--backend", "reference", "--json", *more]
    )


def test_a_file_is_recorded_and_compared(made, tmp_path, capsys):
    path = tmp_path / "m.json"
    assert run(made, "q8_0", path) == 3, "no manifest yet"
    assert run(made, "q8_0", path, "--logits") == 3, "nothing to record"
    capsys.readouterr()
    assert run(made, "q8_0", path, "--update", "--logits") == 0
    recorded = json.loads(path.read_bytes())
    one = recorded["references"][0]
    assert one["prompt"] == "The quick brown fox"
    assert len(one["tokens"]) == parity.MAX_TOKENS
    assert len(one["logits_sha256"]) == 64
    capsys.readouterr()
    assert run(made, "q8_0", path) == 0
    assert json.loads(capsys.readouterr().out)["passed"]
    assert run(made, "q4_0", path) == 3, "another file"
    assert "holds the references of q8_0.gguf" in capsys.readouterr().err
    one["text"] = one["text"][:-1] + "☃"
    path.write_text(json.dumps(recorded))
    assert run(made, "q8_0", path) == 2
    told = capsys.readouterr()
    assert "1 of 1 references" in told.err
    assert json.loads(told.out)["references"][0]["problem"]
    assert run(made, "q8_0", path, "--update") == 0
    assert run(made, "q8_0", path) == 0
