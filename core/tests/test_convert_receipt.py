"""What a conversion leaves beside its output and in it: sidecars, a receipt, and the keys hf2q.*."""

import hashlib
import importlib.util
import json
import os
import sys
import tracemalloc
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

from hf2q.convert import convert
from hf2q.convert.origin import Origin, OriginFile
from hf2q.convert.receipt import encode_receipt, read_receipt, receipt_path
from hf2q.convert.sidecars import SIDECARS
from hf2q.errors import EncodeError, FormatError, UsageError, WriteError
from hf2q.formats.gguf import open_gguf
from hf2q.plugins import Plugins
from hf2q.types import PolicyOptions


@pytest.fixture
def family(monkeypatch):
    spec = importlib.util.spec_from_file_location("fake_family", Path(__file__).parent / "data" / "fake_family.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fake_family", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def plugins(family):
    points = [("builtin", "hf2q.builtin"), ("fake", "fake_family")]
    return Plugins.load(strict=True, entry_points=[EntryPoint(n, v, "hf2q") for n, v in points])


@pytest.fixture
def folder(family, tmp_path):
    made = family.write_checkpoint(tmp_path / "model")
    (made / "chat_template.jinja").write_bytes(b"{{ messages }}\r\n")
    (made / "README.md").write_text("a model\n")
    (made / "notes.txt").write_text("not read")
    return made


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.fixture
def run(plugins, folder, out):
    def make(source=folder, recipe="to-bf16", output="m.gguf", **options):
        return convert(source, recipe, out / output, plugins=plugins, **options)

    return make


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def sha256(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def own_keys(path):
    with open_gguf(path) as file:
        keys = file.keys_in_order
        own = {key: file.metadata[key] for key in keys if key.startswith("hf2q.")}
        assert keys[-len(own) :] == tuple(own) if own else True
        return own


# ------------------------------------------------------------------------------------------------------- provenance


def test_our_keys_come_last_and_are_all_that_is_ours(run, out):
    own = own_keys(run().output)
    assert {key: own[key] for key in list(own)[:5]} == {
        "hf2q.version": "0.1.0",
        "hf2q.source.kind": "local",
        "hf2q.source.name": "model",
        "hf2q.recipe": "to-bf16",
        "hf2q.via": "f16",
    }
    assert list(own)[5:] == ["hf2q.recipe_digest", "hf2q.digest"]
    plain = run(output="p.gguf", provenance=False)
    assert own_keys(plain.output) == {}
    with open_gguf(out / "m.gguf") as one, open_gguf(plain.output) as other:
        assert one.keys_in_order[: -len(own)] == other.keys_in_order
        assert all(np.array_equal(one.rows(name), other.rows(name)) for name in other.tensors)


def test_the_recipe_digest_is_over_recipe_options_via_and_matrix(run):
    own = own_keys(run(options=PolicyOptions(leave_output_tensor=True), mtp=False).output)
    assert json.loads(own["hf2q.options"]) == {"leave_output_tensor": True, "mtp": False}
    decided = {
        "imatrix": None,
        "options": {"leave_output_tensor": True, "mtp": False},
        "recipe": "to-bf16",
        "via": "f16",
    }
    text = json.dumps(decided, sort_keys=True, separators=(",", ":"))
    assert own["hf2q.recipe_digest"] == hashlib.sha256(text.encode()).hexdigest()


def test_keys_of_an_earlier_conversion_are_replaced(run, out):
    first = run()
    second = run(first.output, "f32", "n.gguf")
    own = own_keys(second.output)
    assert (own["hf2q.source.kind"], own["hf2q.source.name"], own["hf2q.recipe"]) == ("gguf", "m.gguf", "f32")
    assert "hf2q.via" not in own
    assert own_keys(run(first.output, "f32", "o.gguf", provenance=False).output) == {}


def test_the_same_conversion_writes_the_same_file(run, out):
    digests = {sha256(run(output=f"{n}.gguf", threads=n).output) for n in (1, 2)}
    assert len(digests) == 1


def test_names_that_are_no_text(run, out):
    source = Path(run().output).rename(out / os.fsdecode(b"mod\xffel.gguf"))
    made = run(source, "f32", "n.gguf")
    assert own_keys(made.output)["hf2q.source.name"] == "mod?el.gguf"
    receipt = read_receipt(Path(made.receipt))
    assert (receipt.source.name, receipt.source.files[0].path) == ("mod?el.gguf", "mod?el.gguf")


# --------------------------------------------------------------------------------------------------------- sidecars


def test_sidecars_are_copied_byte_for_byte(run, folder, out):
    made = run()
    copied = ["chat_template.jinja", "config.json", "tokenizer.json"]
    assert names_in(out) == sorted([*copied, "m.gguf", "m.gguf.receipt.json"])
    assert sorted(Path(path).name for path in made.sidecars) == copied
    assert all((out / name).read_bytes() == (folder / name).read_bytes() for name in copied)
    assert set(copied) < set(SIDECARS)


def test_equal_files_are_left_alone(run, out):
    run()
    before = {name: (out / name).stat().st_mtime_ns for name in SIDECARS if (out / name).exists()}
    run(output="n.gguf")
    assert before == {name: (out / name).stat().st_mtime_ns for name in before}


def test_a_different_file_is_refused_before_anything_is_written(run, out):
    (out / "config.json").write_text("mine")
    with pytest.raises(UsageError, match=r"config\.json exists, and differs") as caught:
        run()
    assert "--no-sidecars" in caught.value.hint
    assert names_in(out) == ["config.json"]
    assert (out / "config.json").read_text() == "mine"
    assert run(sidecars=False).sidecars == ()
    assert names_in(out) == ["config.json", "m.gguf", "m.gguf.receipt.json"]
    run(force=True)
    assert json.loads((out / "config.json").read_text())["architectures"]


def test_force_replaces_a_link_and_not_what_it_leads_to(run, out, tmp_path):
    (tmp_path / "precious").write_text("mine")
    (out / "config.json").symlink_to(tmp_path / "precious")
    run(force=True)
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (out / "config.json").is_symlink()


def test_output_among_the_source(plugins, folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    made = convert(folder, "f16", folder / "m.gguf", plugins=plugins)
    assert len(made.sidecars) == 3
    assert {name: (folder / name).read_bytes() for name in before} == before
    listed = [file.path for file in read_receipt(Path(made.receipt)).source.files]
    again = convert(folder, "f16", folder / "n.gguf", plugins=plugins)
    assert [file.path for file in read_receipt(Path(again.receipt)).source.files] == listed


def test_nothing_is_copied_for_a_file(run, out):
    run()
    (out / "sub").mkdir()
    made = run(out / "m.gguf", "f32", "sub/n.gguf")
    assert made.sidecars == ()
    assert names_in(out / "sub") == ["n.gguf", "n.gguf.receipt.json"]


def test_an_output_named_like_a_sidecar(run, out):
    with pytest.raises(UsageError, match="both the output and a sidecar"):
        run(output="config.json")
    assert names_in(out) == []


def test_a_dry_run_lists_them(run, out):
    assert [Path(path).name for path in run(dry_run=True).sidecars] == [n for n in SIDECARS if n in NAMES]
    assert names_in(out) == []


NAMES = ("tokenizer.json", "config.json", "chat_template.jinja")


# ---------------------------------------------------------------------------------------------------------- receipt


def test_a_receipt_tells_all(run, folder, out):
    made = run(threads=2)
    receipt = read_receipt(out / "m.gguf.receipt.json")
    assert made.receipt == str(out / "m.gguf.receipt.json")
    assert (receipt.source.kind, receipt.source.name, receipt.source.revision) == ("local", "model", None)
    read = ["README.md", "chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    assert [file.path for file in receipt.source.files] == read
    for file in receipt.source.files:
        assert (file.size, file.sha256) == ((folder / file.path).stat().st_size, sha256(folder / file.path))
    [output] = receipt.outputs
    assert (output.name, output.role, output.size, output.sha256) == (
        "m.gguf",
        "model",
        (out / "m.gguf").stat().st_size,
        sha256(out / "m.gguf"),
    )
    assert {one.name: one.sha256 for one in receipt.sidecars} == {name: sha256(out / name) for name in NAMES}
    [plan] = receipt.plans
    assert sum(total.tensors for total in plan.types.values()) == len(made.plan.tensors)
    assert sum(total.nbytes for total in plan.types.values()) == made.plan.nbytes
    assert sum(total.parameters for total in plan.types.values()) == made.plan.parameters
    assert (receipt.recipe.name, receipt.recipe.via, receipt.recipe.imatrix) == ("to-bf16", "f16", None)
    assert receipt.recipe.digest == own_keys(made.output)["hf2q.recipe_digest"]
    assert receipt.bounds.threads == 2
    assert receipt.started <= receipt.finished


def test_receipts_are_canonical_and_differ_in_time_only(run, out):
    first = Path(run(threads=2).receipt).read_bytes()
    second = Path(run(threads=2, force=True).receipt).read_bytes()
    one, other = json.loads(first), json.loads(second)
    for told in (one, other):
        del told["started"], told["finished"]
    assert one == other
    text = json.dumps(json.loads(first), sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"
    assert text.encode() == first
    assert encode_receipt(read_receipt(out / "m.gguf.receipt.json")) == second


@pytest.mark.parametrize("recipe", ["f32", "to-bf16"])
def test_the_bounds_hold(run, family, tmp_path, recipe):
    """Arrays of numpy are traced; with them everything else that Python allocates meanwhile."""
    big = family.write_checkpoint(
        tmp_path / "big" / "model", family.tensors_of(width=1024, vocab=12_000), width=1024, vocab=12_000
    )
    run(big, recipe, threads=2, sidecars=False)  # whatever is imported or made once
    tracemalloc.start()
    try:
        made = run(big, recipe, threads=2, sidecars=False, force=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    bounds = read_receipt(Path(made.receipt)).bounds
    assert (bounds.piece_bytes, bounds.pieces) == (4 << 20, 5)
    assert bounds.encoded_bytes == (4 << 20 if recipe == "f32" else 2 << 20)
    assert bounds.piece_bytes < peak < bounds.peak_bytes


def test_every_shard_is_listed(run, out):
    made = run(split_max_tensors=2)
    receipt = read_receipt(Path(made.receipt))
    assert made.receipt == f"{made.output}.receipt.json"
    assert [one.name for one in receipt.outputs] == [Path(path).name for path in made.files]
    assert [one.sha256 for one in receipt.outputs] == [sha256(path) for path in made.files]


def test_a_writer_that_cannot_hash_is_read_again(run, monkeypatch):
    monkeypatch.setattr("hf2q.convert.recording.HashingWriter", type("Other", (), {}))
    made = run()
    assert read_receipt(Path(made.receipt)).outputs[0].sha256 == sha256(made.output)


def test_without_a_receipt(run, out):
    run(receipt=False)
    assert "m.gguf.receipt.json" not in names_in(out)


@pytest.mark.parametrize("receipt", [True, False])
def test_no_older_receipt_lies_beside_a_new_file(run, out, monkeypatch, receipt):
    run()
    old = (out / "m.gguf.receipt.json").read_bytes()
    seen = []
    publish = "hf2q.formats.gguf.writer.GgufWriter.publish"
    original = __import__("hf2q.formats.gguf.writer", fromlist=["GgufWriter"]).GgufWriter.publish

    def watched(writer):
        seen.append((out / "m.gguf.receipt.json").exists())
        original(writer)

    monkeypatch.setattr(publish, watched)
    run(force=True, receipt=receipt, recipe="f32")
    assert seen == [False]
    path = out / "m.gguf.receipt.json"
    assert path.exists() == receipt
    assert not receipt or path.read_bytes() != old


def test_a_failure_leaves_the_old_file_with_its_receipt(run, family, out, tmp_path):
    run()
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    tensors = family.tensors_of()
    tensors["model.layers.1.up.weight"][0, 0] = np.nan
    with pytest.raises(EncodeError):
        run(family.write_checkpoint(tmp_path / "bad" / "model", tensors), force=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_source_that_cannot_be_hashed_stops_the_conversion(run, folder, out, monkeypatch):
    from hf2q.formats import digest

    real = digest.digest_file

    def failing(path, stop=None):
        if Path(path).name == "README.md":
            raise FormatError(f"{path} changed while it was being read")
        return real(path, stop)

    monkeypatch.setattr(digest, "digest_file", failing)
    with pytest.raises(FormatError, match=r"README\.md changed"):
        run()
    assert names_in(out) == []


def test_a_folder_where_the_receipt_would_be(run, out):
    (out / "m.gguf.receipt.json").mkdir()
    with pytest.raises(WriteError, match="where the receipt would be"):
        run()
    assert names_in(out) == ["m.gguf.receipt.json"]


def test_digests_of_a_hub_are_not_computed_again(run, folder, monkeypatch):
    from hf2q.convert import source

    files = [OriginFile(path="model.safetensors", size=5, sha256="a" * 64)]
    origin = Origin(
        asked="org/old",
        repo="org/old",
        canonical="org/model",
        revision="main",
        commit="b" * 40,
        endpoint="https://hub.test",
        files=tuple(files),
    )
    real = source.open_source
    import msgspec

    monkeypatch.setattr(
        "hf2q.convert.prepare.open_source", lambda place: msgspec.structs.replace(real(place), origin=origin)
    )
    made = run()
    receipt = read_receipt(Path(made.receipt))
    found = {file.path: file.sha256 for file in receipt.source.files}
    assert found["model.safetensors"] == "a" * 64
    assert found["config.json"] == sha256(folder / "config.json")
    told = receipt.source
    assert (told.kind, told.name, told.canonical, told.revision) == ("hub", "org/old", "org/model", "b" * 40)
    own = own_keys(made.output)
    assert (own["hf2q.source.name"], own["hf2q.source.revision"]) == ("org/model", "b" * 40)


CHANGES = {
    "another version": (lambda r: r.update(schema_version=4), r"schema_version is 4, expected 3"),
    "no version": (lambda r: r.pop("schema_version"), r"schema_version is None"),
    "true version": (lambda r: r.update(schema_version=True), r"schema_version is True"),
    "unknown field": (lambda r: r.update(more=1), r"more"),
    "missing field": (lambda r: r.pop("bounds"), r"bounds"),
    "bad digest": (lambda r: r["outputs"][0].update(sha256="A" * 64), r"\$\.outputs\[0\]\.sha256|outputs"),
    "negative size": (lambda r: r["source"]["files"][0].update(size=-1), r"\$\.source\.files\[0\]\.size|files"),
    "float": (lambda r: r["bounds"].update(threads=1.5), r"threads"),
    "path upwards": (lambda r: r["source"]["files"][0].update(path="../x"), r"no relative path"),
    "absolute path": (lambda r: r["source"]["files"][0].update(path="/x"), r"no relative path"),
    "output elsewhere": (lambda r: r["outputs"][0].update(name="a/b"), r"no plain file name"),
    "doubled output": (lambda r: r["outputs"].append(r["outputs"][0]), r"occurs twice"),
    "no output": (lambda r: r.update(outputs=[]), r"no output"),
    "hub without a commit": (lambda r: r["source"].update(kind="hub"), r"revision"),
    "unknown option": (lambda r: r["recipe"]["options"].update(fast=True), r"fast"),
    "time": (lambda r: r.update(started="yesterday"), r"started"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_receipts_are_validated_when_read(run, out, name):
    change, message = CHANGES[name]
    path = Path(run().receipt)
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))
    with pytest.raises(FormatError, match=message):
        read_receipt(path)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"schema_version":3,"schema_version":3}', b"\xff"])
def test_what_is_no_receipt(tmp_path, text):
    path = receipt_path(tmp_path / "m.gguf")
    assert read_receipt(path) is None
    path.write_bytes(text)
    with pytest.raises(FormatError, match=r"m\.gguf\.receipt\.json"):
        read_receipt(path)
