"""Docs that can be checked are: generated pages are current, links lead somewhere, code blocks run as printed."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hf2q import errors, hookspecs

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("plugins/*/README.md")]
)
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language):
    for page in PAGES:
        for number, (name, rest, text) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), 1):
            if name == language and "no-run" not in rest and "docs" in page.relative_to(ROOT).parts:
                yield pytest.param(text, id=f"{page.relative_to(ROOT)}:{number}")


def shell_pages():
    for page in PAGES:
        found = BLOCK.findall(page.read_text(encoding="utf-8"))
        script = "\n".join(t for n, rest, t in found if n == "sh" and "no-run" not in rest)
        if script and "docs" in page.relative_to(ROOT).parts:
            yield pytest.param(script, id=str(page.relative_to(ROOT)))


def test_generated_pages_are_current():
    check = subprocess.run(
        [sys.executable, ".ci/reference.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("text", list(blocks("python")))
def test_python_blocks_run(text, tmp_path):
    ast.parse(text)
    run = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("script", list(shell_pages()))
def test_shell_blocks_run_as_printed(script, tmp_path):
    (tmp_path / "tests").mkdir()
    shutil.copytree(ROOT / "tests" / "data" / "qwen3_5", tmp_path / "tests" / "data" / "qwen3_5")
    shutil.copy(ROOT / "tests" / "data" / "qwen3_5.imatrix", tmp_path / "tests" / "data")
    shutil.copy(ROOT / "tests" / "data" / "eval.txt", tmp_path / "tests" / "data")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run = subprocess.run(
        ["sh", "-eu", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_hook_and_error_is_documented():
    hooks = (ROOT / "docs/reference/hooks.md").read_text(encoding="utf-8")
    for name in (name for name in vars(hookspecs) if name.startswith("hf2q_")):
        assert f"`{name}(" in hooks
    page = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.Hf2qError):
            assert f"`{name}`" in page


def test_every_setting_is_documented():
    page = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    sources = [*ROOT.glob("*/src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]
    used = set().union(*(re.findall(r"\bHF2Q_[A-Z_]+[A-Z]\b", path.read_text(encoding="utf-8")) for path in sources))
    # a constant, and messages between processes of ours
    used -= {"HF2Q_PLUGIN_API", "HF2Q_CHECK_REPORT", "HF2Q_SERVE_SOCKET"}
    assert used <= set(re.findall(r"HF2Q_[A-Z_]+", page)), "settings that the reference page lacks"


def test_the_readme_shows_both_commands_on_its_first_screen():
    top = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40]
    assert any(line.startswith("make demo") for line in top)
    assert any(line.startswith("make test") for line in top)
