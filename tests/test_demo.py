"""The README's first command."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("litestar")
pytest.importorskip("uvicorn")

ROOT = Path(__file__).parents[1]


def test_the_demo_answers_right(tmp_path):
    """As ``make demo`` runs it, on a copy of what it needs: it writes beside its own folder."""
    (tmp_path / "tests" / "data").mkdir(parents=True)
    (tmp_path / "tests" / "data" / "qwen3_5").symlink_to(ROOT / "tests" / "data" / "qwen3_5")
    demo = tmp_path / ".ci" / "demo.py"
    demo.parent.mkdir()
    shutil.copy(ROOT / ".ci" / "demo.py", demo)
    done = subprocess.run([sys.executable, str(demo)], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Right. The whole way worked" in done.stdout
