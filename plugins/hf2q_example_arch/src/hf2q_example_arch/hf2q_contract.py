"""The contract suites with this family's own data, for its tests and for ``hf2q plugins check``."""

from pathlib import Path

from hf2q.testing import ArchContract, GraphContract, TokenizerContract

REFERENCE = Path(__file__).parent / "reference"


class TestArch(ArchContract):
    plugin, arch, config = "hf2q-example-arch", "example", REFERENCE / "config.json"


class TestTokenizer(TokenizerContract):
    plugin, arch = "hf2q-example-arch", "example"


class TestGraph(GraphContract):
    plugin, arch, config = "hf2q-example-arch", "example", REFERENCE / "config.json"
    reference = REFERENCE / "logits.npz"
