"""What GGUF metadata say of a scaled RoPE, for families that have none."""

import pytest

from hf2q.config import refuse_scaled_rope
from hf2q.errors import LoadError

PLAIN = ({}, {"type": "none"}, {"type": "none", "factor": 8.0}, {"factor": 0.0}, {"factor": 1.0}, {"beta": 3.0})
SCALED = {
    "scaling.type is 'yarn'": {"scaling.type": "yarn"},
    "scaling.type is 'linear'": {"scaling.type": "linear", "scaling.factor": 1.0},
    "scaling.type is 3": {"scaling.type": 3},
    "scaling.factor is 8.0": {"scaling.factor": 8.0},
    "scaling.factor is nan": {"scaling.factor": float("nan")},
    "scaling.factor is 'x'": {"scaling.factor": "x"},
    "scale_linear is 4.0": {"scale_linear": 4.0},
}


@pytest.mark.parametrize("keys", PLAIN)
def test_plain(keys):
    refuse_scaled_rope({f"toy.rope.scaling.{key}": value for key, value in keys.items()}, "toy")


@pytest.mark.parametrize(("message", "keys"), SCALED.items())
def test_scaled(message, keys):
    metadata = {f"toy.rope.{key}": value for key, value in keys.items()}
    with pytest.raises(LoadError, match=rf"^toy\.rope\.{message}; this family's graph has unscaled RoPE only"):
        refuse_scaled_rope(metadata, "toy")
    refuse_scaled_rope(metadata, "other")
