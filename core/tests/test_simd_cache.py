"""Compiled kernels on disk: what makes a new entry, and what must never be loaded.

A small package with a kernel and a helper is written to a temporary folder and used from fresh interpreters.
"""

import hashlib
import importlib
import os
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from hf2q.simd import LANES
from hf2q.simd.cache import KEPT_PER_KERNEL, SUFFIX, KernelCache
from hf2q.simd.folder import cache_folder
from hf2q.simd.host import Host
from hf2q.simd.image import packed, unpacked
from hf2q.simd.machine import MACHINE
from hf2q.simd.sources import package_digest, source_digest

HELPER = """
from hf2q.simd import inline

@inline
def grow(v):
    return v * {factor}
"""
KERNELS = """
from {package}.helper import grow
from hf2q.simd import F32, LANES, kernel, load, reads, store, writes

F = F32(LANES)

@kernel(reads("float32", 1), writes("float32", 1))
def run(x, out):
    for k in range(0, x.size, LANES):
        store(out, k, grow(load(F, x, k)))
"""
SCRIPT = """
import logging, sys, numpy as np
logging.basicConfig(level=logging.DEBUG, format="%(levelname)s %(message)s")
logging.getLogger("numba").setLevel(logging.WARNING)
from probe.kernels import run
out = np.zeros(16, np.float32)
run(np.ones(16, np.float32), out)
print("result", *set(out.tolist()))
print("numba" if "numba" in sys.modules or "llvmlite" in sys.modules else "neither")
"""


def write_package(folder, package="probe", helper_factor=2):
    place = folder / package
    place.mkdir(exist_ok=True)
    (place / "__init__.py").write_text("")
    (place / "helper.py").write_text(HELPER.format(factor=helper_factor))
    (place / "kernels.py").write_text(KERNELS.format(package=package))
    return place


def start(folder, cache, **env):
    settings = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "HF2Q_CACHE_DIR": str(cache)}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT], env=settings | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process):
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


def run(folder, cache, **env):
    return finish(start(folder, cache, **env))


def entries(cache):
    return sorted((cache / "kernels").glob(f"*{SUFFIX}"))


def test_a_kernel_is_compiled_once_and_an_edit_of_a_helper_compiles_it_anew(tmp_path):
    write_package(tmp_path)
    cache = tmp_path / "cache"
    first = run(tmp_path, cache)
    assert first.count(f"INFO compiling kernel probe.kernels.run for {LANES} lanes") == 1
    assert "DEBUG compiled kernel probe.kernels.run in" in first
    assert "result 2.0" in first
    assert len(entries(cache)) == 1
    again = run(tmp_path, cache)
    assert "compiling" not in again
    assert "result 2.0" in again
    assert "neither" in again, "a kernel on the disk needs no numba"
    write_package(tmp_path, helper_factor=3)
    edited = run(tmp_path, cache)
    assert "compiling kernel" in edited
    assert "result 3.0" in edited
    assert len(entries(cache)) == 2


@pytest.mark.skipif(LANES == 4, reason="this machine, or HF2Q_SIMD_LANES, has no narrower path")
def test_forced_widths_keep_separate_entries(tmp_path):
    write_package(tmp_path)
    cache = tmp_path / "cache"
    run(tmp_path, cache)
    narrow = run(tmp_path, cache, HF2Q_SIMD_LANES="4")
    assert "compiling kernel probe.kernels.run for 4 lanes" in narrow
    assert len(entries(cache)) == 2
    assert "compiling" not in run(tmp_path, cache, HF2Q_SIMD_LANES="4")
    assert "compiling" not in run(tmp_path, cache)


def test_a_damaged_entry_is_not_used(tmp_path):
    write_package(tmp_path)
    cache = tmp_path / "cache"
    run(tmp_path, cache)
    (entry,) = entries(cache)
    whole = entry.read_bytes()
    code = unpacked(whole)
    unknown = msgspec.structs.replace(code, imports={"no_such_function_anywhere": [0]})
    outside = msgspec.structs.replace(code, entry=len(code.body) + 5)
    other = msgspec.structs.replace(unknown, kind="object", entry="run", call="run.call")
    empty = hashlib.sha256(b"").digest()
    sound = map(packed, (unknown, outside, other))  # but not to be used
    for damaged in (whole[:-7], whole[:20], empty, whole[:50] + b"?" + whole[51:], *sound):
        entry.write_bytes(damaged)
        output = run(tmp_path, cache)
        assert f"WARNING {entry} " in output
        assert "compiling kernel" in output
        assert "result 2.0" in output
        assert len(entry.read_bytes()) == len(whole)


def test_processes_that_compile_at_once_do_not_disturb_each_other(tmp_path):
    write_package(tmp_path)
    cache = tmp_path / "cache"
    widths = ["", "4"] if LANES > 4 else [""]
    started = [start(tmp_path, cache, HF2Q_SIMD_LANES=width) for width in widths * 2]
    assert all("result 2.0" in finish(process) for process in started)
    assert len(entries(cache)) == len(widths)
    assert not list((cache / "kernels").glob("*.tmp"))
    for width in widths:
        output = run(tmp_path, cache, HF2Q_SIMD_LANES=width)
        assert "compiling" not in output
        assert "result 2.0" in output


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path):
    write_package(tmp_path)
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    output = run(tmp_path, blocked)
    assert "result 2.0" in output
    assert "WARNING probe.kernels.run is not kept on disk" in output


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Imports a kernel of a package in tmp_path into this process."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(package):
        return importlib.import_module(f"{package}.kernels").run

    yield load
    for name in [name for name in sys.modules if name.startswith("probe_")]:
        del sys.modules[name]


def test_the_key_covers_signature_cpu_lanes_and_sources(tmp_path, imported, monkeypatch):
    place = write_package(tmp_path, "probe_key")
    kernel = imported("probe_key")
    keys = {KernelCache(kernel.py_func, kernel._arguments).key()}
    ((name, arguments, machine, *_, sources),) = keys
    assert name == "probe_key.kernels.run"
    assert arguments == kernel._arguments
    assert LANES in machine
    assert sources == source_digest(kernel.py_func)

    def changed():
        keys.add(KernelCache(kernel.py_func, kernel._arguments).key())
        return len(keys)

    assert changed() == 1
    keys.add(KernelCache(kernel.py_func, kernel._arguments[:1]).key())
    assert len(keys) == 2
    (place / "helper.py").write_text(HELPER.format(factor=5))
    assert changed() == 2, "what is in memory was read before"
    package_digest.cache_clear()
    assert changed() == 3
    monkeypatch.setattr("hf2q.simd.cache.host", lambda: Host(cpu="another", features=("fast",)))
    assert changed() == (4 if MACHINE.cpu is None else 3)
    monkeypatch.setattr("hf2q.simd.cache.versions", lambda: ("0.1",))
    assert changed() == (5 if MACHINE.cpu is None else 4)


def test_the_digest_follows_functions_into_other_packages(tmp_path, imported):
    other = write_package(tmp_path, "probe_other")
    mine = write_package(tmp_path, "probe_mine")
    (mine / "kernels.py").write_text(KERNELS.format(package="probe_other"))
    function = imported("probe_mine").py_func
    before = source_digest(function)
    (tmp_path / "unrelated.py").write_text("x = 1")
    assert source_digest(function) == before
    (other / "helper.py").write_text(HELPER.format(factor=7))
    package_digest.cache_clear()
    after = source_digest(function)
    assert after != before
    (mine / "new.py").write_text("")
    package_digest.cache_clear()
    assert source_digest(function) != after


def test_code_that_is_in_no_file_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("HF2Q_CACHE_DIR", str(tmp_path))
    space = {"__name__": "prompt"}
    exec(HELPER.format(factor=4), space)
    exec(KERNELS.format(package="prompt").replace("from prompt.helper import grow", ""), space)
    assert source_digest(space["run"].py_func) is None
    out = np.zeros(16, np.float32)
    space["run"](np.ones(16, np.float32), out)
    assert (out == 4).all()
    assert not entries(tmp_path)


def test_a_user_without_a_home_compiles_every_time(tmp_path, monkeypatch, caplog):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("HF2Q_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("hf2q.simd.folder.Path.home", homeless)
    assert KernelCache(write_package, ())._file() is None
    assert "is not kept on disk: Could not determine home directory." in caplog.text


def test_old_entries_are_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("HF2Q_CACHE_DIR", str(tmp_path))
    folder = tmp_path / "kernels"
    folder.mkdir()
    cache = KernelCache(write_package, ())
    for k in range(KEPT_PER_KERNEL + 5):
        old = folder / f"{cache.stem}-{k:040x}{SUFFIX}"
        old.write_bytes(b"")
        os.utime(old, (k, k))
    other = folder / f"another-{0:040x}{SUFFIX}"
    other.write_bytes(b"")
    cache.prune()
    kept = [file for file in entries(tmp_path) if file != other]
    assert len(kept) == KEPT_PER_KERNEL
    assert min(file.stat().st_mtime for file in kept) == 5
    assert other.exists()


@pytest.mark.parametrize(
    ("own", "xdg", "want"),
    [("/a", "/b", "/a/kernels"), ("", "/b", "/b/hf2q/kernels"), ("", "", "~/.cache/hf2q/kernels")],
)
def test_where_the_cache_is(monkeypatch, own, xdg, want):
    monkeypatch.setenv("HF2Q_CACHE_DIR", own)
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert str(cache_folder()) == os.path.expanduser(want)  # noqa: PTH111  (a string is what is compared)
