"""Loads the modules beside the tests, under names that no other folder of tests has."""

import importlib.util
from pathlib import Path

import pytest


def beside(name):
    spec = importlib.util.spec_from_file_location(f"kquant_tests_{name}", Path(__file__).parent / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def oracle():
    """The scalar encoders of oracle.py."""
    return beside("oracle")


@pytest.fixture(scope="session")
def reference():
    """The recorded inputs and bytes of reference.py."""
    return beside("reference")
