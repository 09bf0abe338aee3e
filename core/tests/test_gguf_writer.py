"""The GGUF writer: its files in the `gguf` package's reader, its order of calls, and what is left when it fails."""

import errno
import os
import re
import signal
import subprocess
import sys

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf2q.errors import ContractError, WriteError
from hf2q.formats.ggml_types import row_bytes
from hf2q.formats.gguf import GgufWriter, encode_header, open_gguf, plan_offsets
from hf2q.types import MetadataField, Plan, TensorPlan, ValueType

METADATA = (
    MetadataField.string("general.architecture", "toy"),
    MetadataField(key="x.u8", type=ValueType.UINT8, value=255),
    MetadataField(key="x.i8", type=ValueType.INT8, value=-128),
    MetadataField(key="x.u16", type=ValueType.UINT16, value=65535),
    MetadataField(key="x.i16", type=ValueType.INT16, value=-32768),
    MetadataField.u32("x.u32", 1 << 31),
    MetadataField.i32("x.i32", -1),
    MetadataField.f32("x.f32", 1e-5),
    MetadataField.boolean("x.bool", True),
    MetadataField.string("x.str", "grüße 🙂"),
    MetadataField(key="x.u64", type=ValueType.UINT64, value=1 << 63),
    MetadataField(key="x.i64", type=ValueType.INT64, value=-(1 << 63)),
    MetadataField(key="x.f64", type=ValueType.FLOAT64, value=0.1),
    MetadataField.array("y.str", ValueType.STRING, ["a", "", "ü"]),
    MetadataField.array("y.i32", ValueType.INT32, [1, -2]),
    MetadataField.array("y.bool", ValueType.BOOL, [True, False]),
    MetadataField.array("y.f32", ValueType.FLOAT32, [0.5]),
    MetadataField.array("y.none", ValueType.FLOAT32, []),
)
TENSORS = (
    ("token_embd.weight", (5, 256), "Q4_K"),
    ("blk.0.attn_norm.weight", (3,), "F32"),
    ("blk.0.empty.weight", (0, 32), "Q8_0"),
    ("blk.0.ffn_up_exps.weight", (2, 3, 32), "Q8_0"),
    ("blk.0.scalar", (), "F32"),
)


def make_plan(tensors=TENSORS, metadata=METADATA, alignment=32):
    sizes = [int(np.prod(shape[:-1])) * row_bytes(qtype, shape[-1] if shape else 1) for _, shape, qtype in tensors]
    return Plan(
        arch="toy",
        recipe="toy",
        via="bf16",
        metadata=metadata,
        tensors=tuple(
            TensorPlan(name=name, shape=shape, qtype=qtype, via=qtype, reason="", nbytes=size, offset=offset, inputs=())
            for (name, shape, qtype), size, offset in zip(tensors, sizes, plan_offsets(sizes, alignment), strict=True)
        ),
    )


def data_of(plan):
    rng = np.random.default_rng(3)
    return {tensor.name: rng.integers(1, 256, tensor.nbytes, np.uint8) for tensor in plan.tensors}


def left(folder):
    return sorted(path.name for path in folder.iterdir())


def write_all(path, plan, data):
    finish(GgufWriter(str(path), plan), data)


def finish(writer, data):
    for name, values in data.items():
        writer.write(name, values)
    writer.close()


def changed(plan, index, **fields):
    tensors = list(plan.tensors)
    tensors[index] = TensorPlan(
        **{name: getattr(tensors[index], name) for name in tensors[index].__struct_fields__} | fields
    )
    return Plan(arch="toy", recipe="toy", via="bf16", metadata=plan.metadata, tensors=tuple(tensors))


@pytest.mark.parametrize("alignment", [32, 8, 4096])
def test_our_reader_returns_what_was_written(tmp_path, alignment):
    metadata = METADATA if alignment == 32 else (*METADATA, MetadataField.u32("general.alignment", alignment))
    plan = make_plan(metadata=metadata, alignment=alignment)
    data = data_of(plan)
    write_all(tmp_path / "a.gguf", plan, data)
    assert left(tmp_path) == ["a.gguf"]
    with open_gguf(tmp_path / "a.gguf") as file:
        assert [file.field(key) for key in file.keys_in_order if key != "x.f32"] == [
            field for field in metadata if field.key != "x.f32"
        ]
        assert file.metadata["x.f32"] == np.float32(1e-5)
        assert file.alignment == alignment
        assert file.data_end == file.size
        for tensor in plan.tensors:
            found = file.tensors[tensor.name]
            assert (found.shape, found.qtype, found.nbytes) == (tensor.shape, tensor.qtype, tensor.nbytes)
            assert found.offset == file.data_offset + tensor.offset
            assert file.rows(tensor.name).tobytes() == data[tensor.name].tobytes()


def test_the_gguf_package_reads_what_was_written(tmp_path):
    plan = make_plan(tensors=tuple(t for t in TENSORS if 0 not in t[1]), metadata=METADATA[:-1])
    data = data_of(plan)
    write_all(tmp_path / "a.gguf", plan, data)
    peer = gguf.GGUFReader(str(tmp_path / "a.gguf"))
    for field in plan.metadata:
        found = peer.fields[field.key].contents()
        expected = list(field.value) if field.type is ValueType.ARRAY else field.value
        assert found == (np.float32(expected) if field.type is ValueType.FLOAT32 else expected), field.key
    assert [t.name for t in peer.tensors] == [t.name for t in plan.tensors]
    for found, tensor in zip(peer.tensors, plan.tensors, strict=True):
        assert found.tensor_type.name == tensor.qtype
        assert tuple(reversed(found.shape.tolist())) == tensor.shape
        assert np.asarray(found.data).tobytes() == data[tensor.name].tobytes()


def test_same_bytes_as_the_gguf_package(tmp_path):
    """Header, padding and data are byte for byte what the other writer makes of the same content."""
    rng = np.random.default_rng(4)
    arrays = {"a.weight": rng.standard_normal((3, 5), np.float32), "b.weight": rng.standard_normal(7, np.float32)}
    writer = gguf.GGUFWriter(str(tmp_path / "peer.gguf"), "toy")
    writer.add_uint32("toy.block_count", 3)
    writer.add_array("toy.words", ["x", "yy"])
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = (
        MetadataField.string("general.architecture", "toy"),
        MetadataField.u32("toy.block_count", 3),
        MetadataField.array("toy.words", ValueType.STRING, ["x", "yy"]),
    )
    plan = make_plan([(name, array.shape, "F32") for name, array in arrays.items()], metadata)
    write_all(tmp_path / "ours.gguf", plan, {name: array.view(np.uint8) for name, array in arrays.items()})
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "peer.gguf").read_bytes()


def test_pieces_of_any_size_make_the_same_file(tmp_path):
    plan = make_plan()
    data = data_of(plan)
    write_all(tmp_path / "whole.gguf", plan, data)
    writer = GgufWriter(str(tmp_path / "pieces.gguf"), plan)
    for name, values in data.items():
        for start in range(0, len(values), 7):
            writer.write(name, values[start : start + 7])
        writer.write(name, values[:0])
    writer.close()
    assert (tmp_path / "pieces.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


def test_a_row_matrix_is_written_as_it_lies(tmp_path):
    plan = make_plan([("w", (4, 32), "Q8_0")])
    values = np.arange(4 * 34, dtype=np.uint8).reshape(4, 34)
    write_all(tmp_path / "a.gguf", plan, {"w": values})
    with open_gguf(tmp_path / "a.gguf") as file:
        assert np.array_equal(file.rows("w"), values)


def test_the_name_appears_at_the_end_and_replaces_what_was_there(tmp_path):
    plan = make_plan()
    data = data_of(plan)
    (tmp_path / "a.gguf").write_text("old")
    writer = GgufWriter(str(tmp_path / "a.gguf"), plan)
    for name, values in data.items():
        writer.write(name, values)
        assert (tmp_path / "a.gguf").read_text() == "old"
    writer.close()
    writer.abort()
    with open_gguf(tmp_path / "a.gguf") as file:
        assert list(file.tensors) == list(data)


def test_an_output_that_is_a_link_stays_one(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "a.gguf").symlink_to(tmp_path / "far" / "real.gguf")
    plan = make_plan()
    write_all(tmp_path / "a.gguf", plan, data_of(plan))
    assert (tmp_path / "a.gguf").is_symlink()
    assert left(tmp_path / "far") == ["real.gguf"]


@pytest.mark.parametrize("calls", [
    pytest.param([("blk.0.attn_norm.weight", 12)], id="second first"),
    pytest.param([("token_embd.weight", 719), ("blk.0.attn_norm.weight", 12)], id="first incomplete"),
    pytest.param([("token_embd.weight", 721)], id="too much"),
    pytest.param([("token_embd.weight", 720), ("token_embd.weight", 1)], id="again"),
    pytest.param([("nothing", 1)], id="unknown"),
    pytest.param([("token_embd.weight", 720), ("blk.0.attn_norm.weight", 11), ("close", 0)], id="closed in between"),
    pytest.param([("close", 0)], id="closed at once"),
])  # fmt: skip
def test_wrong_order_and_wrong_totals(tmp_path, calls):
    writer = GgufWriter(str(tmp_path / "a.gguf"), make_plan())
    *good, (name, size) = calls
    for tensor, count in good:
        writer.write(tensor, np.ones(count, np.uint8))
    with pytest.raises(WriteError, match=r"a\.gguf"):
        writer.close() if name == "close" else writer.write(name, np.ones(size, np.uint8))
    assert left(tmp_path) == []
    with pytest.raises(WriteError, match="not being written any more"):
        writer.write("token_embd.weight", np.ones(1, np.uint8))
    with pytest.raises(WriteError, match="not being written any more"):
        writer.close()


@pytest.mark.parametrize("bad", [np.ones(720, np.int8), np.ones((2, 720), np.uint8).T, np.ones(180, np.float32)])
def test_only_contiguous_bytes_are_written(tmp_path, bad):
    writer = GgufWriter(str(tmp_path / "a.gguf"), make_plan())
    with pytest.raises(WriteError, match="expected contiguous uint8"):
        writer.write("token_embd.weight", bad)
    assert left(tmp_path) == []


def test_abort_leaves_nothing_and_may_be_repeated(tmp_path):
    writer = GgufWriter(str(tmp_path / "a.gguf"), make_plan())
    writer.write("token_embd.weight", np.ones(100, np.uint8))
    assert len(left(tmp_path)) == 1
    assert re.fullmatch(r"\.a\.gguf\.[0-9a-f]{8}\.tmp", left(tmp_path)[0])
    writer.abort()
    writer.abort()
    assert left(tmp_path) == []


def test_two_writers_of_one_file_leave_each_other_alone(tmp_path):
    first = GgufWriter(str(tmp_path / "a.gguf"), make_plan())
    mine = left(tmp_path)
    second = GgufWriter(str(tmp_path / "a.gguf"), make_plan())
    assert len(left(tmp_path)) == 2
    second.abort()
    assert left(tmp_path) == mine
    first.abort()


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path):
    script = f"""
import os, signal, sys
from pathlib import Path
from hf2q.formats.temporary import create_unfinished
descriptor, path = create_unfinished(Path({str(tmp_path / "a.gguf")!r}))
os.write(descriptor, b"half a file")
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    abandoned = left(tmp_path)
    assert len(abandoned) == 1
    writer = GgufWriter(str(tmp_path / "a.gguf"), make_plan())
    assert len(left(tmp_path)) == 1
    assert left(tmp_path) != abandoned
    writer.abort()
    assert left(tmp_path) == []


def test_targets_that_cannot_be_written(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    os.mkfifo(tmp_path / "pipe")
    for name, message in {
        "folder": "is a directory",
        "pipe": "not a regular file",
        "circle": "cannot be written",
        "none/a.gguf": "does not exist",
        "x" * 300: "cannot be written",
        "a\0b": "cannot be written",
    }.items():
        with pytest.raises(WriteError, match=message):
            GgufWriter(f"{tmp_path}/{name}", make_plan())
    assert left(tmp_path) == ["circle", "folder", "pipe"]


def test_a_name_as_long_as_the_file_system_allows(tmp_path):
    plan = make_plan()
    write_all(tmp_path / ("ü" * 127), plan, data_of(plan))
    assert left(tmp_path) == ["ü" * 127]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_failing_disk_leaves_nothing(tmp_path, monkeypatch, code, call):
    def fail(*_):
        raise OSError(code, os.strerror(code))

    plan = make_plan()
    writer = GgufWriter(str(tmp_path / "a.gguf"), plan)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(WriteError, match=rf"a\.gguf cannot be written: {os.strerror(code)}") as caught:
            finish(writer, data_of(plan))
    assert (caught.value.hint is not None) == (code == errno.ENOSPC)
    assert left(tmp_path) == []


def test_a_disk_that_is_too_small_is_noticed_first(tmp_path):
    plan = make_plan([("w", (1 << 31, 1 << 20), "F32")])
    with pytest.raises(WriteError, match=r"a\.gguf needs 9007[0-9]{12} bytes, but its disk has only [0-9]+ free"):
        GgufWriter(str(tmp_path / "a.gguf"), plan)
    assert left(tmp_path) == []


def test_a_limit_of_the_system_in_the_middle(tmp_path):
    """The kernel's own refusal, in another process because such a limit cannot be taken back."""
    code = (
        "import resource, sys\n"
        "import numpy as np\n"
        "from hf2q.errors import WriteError\n"
        "from hf2q.formats.gguf import GgufWriter, plan_offsets\n"
        "from hf2q.types import Plan, TensorPlan\n"
        "size = 1 << 20\n"
        "tensor = TensorPlan(name='w', shape=(size // 4,), qtype='F32', via='F32', reason='', nbytes=size, offset=0,"
        " inputs=())\n"
        "plan = Plan(arch='toy', recipe='f32', via='f32', metadata=(), tensors=(tensor,))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "writer = GgufWriter(sys.argv[1], plan)\n"
        "try:\n"
        "    writer.write('w', np.ones(size, np.uint8))\n"
        "except WriteError as error:\n"
        "    print(error.message)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.gguf")], capture_output=True, text=True, check=False
    )
    assert "a.gguf cannot be written: File too large" in done.stdout, done.stderr
    assert left(tmp_path) == []


@pytest.mark.parametrize("field", [
    MetadataField.u32("k", -1),
    MetadataField.u32("k", 1 << 32),
    MetadataField.u32("k", True),
    MetadataField.u32("k", 1.0),
    MetadataField.i32("k", 1 << 31),
    MetadataField(key="k", type=ValueType.UINT8, value=256),
    MetadataField(key="k", type=ValueType.UINT64, value=1 << 64),
    MetadataField(key="k", type=ValueType.FLOAT32, value=1e39),
    MetadataField(key="k", type=ValueType.FLOAT32, value="1"),
    MetadataField(key="k", type=ValueType.BOOL, value=1),
    MetadataField(key="k", type=ValueType.STRING, value=b"x"),
    MetadataField.string("k", "\ud800"),
    MetadataField.string("", "x"),
    MetadataField.string("k" * 65536, "x"),
    MetadataField(key="k", type=ValueType.UINT8, value=1, element=ValueType.UINT8),
    MetadataField(key="k", type=ValueType.ARRAY, value=(1,)),
    MetadataField(key="k", type=ValueType.ARRAY, value="ab", element=ValueType.STRING),
    MetadataField(key="k", type=ValueType.ARRAY, value=5, element=ValueType.UINT8),
    MetadataField.array("k", ValueType.ARRAY, [[1]]),
    MetadataField.array("k", ValueType.INT32, [1, 1 << 31]),
    MetadataField.array("k", ValueType.STRING, ["a", 1]),
    MetadataField.u32("general.alignment", 48),
    MetadataField.u32("general.alignment", 0),
    MetadataField.i32("general.alignment", 64),
])  # fmt: skip
def test_values_outside_their_type(tmp_path, field):
    with pytest.raises(ContractError):
        GgufWriter(str(tmp_path / "a.gguf"), make_plan(metadata=(METADATA[0], field)))
    assert left(tmp_path) == []


def test_plans_that_no_file_can_hold():
    plan = make_plan()
    for broken, message in (
        (changed(plan, 1, name="token_embd.weight"), "twice in the plan"),
        (changed(plan, 1, name=""), "cannot name a tensor"),
        (changed(plan, 1, name="ü" * 32), "cannot name a tensor"),
        (changed(plan, 1, qtype="Q9_Z"), "'Q9_Z' is unknown"),
        (changed(plan, 0, shape=(5, 255)), "not a whole number"),
        (changed(plan, 1, shape=(1, 1, 1, 1, 3)), "at most 4 sizes"),
        (changed(plan, 1, shape=(-3,)), "at most 4 sizes"),
        (changed(plan, 1, nbytes=13), "planned with 13 bytes"),
        (changed(plan, 1, offset=0), "planned at offset 0, expected 736"),
    ):
        with pytest.raises(ContractError, match=message):
            encode_header(broken.metadata, broken.tensors)
    with pytest.raises(ContractError, match=r"'x\.u8' occurs twice"):
        encode_header((*METADATA, METADATA[1]), ())


@given(st.lists(st.integers(0, 10_000), max_size=20), st.sampled_from([8, 32, 4096]))
def test_offsets_are_aligned_and_tight(sizes, alignment):
    offsets = plan_offsets(sizes, alignment)
    assert len(offsets) == len(sizes)
    position = 0
    for size, offset in zip(sizes, offsets, strict=True):
        assert offset % alignment == 0
        assert position <= offset < position + alignment
        position = offset + size
