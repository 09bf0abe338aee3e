"""The pages about serving and about models say what is true: their blocks run, and the reference names everything."""

import ast
import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from hf2q.serve.api import (
    asked,
    chat_messages,
    chat_request,
    chat_tools,
    completions_request,
    embeddings,
    tokens,
)
from hf2q.serve.api.app import ROUTES
from hf2q.serve.api.schema import ModelRow

ROOT = Path(__file__).resolve().parent.parent
SERVE = ROOT / "docs/how-to/serve.md"
PYTHON = ROOT / "docs/how-to/use-from-python.md"
HTTP = (ROOT / "docs/reference/http.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(sh|python)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = "8080"


@pytest.fixture
def folder(tmp_path):
    """A working directory as the pages assume it."""
    shutil.copytree(ROOT / "tests/data/qwen3_5", tmp_path / "tests/data/qwen3_5")
    return tmp_path


def run(language, text, folder):
    """Run a block as printed; its output."""
    words = [sys.executable, "-c", text] if language == "python" else ["sh", "-euc", text]
    path = {"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, env=path)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return str(sock.getsockname()[1])


@contextmanager
def started(command, folder):
    """The server of a printed command, ready; it has to end well."""
    port = free_port()
    words = shlex.split(command.replace(PRINTED, port))
    process = subprocess.Popen([sys.executable, "-m", *words], cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        assert any(line == "ready\n" for line in process.stderr)
        yield port
        process.terminate()
        process.communicate(timeout=30)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_how_to_serve(folder):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    made, serve, curl, client, script = BLOCK.findall(SERVE.read_text(encoding="utf-8"))
    run(*made, folder)
    with started(serve[1], folder) as port:
        assert "Tokyo" in run(curl[0], curl[1].replace(PRINTED, port), folder)
        assert run(client[0], client[1].replace(PRINTED, port), folder).count("Tokyo") == 2
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as response:
            described = re.search(r"`/health` answers `(\{.*?\})`", HTTP)[1]
            assert re.findall(r'"(\w+)"', described) == list(json.load(response))
    assert '"id":"model"' in run(script[0], script[1].replace(PRINTED, free_port()), folder)


def test_how_to_use_models_from_python(folder):
    page = PYTHON.read_text(encoding="utf-8")
    found = BLOCK.findall(page[page.index("## Models") :])
    outputs = [run(language, text, folder) for language, text in found]
    assert len(outputs) == 7
    assert "model qwen35" in outputs[1]
    assert any("Tokyo" in output for output in outputs)


def test_the_http_reference_names_every_route_and_field():
    for route in ROUTES:
        (path,) = route.paths
        path = re.sub(r":\w+}", "}", path)
        assert f"`{next(iter(route.http_methods))} {path}`" in HTTP
    for struct in (
        chat_request.Body,
        chat_messages.ChatMessage,
        chat_messages.Part,
        chat_messages.ImageUrl,
        chat_messages.CallBody,
        chat_tools.ToolBody,
        chat_tools.FunctionBody,
        chat_tools.ChoiceBody,
        chat_tools.FormatBody,
        chat_tools.SchemaBody,
        asked.StreamOptions,
        completions_request.Body,
        embeddings.Body,
        tokens.TokenizeBody,
        tokens.DetokenizeBody,
        ModelRow,
    ):
        for name in struct.__struct_fields__:
            assert f"`{name}`" in HTTP or f'"{name}"' in HTTP, f"{struct.__name__}.{name}"


def test_the_http_reference_names_every_code():
    found = set()
    for path in (ROOT / "core/src/hf2q/serve").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "code":
                found |= {n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant) and n.value}
    assert {"invalid_json", "queue_full", "missing_required_parameter", "unsupported_value"} <= found
    assert not [code for code in sorted(found) if f"`{code}`" not in HTTP]
