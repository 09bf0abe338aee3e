"""The contract suites of a family."""

from hf2q_arch_deepseek4.hf2q_contract import TestArch, TestCalls, TestTokenizer  # noqa: F401
