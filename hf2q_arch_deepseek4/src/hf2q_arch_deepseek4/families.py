"""Names of the family and of its kinds of blocks. Imports nothing, so that plugin discovery stays cheap.

Source: llama.cpp, conversion/deepseek.py, `DeepseekV4Model`; transformers,
models/deepseek_v4/configuration_deepseek_v4.py.
"""

ARCH = "deepseek4"
CLASSES = ("DeepseekV4ForCausalLM",)
MODEL_TYPES = ("deepseek_v4",)

SLIDING, SPARSE, HEAVY = "sliding", "sparse", "heavy"
"""Attention of a block: a sliding window alone, with compressed sparse attention, with heavily compressed attention."""
HASH, TOP_K = "hash", "top_k"
"""Routing of a block: by a table of token ids, or by the highest scores."""

RATIOS = {0: SLIDING, 4: SPARSE, 128: HEAVY}
"""Attention by how many tokens are compressed into one; all that exist (llama.cpp, src/models/deepseek4.cpp)."""
MAX_SINKHORN = 1000
"""Steps of hyper-connections; published models take 20, and one that asks for millions would never answer."""


def kind(attention: str, routing: str) -> str:
    """The kind of a block, as the catalog names it."""
    return f"{attention}_{routing}"


def kinds(
    attention: tuple[str, ...] = (SLIDING, SPARSE, HEAVY), routing: tuple[str, ...] = (HASH, TOP_K)
) -> tuple[str, ...]:
    """All kinds with one of these kinds of attention and one of these of routing."""
    return tuple(kind(one, other) for one in attention for other in routing)
