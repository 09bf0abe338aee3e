"""The contract suites of all types with blocks recorded from the reference; nothing else imports this.

One suite for each codec of the plugin, so that a new one without recorded blocks fails here at once. Ternary types are
for weights that have three values: of normal ones, all below half the largest become zero.
"""

from __future__ import annotations

from pathlib import Path

from hf2q.testing import CodecContract
from hf2q_quant_kquant import CODECS

REFERENCE = Path(__file__).parent / "reference"
TERNARY = ("TQ1_0", "TQ2_0")


def suite(name: str) -> type[CodecContract]:
    """The suite of one type."""
    own: dict[str, object] = {"plugin": "hf2q-quant-kquant", "name": name, "golden": REFERENCE / f"{name}.npz"}
    if name in TERNARY:
        own["max_error"] = 1.0
    return type(name, (CodecContract,), {"__module__": __name__, **own})


globals().update({name: suite(name) for name, *_ in CODECS})
