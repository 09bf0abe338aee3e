"""The contract suites of the family: dense, with per-layer inputs, with experts, and the projector."""

from hf2q_arch_gemma4.hf2q_contract import (  # noqa: F401
    TestCalls,
    TestClippedProjector,
    TestDenseArch,
    TestMoEArch,
    TestProjector,
    TestSmallArch,
    TestTokenizer,
)
