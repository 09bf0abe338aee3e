"""The pytest plugin that comes with hf2q: markers, and readable failures of the contract suites.

pytest imports it at start in every environment that has hf2q, so it imports nothing else.
"""

from __future__ import annotations

import pytest

SUITES = (
    "family",
    "catalog",
    "arch",
    "projector",
    "codec",
    "forward",
    "graph",
    "encoder",
    "tokenizer",
    "writer",
    "calls",
    "reference",
)

# without this a failing assert in a suite shows no values: pytest rewrites test modules only
pytest.register_assert_rewrite(*(f"hf2q.testing.{name}" for name in SUITES))


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers that the suites use."""
    config.addinivalue_line("markers", "mlx: needs MLX")
    config.addinivalue_line("markers", "slow: longer than a few seconds")
    config.addinivalue_line("markers", "fixtures: needs the shared fixture checkpoints")
