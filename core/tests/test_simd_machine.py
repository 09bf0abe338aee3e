"""Which path is chosen, what is refused, and what a missing numba says."""

import os
import subprocess
import sys

import pytest

from hf2q.errors import UsageError
from hf2q.simd.machine import AVX512, LANES, choose

AVX2 = frozenset({"avx2", "fma", "f16c"})


def run(code, **env):
    """Run `code` in a fresh interpreter; gives (exit status, output)."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "HF2Q_SIMD"))}
    done = subprocess.run([sys.executable, "-c", code], env=clean | env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("architecture", "host", "lanes"),
    [
        ("x86_64", AVX512 | AVX2, 16),
        ("AMD64", AVX512 | AVX2, 16),
        ("x86_64", (AVX512 - {"avx512bw"}) | AVX2, 8),  # Knights Landing: AVX-512 without 16-bit lanes
        ("x86_64", AVX2, 8),
        ("x86_64", frozenset(), 4),
        ("aarch64", frozenset({"neon"}), 4),
    ],
)
def test_the_widest_usable_path_is_chosen(architecture, host, lanes):
    machine = choose(None, architecture, host)
    assert machine.lanes == lanes
    assert machine.cpu is None
    assert choose("", architecture, host) == machine


def test_a_narrower_path_compiles_for_an_older_cpu():
    host = AVX512 | AVX2 | {"avx512vnni"}
    eight, four = choose("8", "x86_64", host), choose("4", "x86_64", host)
    assert (eight.lanes, eight.cpu) == (8, "x86-64-v3")
    assert (four.lanes, four.cpu) == (4, "x86-64")
    assert "avx512vnni" not in eight.features
    assert not four.features


def test_a_cpu_with_dot_products_of_eight_lanes():
    host = AVX2 | {"avxvnni"}
    assert choose(None, "x86_64", host) == choose("8", "x86_64", host, "HF2Q_CPU_ISA", "avxvnni")
    without = choose("8", "x86_64", host, "HF2Q_CPU_ISA", "avx2")
    assert (without.cpu, without.added, "avxvnni" in without.features) == ("x86-64-v3", "", False)
    wider = choose("8", "x86_64", AVX512 | host, "HF2Q_CPU_ISA", "avxvnni")
    assert (wider.lanes, wider.cpu, wider.added, "avxvnni" in wider.features) == (8, "x86-64-v3", "+avxvnni", True)
    with pytest.raises(UsageError, match="no AVX-VNNI"):
        choose("8", "x86_64", AVX512 | AVX2, "HF2Q_CPU_ISA", "avxvnni")


def test_forcing_the_natural_width_changes_nothing():
    assert choose("16", "x86_64", AVX512 | AVX2) == choose(None, "x86_64", AVX512 | AVX2)
    assert choose("4", "aarch64", frozenset({"neon"})) == choose(None, "aarch64", frozenset({"neon"}))


@pytest.mark.parametrize("forced", ["5", "32", "0", "-4", "eight", "08"])
def test_other_widths_are_refused(forced):
    with pytest.raises(UsageError, match="expected 16, 8 or 4"):
        choose(forced, "x86_64", AVX512 | AVX2)


@pytest.mark.parametrize(
    ("forced", "architecture", "host"),
    [("16", "x86_64", AVX2), ("8", "x86_64", frozenset()), ("8", "aarch64", frozenset({"neon"}))],
)
def test_wider_than_the_machine_is_refused(forced, architecture, host):
    with pytest.raises(UsageError, match="at most"):
        choose(forced, architecture, host)


def test_the_environment_variable_is_read():
    assert run("import hf2q.simd; print(hf2q.simd.LANES, hf2q.simd.WIDE)", HF2Q_SIMD_LANES="4") == (0, "4 8\n")
    status, output = run("import hf2q.simd", HF2Q_SIMD_LANES="7")
    assert status != 0
    assert "UsageError: HF2Q_SIMD_LANES is '7', expected 16, 8 or 4" in output


def test_a_cpu_chosen_behind_our_back_is_refused():
    status, output = run("import hf2q.simd", NUMBA_CPU_NAME="generic")
    assert status != 0
    assert "UsageError: NUMBA_CPU_NAME" in output


@pytest.mark.parametrize("missing", ["numba", "llvmlite"])
def test_without_numba_the_error_says_what_to_install(missing):
    status, output = run(f"import sys; sys.modules[{missing!r}] = None; import hf2q.simd")
    assert status != 0
    assert "hf2q.errors.LoadError" in output
    assert 'pip install "hf2q[simd]"' in output


def test_this_machine_has_a_width():
    assert LANES in (4, 8, 16)
