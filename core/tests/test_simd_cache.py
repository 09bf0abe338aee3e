"""Compiled kernels on disk: what makes a new entry, and what must never be loaded.

A small package with a kernel and a helper is written to a temporary folder and used from fresh interpreters.
"""

import functools
import importlib
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest

from hf2q.simd import LANES
from hf2q.simd.cache import KEPT_PER_KERNEL, SUFFIX, KernelCache
from hf2q.simd.digest import DIGEST, digest
from hf2q.simd.folder import DAY, cache_folder, prune, read, write
from hf2q.simd.host import Host
from hf2q.simd.image import Code, packed
from hf2q.simd.loader import load as load_code
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
    for damaged in (whole[:-7], whole[:50] + b"?" + whole[51:]):
        entry.write_bytes(damaged)
        output = run(tmp_path, cache)
        assert f"WARNING {entry} is damaged" in output
        assert "compiling kernel" in output
        assert "result 2.0" in output
        assert len(entry.read_bytes()) == len(whole)


@pytest.mark.parametrize("size", [0, 1, DIGEST - 1, DIGEST, DIGEST + 3])
def test_a_file_cut_short_is_damaged(tmp_path, caplog, size):
    file = tmp_path / "a.code"
    write(file, b"key", b"code")
    file.write_bytes(file.read_bytes()[:size])
    assert read(file, b"key") is None
    file.write_bytes(digest(b""))
    assert read(file, b"key") is None
    assert caplog.text.count("is damaged") == 2


def saved(monkeypatch, tmp_path, capture, content):
    """A cache whose file holds `content`, and what it said while it gave the kernel."""
    monkeypatch.setenv("HF2Q_CACHE_DIR", str(tmp_path))
    cache = KernelCache(write_package, ())
    key = repr(cache.key()).encode()
    write(cache._file(key), key, content)
    code = Code(kind="image", entry=0, call=0, body=bytes(8))
    monkeypatch.setattr(KernelCache, "_compiled", lambda self: code)
    monkeypatch.setattr("hf2q.simd.cache.load", lambda code, name: load_code(code, name) if code.imports else code)
    assert cache.loaded() == code
    assert read(cache._file(key), key) == packed(code)
    return capture.text


SOUND = Code(kind="image", entry=0, call=0, body=bytes(64))
changed = functools.partial(msgspec.structs.replace, SOUND)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"?" * 100,
        packed(changed(entry=64)),
        packed(changed(call=-1)),
        packed(changed(imports={"strlen": [57]})),
        packed(changed(bases=[(0, 64)])),
        packed(changed(kind="object")),
        packed(changed(imports={"no_such_function_anywhere": [0]})),
    ],
    ids=["empty", "noise", "entry", "call", "slot", "base", "numbers", "name"],
)
def test_what_is_no_kernel_is_written_anew(monkeypatch, tmp_path, caplog, content):
    assert "cannot be used and is written anew" in saved(monkeypatch, tmp_path, caplog, content)


def test_a_file_under_another_name_is_not_used(tmp_path, caplog):
    """Digests cover the key: copies, restored back-ups and renamed files are not mistaken for each other."""
    write(tmp_path / "a.code", b"key a", b"code a")
    (tmp_path / "a.code").replace(tmp_path / "b.code")
    assert read(tmp_path / "b.code", b"key a") == b"code a"
    assert not caplog.text
    assert read(tmp_path / "b.code", b"key b") is None
    assert "b.code is damaged and is written anew" in caplog.text


@pytest.mark.parametrize(("mode", "used"), [(0o600, True), (0o644, True), (0o620, False), (0o602, False)])
def test_what_others_can_write_is_not_used(tmp_path, caplog, mode, used):
    file = tmp_path / "a.code"
    write(file, b"key", b"code")
    file.chmod(mode)
    assert (read(file, b"key") == b"code") is used
    assert ("can be written by others" in caplog.text) is not used


@pytest.mark.parametrize(("owner", "used"), [(0, True), (1000, True), (1001, False)])
def test_what_others_wrote_is_not_used(tmp_path, monkeypatch, caplog, owner, used):
    file = tmp_path / "a.code"
    write(file, b"key", b"code")
    found = os.stat_result((0o100600, 1, 1, 1, owner, owner, *file.stat()[6:]))
    monkeypatch.setattr("hf2q.simd.folder.os.fstat", lambda number: found)
    monkeypatch.setattr("hf2q.simd.folder.os.geteuid", lambda: 1000)
    assert (read(file, b"key") == b"code") is used
    assert ("belongs to another user (1001)" in caplog.text) is not used


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
    assert KernelCache(write_package, ())._file(b"key") is None
    assert "is not kept on disk: Could not determine home directory." in caplog.text


def test_the_latest_files_of_a_kernel_are_kept(tmp_path):
    now = time.time()
    for k in range(KEPT_PER_KERNEL + 5):
        old = tmp_path / f"mine-{k:040x}{SUFFIX}"
        old.write_bytes(b"")
        os.utime(old, (now, now - 1000 * k))
    (tmp_path / f"mine.too-{0:040x}{SUFFIX}").write_bytes(b"")
    prune(tmp_path, "mine", KEPT_PER_KERNEL)
    left = sorted(file.name for file in tmp_path.iterdir())
    assert left == [f"mine-{k:040x}{SUFFIX}" for k in range(KEPT_PER_KERNEL)] + [f"mine.too-{0:040x}{SUFFIX}"]


def test_what_nobody_has_used_for_a_month_goes(tmp_path):
    now, month = time.time(), 30 * DAY
    ages = {"a.code": 1.01, "a.kernel": 1.01, "b.host": 1.01, "c.tmp": 1.01, "d.code": 0.99, "e.tmp": 0.1, "f.code": -1}
    for name, age in {**ages, "notes.txt": 9}.items():
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (now, now - age * month))
    (tmp_path / "folder.code").mkdir()
    os.utime(tmp_path / "folder.code", (0, 0))
    prune(tmp_path, "mine", 1)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["d.code", "e.tmp", "f.code", "folder.code", "notes.txt"]


def test_using_a_file_keeps_it(tmp_path):
    file = tmp_path / "a.code"
    write(file, b"key", b"code")
    long_ago, lately = time.time() - 29 * DAY, time.time() - DAY / 2
    for told, changes in ((long_ago, True), (lately, False)):
        os.utime(file, (told, told))
        assert read(file, b"key") == b"code"
        assert (file.stat().st_mtime > told + 60) is changes


def test_pruning_beside_others_that_prune_and_write_loses_nothing_in_use(tmp_path):
    def work(number):
        for turn in range(60):
            old = tmp_path / f"old-{number}-{turn}.code"
            old.write_bytes(b"")
            os.utime(old, (0, 0))
            write(tmp_path / "mine-1.code", b"key", b"code")
            prune(tmp_path, "mine", 1)
            assert read(tmp_path / "mine-1.code", b"key") == b"code"

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, number) for number in range(4)]:
            done.result()
    assert [file.name for file in tmp_path.iterdir()] == ["mine-1.code"]


@pytest.mark.parametrize(
    ("own", "xdg", "want"),
    [("/a", "/b", "/a/kernels"), ("", "/b", "/b/hf2q/kernels"), ("", "", "~/.cache/hf2q/kernels")],
)
def test_where_the_cache_is(monkeypatch, own, xdg, want):
    monkeypatch.setenv("HF2Q_CACHE_DIR", own)
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert str(cache_folder()) == os.path.expanduser(want)  # noqa: PTH111  (a string is what is compared)
