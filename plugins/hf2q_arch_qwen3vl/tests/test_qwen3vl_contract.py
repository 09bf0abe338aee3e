"""The contract suites of the family, over both archs and the projector."""

from hf2q_arch_qwen3vl.hf2q_contract import (  # noqa: F401
    TestCalls,
    TestDenseArch,
    TestDenseGraph,
    TestMoEArch,
    TestMoEGraph,
    TestProjector,
    TestTokenizer,
)
