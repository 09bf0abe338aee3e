"""GGUF files made to do harm: every one is refused with an error that says where, and costs next to nothing."""

import contextlib
import os
import struct
import tracemalloc

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hf2q.errors import FormatError, Hf2qError, SourceError
from hf2q.formats.gguf import check_blocks, describe, layout, open_gguf

U8, I8, U32, I32, F32, BOOL, STR, ARR, U64 = 0, 1, 4, 5, 6, 7, 8, 9, 10


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name, kind, raw):
    return text(name) + struct.pack("<i", kind) + raw


def array(name, element, length, raw=b""):
    return key(name, ARR, struct.pack("<iQ", element, length) + raw)


def tensor(name, sizes, kind=0, offset=0, n_dims=None):
    count = len(sizes) if n_dims is None else n_dims
    return text(name) + struct.pack(f"<I{len(sizes)}qiQ", count, *sizes, kind, offset)


ARCH = key("general.architecture", STR, text("toy"))


def build(keys=(ARCH,), tensors=(), *, data=b"", version=3, n_tensors=None, n_keys=None, alignment=32, magic=b"GGUF"):
    head = magic + struct.pack(
        "<Iqq", version, len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys
    )
    head += b"".join(keys) + b"".join(tensors)
    return head.ljust(-(-len(head) // alignment) * alignment, b"\0") + data


@pytest.fixture
def attempt(tmp_path):
    """Opens bytes as a file, looks at everything in it, and returns the summary."""
    path = tmp_path / "hostile.gguf"

    def look(raw):
        path.write_bytes(raw)
        with open_gguf(path) as file:
            found = describe(file)
            for name in file.keys_in_order:
                file.field(name)
            for name in file.tensors:
                file.rows(name).sum()
            check_blocks(file)
            return found

    return look


def good():
    keys = (
        ARCH,
        key("toy.block_count", U32, struct.pack("<I", 1)),
        key("toy.flag", BOOL, b"\1"),
        key("toy.scale", F32, struct.pack("<f", 0.5)),
        array("tokenizer.ggml.tokens", STR, 3, text("a") + text("") + text("ü")),
        array("toy.sizes", I32, 2, struct.pack("<2i", 3, -4)),
        array("toy.flags", BOOL, 2, b"\0\1"),
    )
    tensors = (tensor("token_embd.weight", [32, 2], 8, 0), tensor("blk.0.norm.weight", [3], 0, 96))
    return build(keys, tensors, data=bytes(range(68)) + bytes(28) + b"\1" * 12 + bytes(20))


def test_the_good_file_is_read(attempt):
    found = attempt(good())
    assert [entry["name"] for entry in found["tensors"]] == ["token_embd.weight", "blk.0.norm.weight"]
    assert found["trailing_bytes"] == 0


def test_version_2_is_read(attempt):
    raw = bytearray(good())
    raw[4] = 2
    assert attempt(bytes(raw))["version"] == 2


def test_a_cut_at_any_byte_is_noticed(attempt):
    raw = good()
    for stop in range(len(raw)):
        with pytest.raises(FormatError, match=r"hostile\.gguf"):
            attempt(raw[:stop])


def test_a_cut_at_any_byte_of_a_file_without_tensors(attempt):
    raw = build((ARCH, array("toy.words", STR, 2, text("ab") + text("c"))), alignment=1)
    with pytest.raises(Hf2qError, match=r"block_count"):  # the whole file gets as far as the last check
        attempt(raw)
    for stop in range(len(raw)):
        with pytest.raises(FormatError, match=r"hostile\.gguf"):
            attempt(raw[:stop])


HUGE = (1 << 63, (1 << 64) - 1, 1 << 62, 1 << 32, 1 << 28)
BIG_COUNTS = ((1 << 63) - 1, -1, -(1 << 63), 1 << 40, 1000)

CASES = {
    "no magic": (build(magic=b"GGML"), r"begins with b'GGML', expected b'GGUF'"),
    "version 1": (build(version=1), "version 1 is not supported"),
    "version 0": (build(version=0), "big-endian"),
    "version 4": (build(version=4), "version 4 is not supported"),
    "big-endian": (build(version=3 << 24), "big-endian"),
    "2 tensors too many": (build(n_tensors=2), "the name of tensor 0 is ''"),
    "2 keys too many": (build(n_keys=3), "key 1 is empty"),
    "empty key": (build((key("", U8, b"\0"),)), "key 0 is empty"),
    "key twice": (build((ARCH, ARCH)), "'general.architecture' occurs twice"),
    "key not UTF-8": (build((key(b"a\xff", U8, b"\0"),)), "byte 33: key 0 is not UTF-8"),
    "long key": (build((key("k" * 65536, U8, b"\0"),)), "at most 65535"),
    "value not UTF-8": (build((key("k", STR, text(b"\xc3\x28")),)), "the value of 'k' is not UTF-8"),
    "element not UTF-8": (
        build((ARCH, array("k", STR, 2, text("a") + text(b"\xff")))),
        "element 1 of 'k' is not UTF-8",
    ),
    "type 13": (build((key("k", 13, b""),)), "the type of key 'k' is 13"),
    "type -1": (build((key("k", -1, b""),)), "the type of key 'k' is -1"),
    "element type 13": (build((array("k", 13, 1),)), "the element type of 'k' is 13"),
    "array of arrays": (build((array("k", ARR, 1, struct.pack("<iQ", U8, 0)),)), "array of arrays"),
    "bool 2": (build((key("k", BOOL, b"\2"),)), "truth value of 'k' is 2"),
    "bool 255 in array": (build((array("k", BOOL, 3, b"\0\1\xff"),)), "byte 51: a truth value of 'k' is 255"),
    "string beyond the end": (build((array("k", STR, 2, text("a") + struct.pack("<Q", 5)),), alignment=1), "element 1"),
    "string length beyond the end": (build((array("k", STR, 2, text("123456789")),), alignment=1), "element 1 of 'k'"),
    "arch absent": (build((key("toy.block_count", U32, bytes(4)),)), "general.architecture is absent"),
    "arch is a number": (build((key("general.architecture", U32, bytes(4)),)), "general.architecture is 0"),
    "arch is empty": (build((key("general.architecture", STR, text("")),)), "general.architecture is ''"),
    "alignment is u64": (build((ARCH, key("general.alignment", U64, struct.pack("<Q", 32)))), "expected UINT32"),
    "alignment is an array": (build((ARCH, array("general.alignment", U32, 1, bytes(4)))), "is of type ARRAY"),
    "5 dimensions": (build(tensors=(tensor("t", [1] * 5),)), "has 5 dimensions, expected at most 4"),
    "2^32-1 dimensions": (build(tensors=(tensor("t", [1], n_dims=(1 << 32) - 1),)), "expected at most 4"),
    "negative size": (build(tensors=(tensor("t", [-1]),)), "expected none below 0"),
    "wrapped sizes": (build(tensors=(tensor("t", [1 << 32, 1 << 32]),)), r"beyond 2\^63"),
    "wrapped to nothing": (build(tensors=(tensor("t", [1 << 62, 4, 0]),)), r"beyond 2\^63"),
    "size beyond the file": (build(tensors=(tensor("t", [1 << 61]),)), r"ends at byte 9223372036854775936"),
    "quantized beyond the file": (build(tensors=(tensor("t", [(1 << 63) - 256], 12),)), "ends at byte"),
    "half a block": (build(tensors=(tensor("t", [100], 12),)), "not a whole number of Q4_K blocks"),
    "scalar of blocks": (build(tensors=(tensor("t", [], 12),)), "not a whole number of Q4_K blocks"),
    "tensor type 43": (build(tensors=(tensor("t", [1], 43),)), "tensor type 43 is unknown"),
    "tensor type -1": (build(tensors=(tensor("t", [1], -1),)), "tensor type -1 is unknown"),
    "tensor type removed": (build(tensors=(tensor("t", [1], 31),)), "Q4_0_4_4"),
    "tensor name empty": (build(tensors=(tensor("", [1]),)), "name of tensor 0 is ''"),
    "tensor name with zero": (build(tensors=(tensor("a\0b", [1]),)), "without zero bytes"),
    "tensor name of 64": (build(tensors=(tensor("x" * 64, [1]),)), "has 64 bytes, expected at most 63"),
    "tensor name not UTF-8": (build(tensors=(tensor(b"\xff", [1]),)), "name of tensor 0 is not UTF-8"),
    "tensor twice": (build(tensors=(tensor("t", [1]), tensor("t", [1], 0, 32)), data=bytes(64)), "'t' occurs twice"),
    "overlap": (build(tensors=(tensor("a", [16]), tensor("b", [1], 0, 32)), data=bytes(128)), "'b' .* overlaps"),
    "same place": (build(tensors=(tensor("a", [1]), tensor("b", [1], 0, 0)), data=bytes(64)), "'b' .* overlaps"),
    "gap": (build(tensors=(tensor("a", [1]), tensor("b", [1], 0, 64)), data=bytes(96)), "'b' .* a gap before it"),
    "gap at the start": (build(tensors=(tensor("a", [1], 0, 32),), data=bytes(64)), "'a' .* a gap before it"),
    "misaligned": (build(tensors=(tensor("a", [1]), tensor("b", [1], 0, 4)), data=bytes(64)), "not a multiple of the"),
    "offset 2^64-1": (build(tensors=(tensor("a", [1], 0, (1 << 64) - 1),), data=bytes(64)), "not a multiple of the"),
    "offset 2^64-32": (build(tensors=(tensor("a", [1], 0, (1 << 64) - 32),), data=bytes(64)), "a gap before it"),
    "data missing": (build(tensors=(tensor("a", [8]),), data=bytes(31)), "cut short"),
    "padding missing": (build(tensors=(tensor("a", [1]),), data=bytes(31)), "padding after the last tensor"),
    "blocks missing": (build((ARCH, key("toy.block_count", U32, b"\xff" * 4))), "block 0 has no tensors"),
    "negative blocks": (build((ARCH, key("toy.block_count", I32, b"\xff" * 4))), "is -1, expected a number"),
    "blocks as text": (build((ARCH, key("toy.block_count", STR, text("1")))), "is of type STRING, expected a number"),
    "more blocks than said": (
        build((ARCH, key("toy.block_count", U32, bytes(4))), (tensor("blk.0.x", [1]),), data=bytes(32)),
        "tensors of block 0",
    ),
    **{f"{n} tensors": (build(n_tensors=n), f"number of tensors is {n}") for n in BIG_COUNTS},
    **{f"{n} keys": (build(n_keys=n), f"number of keys is {n}") for n in BIG_COUNTS},
    **{f"key of {n}": (build((struct.pack("<Q", n) + b"k",)), "key 0") for n in HUGE},
    **{f"string of {n}": (build((key("k", STR, struct.pack("<Q", n)),)), "the value of 'k'") for n in HUGE},
    **{f"{n} strings": (build((array("k", STR, n, text("a")),)), f"of {n} elements") for n in HUGE},
    **{f"{n} bytes": (build((array("k", U8, n, b"a"),)), f"of {n} elements") for n in HUGE},
    **{f"{n} integers": (build((array("k", U64, n, b"a" * 8),)), f"of {n} elements") for n in HUGE},
    **{f"element of {n}": (build((array("k", STR, 1, struct.pack("<Q", n)),)), "element 0 of 'k'") for n in HUGE},
    **{f"name of {n}": (build(tensors=(struct.pack("<Q", n) + b"t" * 30,)), "name of tensor 0") for n in HUGE},
    **{
        f"alignment {n}": (build((ARCH, key("general.alignment", U32, struct.pack("<I", n)))), f"{n}, expected a power")
        for n in (0, 1, 3, 4, 31, 48, 1 << 21, 1 << 31, (1 << 32) - 1)
    },
}


@pytest.mark.parametrize(("raw", "message"), CASES.values(), ids=CASES)
def test_refused(attempt, raw, message):
    tracemalloc.start()
    try:
        with pytest.raises(Hf2qError, match=message) as caught:
            attempt(raw)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert "hostile.gguf" in caught.value.message
    assert len(caught.value.message) < 1000


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="not a regular file"):
        open_gguf(tmp_path / "pipe")


def test_a_header_beyond_the_ceiling(tmp_path, monkeypatch):
    monkeypatch.setattr("hf2q.formats.gguf.cursor.MAX_HEADER_BYTES", 100)
    path = tmp_path / "long.gguf"
    path.write_bytes(build((array("k", U8, 80, bytes(80)),)))
    with pytest.raises(FormatError, match="larger than 100 bytes"):
        open_gguf(path)
    assert layout.MAX_HEADER_BYTES == 1 << 28


def test_empty_tensors_and_tails_are_fine(attempt):
    keys = (ARCH, key("toy.block_count", U32, bytes(4)))
    tensors = (tensor("a", [32, 0], 8), tensor("b", [0], 0, 0), tensor("c", [], 0, 0), tensor("d", [1, 2], 0, 32))
    found = attempt(build(keys, tensors, data=bytes(64) + b"tail"))
    assert [entry["shape"] for entry in found["tensors"]] == [[0, 32], [0], [], [2, 1]]
    assert [entry["nbytes"] for entry in found["tensors"]] == [0, 0, 4, 8]
    assert found["trailing_bytes"] == 4


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(good()) * 8 - 1)), min_size=1, max_size=4))
@example([(64,)])
def test_flipped_bits_never_do_anything_but_raise_our_errors(attempt, flips):
    raw = bytearray(good())
    for (bit,) in flips:
        raw[bit // 8] ^= 1 << (bit % 8)
    with contextlib.suppress(Hf2qError):
        attempt(bytes(raw))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(0, len(good()) - 8), st.sampled_from([2, 4, 8]), st.integers(0, (1 << 64) - 1))
def test_overwritten_numbers_never_do_anything_but_raise_our_errors(attempt, at, width, value):
    raw = bytearray(good())
    raw[at : at + width] = struct.pack("<Q", value)[-width:]
    with contextlib.suppress(Hf2qError):
        attempt(bytes(raw))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=300))
def test_noise_after_the_magic(attempt, noise):
    with pytest.raises(Hf2qError):
        attempt(b"GGUF\3\0\0\0" + noise)
