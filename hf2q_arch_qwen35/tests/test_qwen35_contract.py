"""The contract suites of a family over both of its archs."""

from hf2q_arch_qwen35.hf2q_contract import TestCalls, TestDenseArch, TestMoEArch, TestTokenizer  # noqa: F401
