"""From an object to functions in memory: the linker's relocations, what it refuses, and LLVM in its place."""

import ctypes
import platform
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from llvmlite import binding

from hf2q.simd import F32, LANES, compiler, inline, kernel, load, reads, store, writes
from hf2q.simd.elf import Unlinkable, link
from hf2q.simd.folder import DIGEST
from hf2q.simd.image import Code, packed, unpacked
from hf2q.simd.loader import Unloadable
from hf2q.simd.loader import load as load_code
from hf2q.simd.wrapper import CALL

linux_x86 = pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.machine() != "x86_64", reason="the linker is for Linux on x86-64"
)

# `entry` is called through ctypes; `call` has Python's form and gives its first argument back
TEXT = """
target triple = "{triple}"
@table = {table}
@text = private unnamed_addr constant [5 x i8] c"seven"
@PyExc_TypeError = external global i8*
declare i64 @strlen(i8*)
declare void @Py_IncRef(i8*)
define internal i64 @seven(i64 %x) {{ ret i64 7 }}
define internal i64 @eight(i64 %x) {{ ret i64 8 }}
define i64 @entry(i64 %which, i8* %string) {{
  %size = call i64 @strlen(i8* %string)
  %place = getelementptr [2 x i64 (i64)*], [2 x i64 (i64)*]* @table, i64 0, i64 %which
  %function = load i64 (i64)*, i64 (i64)** %place
  %number = call i64 %function(i64 %size)
  %error = load i8*, i8** @PyExc_TypeError
  %there = icmp ne i8* %error, null
  %one = zext i1 %there to i64
  %at = getelementptr [5 x i8], [5 x i8]* @text, i64 0, i64 %which
  %letter = load i8, i8* %at
  %code = zext i8 %letter to i64
  %a = mul i64 %number, 1000000
  %b = mul i64 %code, 1000
  %c = add i64 %a, %b
  %d = add i64 %c, %one
  %e = add i64 %d, %size
  ret i64 %e
}}
define i8* @call(i8* %self, i8** %values, i64 %count) {{
  %first = load i8*, i8** %values
  call void @Py_IncRef(i8* %first)
  ret i8* %first
}}
"""
TABLE = "internal {} [2 x i64 (i64)*] [i64 (i64)* @seven, i64 (i64)* @eight]"


def built(table="constant", reloc="pic", codemodel="small", text=TEXT):
    """The object of the text above."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    triple = binding.get_process_triple()
    machine = binding.Target.from_triple(triple).create_target_machine(reloc=reloc, codemodel=codemodel)
    module = binding.parse_assembly(text.format(triple=triple, table=TABLE.format(table)))
    return machine.emit_object(module)


def used(code):
    loaded = load_code(code, "a name")
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p)(loaded.entry)
    assert function(0, b"abc") == 7_000_000 + 1000 * ord("s") + 1 + 3
    assert function(1, b"abcdef") == 8_000_000 + 1000 * ord("e") + 1 + 6
    held = object()
    assert loaded.call(held) is held
    assert loaded.call.__name__ == "a name"


@linux_x86
def test_an_image_runs_wherever_it_lies():
    code = link(built(), "entry", "call")
    assert code.kind == "image"
    assert {"strlen", "Py_IncRef", "PyExc_TypeError"} == set(code.imports)
    assert len(code.bases) == 2
    for _ in range(2):
        used(unpacked(packed(code)))


@linux_x86
def test_code_can_be_run_and_not_written():
    loaded = load_code(link(built(), "entry", "call"), "a name")
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, _, rest = line.partition("-")
        last, access = rest.split()[:2]
        if int(first, 16) <= loaded.entry < int(last, 16):
            assert access == "r-xp"
            return
    pytest.fail("the code is nowhere")


@linux_x86
def test_absolute_addresses_are_filled_in():
    used(link(built(reloc="static", codemodel="large"), "entry", "call"))


def test_llvm_loads_what_the_linker_does_not():
    names = {"strlen": [], "Py_IncRef": [], "PyExc_TypeError": []}
    used(Code(kind="object", entry="entry", call="call", body=built(codemodel="jitdefault"), imports=names))


@linux_x86
@pytest.mark.parametrize(
    ("options", "told"),
    [({"table": "global"}, "written when the code runs"), ({"reloc": "static"}, "relocation 1[01]")],
)
def test_what_the_linker_does_not_know_is_refused(options, told):
    with pytest.raises(Unlinkable, match=told):
        link(built(**options), "entry", "call")


@linux_x86
def test_objects_that_are_none_are_refused():
    whole = built()
    with pytest.raises(Unlinkable, match="defines no elsewhere"):
        link(whole, "elsewhere", "call")
    arm = whole[:18] + struct.pack("<H", 183) + whole[20:]
    for wrong in (b"", b"\x7fELF", arm, b"MZ" + whole[2:]):
        with pytest.raises(Unlinkable):
            link(wrong, "entry", "call")
    for size in range(64, len(whole), 97):
        with pytest.raises(Unlinkable):
            link(whole[:size], "entry", "call")


def test_a_name_that_is_nowhere_is_an_error_and_no_crash():
    code = Code(kind="object", entry="entry", call="call", body=b"", imports={"no_such_function_anywhere": []})
    with pytest.raises(Unloadable, match="no_such_function_anywhere"):
        load_code(code, "a name")


@inline
def twice(x):
    return x + x


F = F32(LANES)


def double(x, out):
    for k in range(0, x.size, LANES):
        store(out, k, twice(load(F, x, k)))


ARGUMENTS = reads("float32", 1), writes("float32", 1)


def test_kernels_compile_to_an_object_where_there_is_no_linker(tmp_path, monkeypatch):
    def no_linker(data, entry, call):
        assert call == entry + CALL
        raise Unlinkable("none here")

    monkeypatch.setenv("HF2Q_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiler, "link", no_linker)
    x, out = np.arange(2 * LANES, dtype=np.float32), np.zeros(2 * LANES, np.float32)
    kernel(*ARGUMENTS)(double)(x, out)
    assert (out == 2 * x).all()
    (file,) = (tmp_path / "kernels").glob("*.code")
    assert unpacked(file.read_bytes()[DIGEST:]).kind == "object"
    out[:] = 0
    monkeypatch.setattr(compiler, "compile_kernel", None)
    kernel(*ARGUMENTS)(double)(x, out)
    assert (out == 2 * x).all()


@linux_x86
def test_kernels_compile_to_an_image_here():
    code = compiler.compile_kernel(double, ARGUMENTS)
    assert code.kind == "image"
    assert len(code.body) < 4096
