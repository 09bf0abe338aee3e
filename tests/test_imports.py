"""The layers of core, what plugins may import, and that finding plugins or asking for help loads nothing heavy."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf2q.cli.app import COMMANDS
from hf2q.discovery import discover
from hf2q.testing.contract import HEAVY
from hf2q.testing.distributions import write_distribution

ROOT = Path(__file__).parents[1]
CORE = ROOT / "core" / "src" / "hf2q"

SPINE = {"errors", "types", "codec", "config", "rows", "catalog"}
"""What every room may lean on besides what it is listed with."""

MAY_IMPORT = {
    "errors": set(),
    "types": {"errors"},
    "catalog": {"errors", "types"},
    "codec": {"errors", "types"},
    "config": {"errors"},
    "rows": {"errors", "types"},
    "hookspecs": set(),
    "known": set(),
    "registry": {"errors"},
    "builtin": {"codec", "hookspecs", "types"},
    "installed": set(),
    "discovery": {"errors", "installed", "types"},
    "plugins": SPINE | {"discovery", "hookspecs", "known", "registry"},
    "probe": {"errors", "types", "discovery", "plugins"},
    "simd": {"errors", "installed"},
    "formats": {"errors", "types"},
    "hub": {"errors", "types", "formats"},
    "policy": {"errors", "types", "formats"},
    "backends": {"errors", "types", "codec", "formats", "plugins", "simd"},
    "convert": SPINE | {"formats", "hub", "known", "package", "plugins", "policy"},
    "serve": SPINE | {"backends", "formats", "plugins", "package"},
    "quality": SPINE | {"backends", "convert", "formats", "package", "plugins", "serve"},
    "scaffold": {"errors"},
    "testing": SPINE | {"backends", "convert", "discovery", "formats", "plugins", "quality", "serve"},
    "package": {"serve"},
    "cli": SPINE
    | {"backends", "convert", "discovery", "formats", "hub", "package", "plugins", "policy", "probe", "quality"}
    | {"scaffold", "serve", "simd"},
    "__main__": {"cli"},
}
"""Room -> rooms it may import, at any place in its files. ``package`` is ``hf2q/__init__.py`` itself."""

KNOWN_EXCEPTIONS = {("types", "catalog")}
"""`TensorCatalog.expand` is a method of a record and the one expansion; it calls down into `hf2q.catalog` when used."""

PLUGINS_MAY_IMPORT = {
    "backends.cache",
    "backends.media",
    "backends.ops",
    "backends.rope",
    "backends.weights",
    "codec",
    "config",
    "errors",
    "formats.floats",
    "formats.folder",
    "formats.images",
    "hookspecs",
    "policy",
    "rows",
    "serve.chat.reading",
    "serve.chat.schemas",
    "serve.chat.syntax",
    "serve.grammar.calls",
    "simd",
    "types",
}
"""The public part of core, for what plugins ship; their ``hf2q_contract`` may import hf2q.testing besides."""

PLUGINS = sorted(
    path.parent
    for pattern in ("hf2q_*/src/*/__init__.py", "plugins/*/src/*/__init__.py")
    for path in ROOT.glob(pattern)
)


def imported(path):
    """Modules that a file imports, with the line; those for type checkers alone are left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    skipped = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for part in node.body
        for inner in ast.walk(part)
    }
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def core_module(name):
    """`hf2q.x.y.z` -> ``x.y.z``; None for what is not core's."""
    return name.removeprefix("hf2q").lstrip(".") if name == "hf2q" or name.startswith("hf2q.") else None


def room_of(dotted):
    """The room of a core module, or ``package`` for names of hf2q/__init__.py."""
    first = dotted.partition(".")[0]
    return first if first in MAY_IMPORT and first else "package"


def core_files():
    return [path for path in CORE.rglob("*.py") if "_template" not in path.parts]


# --------------------------------------------------------------------------------------------------------------- layers


def test_every_room_has_its_place():
    rooms = {path.relative_to(CORE).parts[0].removesuffix(".py") for path in core_files()} - {"__init__"}
    assert rooms - set(MAY_IMPORT) == set(), "a new room needs a line in MAY_IMPORT"


def test_arrows_point_down():
    wrong = []
    for path in core_files():
        parts = path.relative_to(CORE).parts
        room = parts[0].removesuffix(".py") if parts != ("__init__.py",) else "package"
        for name, line in imported(path):
            dotted = core_module(name)
            if dotted is None:
                continue
            target = room_of(dotted)
            if target != room and target not in MAY_IMPORT[room] and (room, target) not in KNOWN_EXCEPTIONS:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {room} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_rooms_form_no_circle():
    """MAY_IMPORT itself is a layering: otherwise the test above would prove nothing."""
    left = {room: set(targets) for room, targets in MAY_IMPORT.items()}
    # `import hf2q; hf2q.load` reaches into serve when asked, and serve reads hf2q.__version__
    left["serve"].discard("package")
    while left:
        free = [room for room, targets in left.items() if not targets & set(left)]
        assert free, f"a circle among {sorted(left)}"
        for room in free:
            del left[room]


def test_neither_half_imports_the_other():
    assert "serve" not in MAY_IMPORT["convert"]
    assert "convert" not in MAY_IMPORT["serve"]


def test_no_product_module_imports_the_suites():
    assert not [room for room, targets in MAY_IMPORT.items() if "testing" in targets]


def test_only_the_room_of_http_knows_http():
    http = {"litestar", "uvicorn"}
    for path in core_files():
        if "api" in path.relative_to(CORE).parts:
            continue
        found = {name.partition(".")[0] for name, _ in imported(path)} & http
        assert not found, f"{path.relative_to(ROOT)} imports {found}"


def test_below_the_api_nobody_imports_it():
    for path in (CORE / "serve").rglob("*.py"):
        if "api" in path.relative_to(CORE / "serve").parts:
            continue
        upward = [name for name, _ in imported(path) if name.startswith("hf2q.serve.api")]
        assert not upward, f"{path.relative_to(ROOT)} imports {upward}"


# -------------------------------------------------------------------------------------------------------------- plugins


@pytest.mark.parametrize("package", PLUGINS, ids=lambda path: path.name)
def test_plugins_import_the_public_part_of_core_and_never_each_other(package):
    others = {path.name for path in PLUGINS} - {package.name}
    wrong = []
    for path in package.rglob("*.py"):
        contract = "hf2q_contract" in str(path.relative_to(package))
        for name, line in imported(path):
            where = f"{path.relative_to(ROOT)}:{line}: imports {name}"
            if name.partition(".")[0] in others:
                wrong.append(where)
            dotted = core_module(name)
            if dotted is None or (contract and dotted.startswith("testing")):
                continue
            if not any(f"{dotted}.".startswith(f"{public}.") for public in PLUGINS_MAY_IMPORT):
                # `from hf2q import rows` names a module, not an attribute
                wrong.append(where)
    assert not wrong, "\n".join(wrong)


def test_plugins_were_found():
    assert {"hf2q_arch_qwen35", "hf2q_quant_kquant", "hf2q_example_arch"} <= {path.name for path in PLUGINS}


# -------------------------------------------------------------------------------------------------------- light imports


def loaded_by(code, **environment):
    """Top-level packages in sys.modules after running `code` in a process of its own, and whole module names."""
    code += "\nimport json, sys; print('\\n' + json.dumps(sorted(sys.modules)))"
    env = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    modules = set(json.loads(done.stdout.splitlines()[-1]))
    return {name.partition(".")[0] for name in modules}, modules


LIGHT = [
    "import hf2q",
    "import hf2q.types, hf2q.errors, hf2q.codec, hf2q.catalog, hf2q.config, hf2q.hookspecs, hf2q.registry, hf2q.known",
    "import hf2q.plugins, hf2q.builtin, hf2q.probe, hf2q.scaffold, hf2q.testing",
    "from hf2q.plugins import Plugins; Plugins.load()",
    "from hf2q.cli import main; main(['--help'])",
    "from hf2q.cli import main; main([])",
    "from hf2q.cli import main; main(['--version'])",
    "from hf2q.cli import main; main(['plugins'])",
    "from hf2q.cli import main; main(['doctor'])",
    "from hf2q.cli import main; main(['no-such-command'])",
    "import hf2q.formats.gguf",
    *(f"from hf2q.cli import main; main([{name!r}, '--help'])" for name, _, _ in COMMANDS),
]


@pytest.mark.parametrize("code", LIGHT)
def test_nothing_heavy_is_imported(code):
    """With every installed plugin in place."""
    packages, _ = loaded_by(code)
    assert packages & HEAVY == set()


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["plugins", "--help"], ["plugins"], ["doctor"]])
def test_recovery_commands_import_no_plugin_here(words):
    packages, modules = loaded_by(f"from hf2q.cli import main; main({words!r})")
    foreign = {point.value.partition(":")[0] for point in discover()} - {"hf2q.builtin"}
    assert foreign, "there must be plugins for this to mean anything"
    assert foreign & (packages | modules) == set()
    assert "hf2q.builtin" not in modules


GENERATING = """
import hf2q.cli.app, hf2q.cli.generate, hf2q.serve.load, hf2q.serve.model, hf2q.backends.cpu.ops
from hf2q.plugins import Plugins
plugins = Plugins.load()
plugins.codec("Q8_0")
"""
"""What `hf2q generate` imports before it opens a file, and some of what follows."""


def test_generating_imports_nothing_that_it_does_not_use():
    """Each of these costs a fresh process milliseconds or megabytes before its first token."""
    packages, modules = loaded_by(GENERATING)
    needless = {"email", "zipfile", "importlib_metadata", "socket", "subprocess", "tempfile", "shutil", "rich"}
    needless |= {"_hashlib", "secrets", "concurrent", "difflib", "docstring_parser", "numba", "llvmlite"}
    assert packages & needless == set()
    assert modules & {"hf2q.formats.gguf.writer", "hf2q.formats.tokenizer.read"} == set()


def test_version_needs_no_parser():
    packages, _ = loaded_by("from hf2q.cli import main; main(['--version'])")
    assert packages & {"cyclopts", "msgspec", "pluggy", "importlib_metadata"} == set()


def test_help_imports_no_command():
    _, modules = loaded_by("from hf2q.cli import main; main(['--help'])")
    commands = {where.partition(":")[0] for _, where, _ in COMMANDS}
    assert commands & modules == set()
    assert "pluggy" not in modules


@pytest.mark.parametrize("source", ["import os; os._exit(9)", "import time; time.sleep(600)"])
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["plugins"], ["doctor"]])
def test_recovery_commands_work_whatever_a_plugin_does(words, source, tmp_path):
    write_distribution(tmp_path, "hf2q-evil", {"evil": "hf2q_fake_evil"}, {"hf2q_fake_evil": source})
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "HF2Q_PROBE_SECONDS": "2"}
    done = subprocess.run([sys.executable, "-m", "hf2q", *words], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode in (0, 1), done.stderr
    assert done.returncode == 0 or words == ["doctor"]
    assert done.stderr == ""
    if words in (["plugins"], ["doctor"]):
        assert "'evil' of hf2q-evil" in done.stdout
        assert "builtin" in done.stdout
