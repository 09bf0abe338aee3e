"""The contract suites over the example family."""

from hf2q_example_arch.hf2q_contract import TestArch, TestGraph, TestTokenizer  # noqa: F401
