"""The contract suites over the example family."""

from pathlib import Path

from hf2q.testing import ArchContract, GraphContract

DATA = Path(__file__).parent / "data"


class TestArch(ArchContract):
    plugin, arch, config = "example", "example", DATA / "config.json"


class TestGraph(GraphContract):
    plugin, arch, config = "example", "example", DATA / "config.json"
    reference = DATA / "logits.npz"
