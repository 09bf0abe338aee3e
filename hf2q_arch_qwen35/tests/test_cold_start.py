"""What a first token takes in a process of its own, once kernels are compiled: no numba, and nothing that serves."""

import json
import os
import subprocess
import sys

import pytest

from hf2q.convert import convert

SCRIPT = """
import sys
from hf2q.cli import main
assert main(sys.argv[1:]) == 0
names = "numba", "llvmlite", "mlx", "litestar", "uvicorn", "huggingface_hub", "jinja2", "PIL"
print(*(name for name in names if name in sys.modules), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory, write, dense):
    folder = tmp_path_factory.mktemp("cold")
    write(folder / "src", dense())
    convert(folder / "src", "q8_0", folder / "m.gguf")
    return folder / "m.gguf"


def generate(model, backend, **env):
    """The ids of two tokens, and which of the names above were imported."""
    words = ["generate", "--model", str(model), "--prompt", "Hello", "--max-tokens", "2", "--ignore-eos", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words, "--backend", backend, "--threads", "2"],
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["ids"], done.stderr.splitlines()[-1].split()


@pytest.mark.parametrize("backend", ["cpu", "auto"])
def test_kernels_from_the_disk_need_no_compiler(model, backend):
    if backend == "auto":
        from hf2q.backends.mlx import _may_have_gpu

        if _may_have_gpu():
            pytest.skip("MLX may be the better backend here")
    first, _ = generate(model, backend)  # compiles what is missing
    again, imported = generate(model, backend)
    assert again == first
    if sys.platform.startswith("linux"):
        assert imported == []
