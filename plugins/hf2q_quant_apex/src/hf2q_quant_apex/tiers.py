"""The types of each tier, by role and region.

Source: hf2q (the earlier program), src/quantize/ggml_quants/apex/rules.rs, `tier_rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hf2q.types import Record
from hf2q_quant_apex.roles import Region, Role

ALWAYS: Mapping[Role, str] = MappingProxyType({"embedding": "Q6_K", "output": "Q6_K", "router": "Q5_0"})
"""Roles whose type is the same in all tiers. A router of two dimensions is kept as F32 before it comes to that."""


class Tier(Record, frozen=True, kw_only=True):
    """Types of the regions: edge, near and mid of routed experts, edge and mid of shared ones and of all else."""

    expert: tuple[str, str, str]
    shared: tuple[str, str]
    other: tuple[str, str]

    def type_of(self, role: Role, region: Region) -> str:
        """The type of a tensor."""
        if role in ALWAYS:
            return ALWAYS[role]
        if role == "expert":
            return self.expert[("edge", "near", "mid").index(region)]
        pair = self.shared if role == "shared" else self.other
        return pair[0] if region == "edge" else pair[1]


TIERS: Mapping[str, Tier] = MappingProxyType(
    {
        "quality": Tier(expert=("Q6_K", "Q5_K", "IQ4_XS"), shared=("Q8_0", "Q8_0"), other=("Q6_K", "Q6_K")),
        "balanced": Tier(expert=("Q6_K", "Q5_K", "Q5_K"), shared=("Q8_0", "Q8_0"), other=("Q6_K", "Q6_K")),
        "compact": Tier(expert=("Q4_K", "Q3_K", "Q3_K"), shared=("Q6_K", "Q6_K"), other=("Q4_K", "Q4_K")),
        "mini": Tier(expert=("Q3_K", "Q3_K", "IQ2_S"), shared=("Q5_K", "Q4_K"), other=("Q4_K", "Q3_K")),
    }
)
"""A tier with ``i-`` before its name has the types of the one without, and needs an importance matrix."""
