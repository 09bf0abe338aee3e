"""`WriterContract` lets an honest writer pass and catches faults put in by hand.

The writer is the one that `hf2q plugins new --kind writer` writes; a fault is an edit of it.
"""

import importlib
import sys
import tomllib

import pytest

from hf2q.scaffold import create
from hf2q.testing.distributions import write_distribution
from hf2q.testing.verdicts import failures
from hf2q.testing.writer import WriterContract

PACKAGE = "hf2q_writer_fake"


@pytest.fixture
def writer(tmp_path, monkeypatch):
    """A function that writes and installs the writer with an edit, and gives its suite."""
    folder = tmp_path / "plugin"
    before = set(sys.modules)

    def make(*edits):
        create("fake", "writer", folder)
        path = folder / "src" / PACKAGE / "writer.py"
        text = path.read_text(encoding="utf-8")
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")
        project = tomllib.loads((folder / "pyproject.toml").read_text())
        write_distribution(tmp_path / "site", "hf2q-writer-fake", project["project"]["entry-points"]["hf2q"], {})
        monkeypatch.syspath_prepend(tmp_path / "site")
        monkeypatch.syspath_prepend(folder / "src")
        monkeypatch.setenv("PYTHONPATH", str(folder / "src"))
        return importlib.import_module(f"{PACKAGE}.hf2q_contract").TestWriter

    yield make
    for name in set(sys.modules) - before:
        if name.startswith(PACKAGE):
            del sys.modules[name]


def test_an_honest_writer_passes(writer, tmp_path):
    assert failures(writer(), tmp_path / "checks") == {}


FAULTS = {
    "the final name from the start": (
        'self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")',
        "self.path",
        "an_existing_file_stays_until_the_new_one_is_whole",
    ),
    "a temporary file is left": (
        "self.temporary.replace(self.path)",
        "self.path.write_bytes(self.temporary.read_bytes())",
        "nothing_else_is_left",
    ),
    "abort does nothing": ("self.temporary.unlink(missing_ok=True)", "pass", "an_interrupted_run_leaves_nothing"),
    "abort removes a finished file": (
        "        if self.open:\n            self.open = False",
        "        self.path.unlink(missing_ok=True)\n        if self.open:\n            self.open = False",
        "abort_after_close_keeps_the_file",
    ),
    "bytes are lost at the end of pieces": (
        "self.file.write(data.tobytes())",
        "self.file.write(data[:30].tobytes())",
        "an_independent_reader_finds_everything",
    ),
    "pieces are padded": (
        "self.file.write(data.tobytes())",
        "self.file.write(data.tobytes()); self.file.write(b'\\0' * (data.nbytes == 37))",
        "pieces_do_not_change_the_file",
    ),
    "shapes are turned round": (
        '"shape": tensor.shape',
        '"shape": tensor.shape[::-1]',
        "an_independent_reader_finds_everything",
    ),
    "another type": ('"qtype": tensor.qtype', '"qtype": tensor.via', "an_independent_reader_finds_everything"),
    "tensors sorted by name": (
        "for tensor in plan.tensors:\n        place",
        "for tensor in sorted(plan.tensors, key=lambda t: t.name):\n        place",
        "an_independent_reader_finds_everything",
    ),
    "the time is written": (
        '"metadata": metadata',
        '"metadata": {**metadata, "at": __import__("time").time_ns()}',
        "writing_twice_gives_the_same_bytes",
    ),
    "an OSError": (
        'raise WriteError(f"{path} cannot be written: {error.strerror}") from error',
        "raise",
        "a_folder_that_is_not_there_is_a_clear_error",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(writer, tmp_path, fault):
    old, new, check = FAULTS[fault]
    assert failures(writer((old, new)), tmp_path / "checks", only=[f"test_{check}"])


ORDER = ("if name != wanted or data.nbytes > nbytes:", "if {}:")
END = ("[name for name, nbytes in self.left if nbytes]", "[name for name, nbytes in self.left if {}]")
LAX = {
    "another_order_is_refused": ("False", "False"),
    "a_tensor_that_is_not_planned_is_refused": ("False", "nbytes > 0"),
    "too_many_bytes_are_refused": ("name != wanted", "nbytes > 0"),
    "too_few_bytes_are_refused": ("data.nbytes > nbytes", "False"),
    "a_tensor_twice_is_refused": ("False", "False"),
    "a_missing_tensor_is_refused": ("data.nbytes > nbytes", "nbytes < 0"),
    "nothing_at_all_is_refused": ("False", "nbytes < 0"),
}


@pytest.mark.parametrize("check", LAX)
def test_a_writer_that_looks_away_is_caught(writer, tmp_path, check):
    order, end = LAX[check]
    suite = writer((ORDER[0], ORDER[1].format(order)), (END[0], END[1].format(end)))
    assert failures(suite, tmp_path / "checks", only=[f"test_{check}"])


def test_without_a_reader_the_content_is_not_checked(writer, tmp_path):
    class Blind(writer()):
        read_back = WriterContract.read_back

    with pytest.raises(pytest.skip.Exception, match="not checked: no independent reader"):
        Blind().test_an_independent_reader_finds_everything(tmp_path)


def test_core_s_own_writer_passes(tmp_path):
    class Gguf(WriterContract):
        plugin, name = "builtin", "gguf"

    assert failures(Gguf, tmp_path) == {}
