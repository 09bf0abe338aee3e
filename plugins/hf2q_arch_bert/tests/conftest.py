"""The module of checkpoints, loaded by its path: test modules have no package to import it from."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def variants():
    """`bert_variants.py`."""
    spec = importlib.util.spec_from_file_location("bert_variants", Path(__file__).parent / "bert_variants.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
