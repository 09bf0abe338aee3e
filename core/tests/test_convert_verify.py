"""`verify`: what is equal is said to be equal, and whatever byte is changed, it is found and named."""

import importlib.util
import json
import os
import shutil
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf2q.cli import main
from hf2q.convert import convert, pipeline
from hf2q.convert.receipt import read_receipt, write_receipt
from hf2q.convert.verify import verify
from hf2q.errors import FormatError, Hf2qError, MissingFileError, UnknownNameError, UsageError
from hf2q.formats.gguf import GgufWriter, open_gguf
from hf2q.formats.imatrix import Entry, Imatrix, write_imatrix
from hf2q.plugins import Plugins
from hf2q.types import MetadataField, Plan, PolicyOptions, TensorPlan

EXAMPLES = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(scope="module")
def family():
    spec = importlib.util.spec_from_file_location("fake_family", Path(__file__).parent / "data" / "fake_family.py")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get("fake_family")
    sys.modules["fake_family"] = module
    spec.loader.exec_module(module)
    yield module
    if before is None:
        del sys.modules["fake_family"]
    else:
        sys.modules["fake_family"] = before


@pytest.fixture(scope="module")
def plugins(family):
    points = [("builtin", "hf2q.builtin"), ("fake", "fake_family")]
    return Plugins.load(strict=True, entry_points=[EntryPoint(n, v, "hf2q") for n, v in points])


@pytest.fixture(scope="module")
def folder(family, tmp_path_factory):
    """A checkpoint with a vector of an odd width, so that there is padding."""
    tensors = family.tensors_of(width=36, vocab=272)
    return family.write_checkpoint(tmp_path_factory.mktemp("verify") / "model", tensors, width=36)


@pytest.fixture(scope="module")
def made(folder, plugins):
    """Files of that checkpoint: with receipt, with keys alone, with neither."""
    out = folder.parent / "made"
    out.mkdir()
    options = {"plugins": plugins, "sidecars": False}
    return {
        "receipt": convert(folder, "to-bf16", out / "receipt.gguf", **options).output,
        "keys": convert(folder, "to-bf16", out / "keys.gguf", receipt=False, **options).output,
        "plain": convert(folder, "f16", out / "plain.gguf", receipt=False, provenance=False, **options).output,
    }


@pytest.fixture
def check(folder, plugins):
    def run(file, source=folder, **options):
        return verify(file, source, plugins=plugins, **options)

    return run


def copy_of(file, folder):
    """The file, and its receipt if it has one, in a folder of their own."""
    target = folder / "copy.gguf"
    shutil.copy(file, target)
    receipt = Path(f"{file}.receipt.json")
    if receipt.exists():
        told = json.loads(receipt.read_text())
        told["outputs"][0]["name"] = "copy.gguf"
        Path(f"{target}.receipt.json").write_text(json.dumps(told))
    return target


def rewritten(path, change):
    """The file again with other metadata or tensors: `change` gets fields and arrays by name with their qtypes."""
    with open_gguf(path) as file:
        fields = [file.field(key) for key in file.keys_in_order]
        arrays = {t.name: (t.shape, t.qtype, np.array(file.rows(t.name)).reshape(-1)) for t in file.tensors.values()}
    fields, arrays = change(fields, arrays)
    offset, tensors = 0, []
    for name, (shape, qtype, data) in arrays.items():
        tensors.append(
            TensorPlan(
                name=name, shape=shape, qtype=qtype, via=qtype, reason="", nbytes=data.nbytes, offset=offset, inputs=()
            )
        )
        offset += -(-data.nbytes // 32) * 32
    writer = GgufWriter(str(path), Plan(arch="", recipe="", via="", metadata=tuple(fields), tensors=tuple(tensors)))
    for name, (_, _, data) in arrays.items():
        writer.write(name, data)
    writer.close()


# ------------------------------------------------------------------------------------------------------------ equal


@pytest.mark.parametrize("kind", ["receipt", "keys", "plain"])
@pytest.mark.parametrize("threads", [1, 3])
def test_what_was_made_is_equal(made, check, kind, threads, monkeypatch):
    monkeypatch.setattr(pipeline, "PIECE", 100)
    found = check(made[kind], threads=threads)
    assert found.equal, (found.wrong, found.keys, found.problems)
    assert (found.recorded, found.receipt is not None) == (kind != "plain", kind == "receipt")
    assert {tensor.status for tensor in found.tensors} == {"ok"}
    assert len(found.tensors) == 5


def test_options_are_those_of_then(family, folder, plugins, tmp_path, check):
    options = PolicyOptions(leave_output_tensor=True)
    source = family.write_checkpoint(tmp_path / "mtp" / "model", family.tensors_of() | mtp_block())
    for receipt in (True, False):
        made = convert(
            source,
            "to-bf16",
            tmp_path / f"{receipt}.gguf",
            via="f32",
            mtp=False,
            options=options,
            receipt=receipt,
            plugins=plugins,
        )
        assert check(made.output, source).equal
        found = check(made.output, source, mtp=True)
        assert {tensor.name for tensor in found.wrong} == {"blk.2.ffn_up.weight", "blk.2.attn_norm.weight"}
        assert {tensor.status for tensor in found.wrong} == {"missing"}
        assert {tensor.status for tensor in check(made.output, source, via="f16").wrong} == {"differs"}


def mtp_block():
    rng = np.random.default_rng(5)
    return {
        "mtp.0.up.weight": rng.standard_normal((64, 64)).astype(np.float32),
        "mtp.0.norm.weight": rng.standard_normal(64).astype(np.float32),
    }


def test_shards(folder, plugins, tmp_path, check):
    for receipt in (True, False):
        out = tmp_path / str(receipt)
        out.mkdir()
        made = convert(folder, "to-bf16", out / "s.gguf", split_max_tensors=2, receipt=receipt, plugins=plugins)
        assert check(made.output).equal
        flip(made.files[1], Path(made.files[1]).stat().st_size - 40)
        found = check(made.output)
        assert [tensor.status for tensor in found.wrong] == ["differs"]
        assert [Path(p.file).name for p in found.problems] == (["s-00002-of-00003.gguf"] if receipt else [])


def test_a_gguf_source(made, plugins, tmp_path, check):
    for receipt in (True, False):
        second = convert(made["receipt"], "f32", tmp_path / f"{receipt}.gguf", receipt=receipt, plugins=plugins)
        assert check(second.output, made["receipt"]).equal
        assert not check(second.output, made["plain"]).equal


def test_a_source_under_another_name(made, folder, tmp_path, check):
    shutil.copytree(folder, tmp_path / "elsewhere")
    assert check(made["receipt"], tmp_path / "elsewhere").equal
    assert check(made["keys"], tmp_path / "elsewhere").equal


# -------------------------------------------------------------------------------------------------------- one byte


def flip(path, at, bit=0):
    with Path(path).open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << bit)]))


def attempt(check, path):
    """What was found, or the refusal."""
    try:
        return check(path), None
    except Hf2qError as error:
        return None, error


@pytest.mark.parametrize("kind", ["receipt", "keys"])
@given(data=st.data())
@EXAMPLES
def test_one_flipped_bit_is_found_and_named(made, check, tmp_path_factory, kind, data):
    path = copy_of(made[kind], tmp_path_factory.mktemp("flip"))
    size = path.stat().st_size
    with open_gguf(path) as file:
        tensors, start = dict(file.tensors), file.data_offset
        version = file.metadata["hf2q.version"]
    assert version
    # half of the places in the header, which is the smaller part
    at = data.draw(st.one_of(st.integers(0, start - 1), st.integers(start, size - 1)), label="byte")
    flip(path, at, data.draw(st.integers(0, 7), label="bit"))
    found, refusal = attempt(check, path)
    if refusal is not None:  # a header that cannot be read is bad input
        assert at < start, refusal
        assert refusal.exit_code == 3
        assert not isinstance(refusal, MissingFileError)
        return
    assert not found.equal
    if kind == "receipt":
        assert any(problem.what == "sha256" for problem in found.problems)
    inside = [t for t in tensors.values() if t.offset <= at < t.offset + t.nbytes]
    if inside:
        [tensor], [wrong] = inside, found.wrong
        where = wrong.difference
        assert (wrong.name, wrong.status, where.offset, where.count) == (tensor.name, "differs", at - tensor.offset, 1)
        weight = (at - tensor.offset) // (tensor.nbytes // tensor.elements)
        assert (where.row, where.column) == divmod(weight, tensor.columns)
        assert not found.keys
    elif at >= start:
        assert f"byte {at}, padding" in next(p.message for p in found.problems if p.what == "padding")
        assert not found.wrong
    else:
        assert found.keys or found.wrong or any(p.what in ("header", "order") for p in found.problems)


def test_every_byte_of_our_keys_counts(made, check, tmp_path):
    """Keys that the source says nothing about have a digest of their own."""
    raw = Path(made["keys"]).read_bytes()
    for text in (b"0.1.0", b"local", b"model\x15", b"to-bf16", b"f16"):
        path = copy_of(made["keys"], tmp_path)
        at = raw.rindex(b"hf2q.version")
        flip(path, raw.index(text, at) if text in raw[at:] else raw.index(text[:5], at), 1)
        found, refusal = attempt(check, path)
        if refusal is None:
            assert any(key.key.startswith("hf2q.") for key in found.keys)
        else:
            assert isinstance(refusal, UnknownNameError | FormatError)


def test_several_differences_are_counted(made, check, tmp_path):
    path = copy_of(made["keys"], tmp_path)
    with open_gguf(path) as file:
        tensor = file.tensors["blk.1.ffn_up.weight"]
    for at in (77, 300, 301):
        flip(path, tensor.offset + at)
    [wrong] = check(path).wrong
    assert (wrong.difference.offset, wrong.difference.count) == (77, 3)
    assert (wrong.difference.row, wrong.difference.column) == (1, 2)


@pytest.mark.parametrize("kind", ["receipt", "keys", "plain"])
def test_bytes_after_the_end(made, check, tmp_path, kind):
    path = copy_of(made[kind], tmp_path)
    with path.open("ab") as file:
        file.write(b"\0\0\0")
    [trailing] = [problem for problem in check(path).problems if problem.what == "trailing"]
    assert trailing.message.startswith("3 bytes follow the last tensor")


# ------------------------------------------------------------------------------------------------- other differences


def test_tensors_missing_added_renamed_and_in_another_order(made, check, tmp_path):
    path = copy_of(made["keys"], tmp_path)

    def change(fields, arrays):
        arrays["blk.0.extra.weight"] = arrays.pop("blk.0.ffn_up.weight")
        first = arrays.pop("token_embd.weight")
        return fields, arrays | {"token_embd.weight": first}

    rewritten(path, change)
    found = check(path)
    assert {tensor.name: tensor.status for tensor in found.wrong} == {
        "blk.0.extra.weight": "extra",
        "blk.0.ffn_up.weight": "missing",
    }
    [order] = found.problems
    assert (order.what, order.message.split()[1]) == ("order", "blk.0.attn_norm.weight")


def test_shapes(made, check, tmp_path):
    path = copy_of(made["plain"], tmp_path)

    def change(fields, arrays):
        _, qtype, data = arrays["blk.0.ffn_up.weight"]
        return fields, arrays | {"blk.0.ffn_up.weight": ((18, 72), qtype, data)}

    rewritten(path, change)
    [wrong] = check(path).wrong
    assert (wrong.status, wrong.shape, wrong.expected_shape) == ("shape", (18, 72), (36, 36))


@pytest.mark.parametrize("kind", ["keys", "plain"])
def test_types(made, check, tmp_path, kind):
    """A tensor of zeros is the same in F16 and BF16: only the type tells."""
    path = copy_of(made[kind], tmp_path)

    def change(fields, arrays):
        shape, qtype, data = arrays["blk.0.ffn_up.weight"]
        other = "F16" if qtype == "BF16" else "BF16"
        return fields, arrays | {"blk.0.ffn_up.weight": (shape, other, data)}

    rewritten(path, change)
    [wrong] = check(path).wrong
    if kind == "keys":
        assert (wrong.status, wrong.qtype, wrong.expected_qtype) == ("type", "F16", "BF16")
    else:  # nothing says which type it should have, so the bytes tell
        assert (wrong.status, wrong.qtype) == ("differs", "BF16")
    assert wrong.difference.count > 1000


def test_keys_changed_missing_added_and_in_another_order(made, check, tmp_path):
    path = copy_of(made["plain"], tmp_path)

    def change(fields, arrays):
        by_key = {field.key: field for field in fields}
        by_key["general.name"] = MetadataField.string("general.name", "Other")
        del by_key["general.type"]
        last = by_key.pop("fake.embedding_length")
        return [*by_key.values(), last, MetadataField.u32("more", 1)], arrays

    rewritten(path, change)
    found = check(path)
    assert {key.key: key.status for key in found.keys} == {
        "general.name": "differs",
        "more": "extra",
        "general.type": "missing",
        "general.quantization_version": "order",
    }
    assert not found.wrong
    differs = next(key for key in found.keys if key.key == "general.name")
    assert (differs.found, differs.expected) == ("STRING 'Other'", "STRING 'Model'")


def test_the_type_of_a_value_counts(made, check, tmp_path):
    path = copy_of(made["plain"], tmp_path)

    def change(fields, arrays):
        return [MetadataField.i32(f.key, f.value) if f.key == "fake.block_count" else f for f in fields], arrays

    rewritten(path, change)
    [key] = check(path).keys
    assert (key.key, key.found, key.expected) == ("fake.block_count", "INT32 2", "UINT32 2")


def test_a_source_that_has_changed(made, folder, family, tmp_path, check):
    shutil.copytree(folder, tmp_path / "model")
    tensors = family.tensors_of(width=36, vocab=272)
    tensors["model.layers.1.up.weight"][3, 4] += 1
    family.write_safetensors(tmp_path / "model" / "model.safetensors", tensors)
    found = check(made["receipt"], tmp_path / "model")
    [wrong] = found.wrong
    assert (wrong.name, wrong.difference.row, wrong.difference.column) == ("blk.1.ffn_up.weight", 3, 4)
    [problem] = found.problems
    assert (problem.what, problem.file) == ("source", "model.safetensors")
    (tmp_path / "model" / "README.md").write_text("new, and so no part of what the receipt lists")
    assert [p.file for p in check(made["receipt"], tmp_path / "model").problems] == ["model.safetensors"]


# -------------------------------------------------------------------------------------------- importance, and errors


@pytest.fixture
def matrix(tmp_path):
    """A matrix, in a folder of its own."""

    def write(name, value=1.0):
        entry = Entry(sums=np.full((1, 36), value, np.float32), counts=np.array([1]))
        path = tmp_path / name
        write_imatrix(path, Imatrix(entries={"blk.0.ffn_up.weight": entry}, chunk_size=1), "gguf")
        return path

    return write


@pytest.mark.parametrize("receipt", [True, False])
def test_an_importance_matrix_is_needed_again(folder, plugins, tmp_path, check, matrix, receipt):
    path = matrix("m.imatrix")
    made = convert(folder, "to-bf16", tmp_path / "m.gguf", imatrix=path, receipt=receipt, plugins=plugins)
    moved = path.rename(tmp_path / "moved.imatrix")
    assert check(made.output, imatrix=moved).equal
    with pytest.raises(UsageError, match=r"m\.imatrix with SHA-256 [0-9a-f]{64}, which is needed") as caught:
        check(made.output)
    assert "--imatrix" in caught.value.hint
    with pytest.raises(UsageError, match=r"has the SHA-256 [0-9a-f]{64}, but .* has [0-9a-f]{64}"):
        check(made.output, imatrix=matrix("other.imatrix", 2.0))


def test_an_importance_matrix_that_nothing_but_llama_cpp_tells_of(folder, plugins, tmp_path, check, matrix):
    path = matrix("m.imatrix")
    plain = {"receipt": False, "provenance": False, "plugins": plugins}
    made = convert(folder, "to-bf16", tmp_path / "m.gguf", imatrix=path, **plain)
    with pytest.raises(UsageError, match=r"importance matrix .*m\.imatrix, which is needed"):
        check(made.output)
    assert check(made.output, imatrix=path).equal


def test_a_source_that_nobody_names(made, plugins):
    for kind in made:
        with pytest.raises(UsageError, match="from which source it was made is not known") as caught:
            verify(made[kind], plugins=plugins)
        assert ("'model'" in caught.value.message) == (kind != "plain")


def test_a_receipt_of_something_else(folder, plugins, tmp_path, check):
    made = convert(folder, "to-bf16", tmp_path / "s.gguf", split_max_tensors=2, plugins=plugins)
    one = convert(folder, "to-bf16", tmp_path / "one.gguf", receipt=False, plugins=plugins)
    write_receipt(Path(f"{one.output}.receipt.json"), read_receipt(Path(made.receipt)))
    with pytest.raises(FormatError, match="lists 3 files of the model, but there are 1"):
        check(one.output)
    Path(f"{one.output}.receipt.json").write_text("{}")
    with pytest.raises(FormatError, match="schema_version"):
        check(one.output)


def test_a_file_type_that_no_recipe_writes(made, check, tmp_path):
    path = copy_of(made["plain"], tmp_path)

    def change(fields, arrays):
        return [MetadataField.u32(f.key, 1234) if f.key == "general.file_type" else f for f in fields], arrays

    rewritten(path, change)
    with pytest.raises(UnknownNameError, match=r"general\.file_type 1234") as caught:
        check(path)
    assert "--quant" in caught.value.hint
    found = check(path, recipe="f16")
    assert [key.key for key in found.keys] == ["general.file_type"]


@pytest.mark.parametrize("size", [3, 100, 2000])
def test_files_that_are_cut(made, check, tmp_path, size):
    path = copy_of(made["keys"], tmp_path)
    os.truncate(path, size)
    with pytest.raises(FormatError, match=r"copy\.gguf"):
        check(path)


# ------------------------------------------------------------------------------------------------------ command line


@pytest.fixture
def command(plugins, monkeypatch, capsys):
    monkeypatch.setattr(Plugins, "load", classmethod(lambda cls, **options: plugins))

    def run(*words):
        code = main(["verify", *map(str, words)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_exit_codes_and_what_is_printed(made, folder, command, tmp_path):
    code, out, err = command(made["receipt"], "--source", folder)
    assert (code, err) == (0, "")
    assert "5 of 5 equal" in out
    path = copy_of(made["receipt"], tmp_path)
    with open_gguf(path) as file:
        flip(path, file.tensors["blk.1.ffn_up.weight"].offset + 5)
    code, out, err = command(path, "--source", folder)
    assert (code, err) == (2, "")
    line = "differs  blk.1.ffn_up.weight: 36 x 36 BF16; 1 byte differs, first at byte 5, row 0, column 2"
    assert out.splitlines()[0] == line
    assert "sha256" in out
    assert "DIFFERENT in 2 places" in out
    code, out, _ = command(path, "--source", folder, "--json")
    told = json.loads(out)
    assert (code, told["equal"]) == (2, False)
    assert [t["name"] for t in told["tensors"] if t["status"] != "ok"] == ["blk.1.ffn_up.weight"]
    assert [p["what"] for p in told["problems"]] == ["sha256"]
    assert command(path)[0] == 3
    assert command(tmp_path / "none.gguf", "--source", folder)[0] == 3
    path.write_bytes(b"no GGUF file at all, and long enough")
    assert command(path, "--source", folder)[0] == 3
