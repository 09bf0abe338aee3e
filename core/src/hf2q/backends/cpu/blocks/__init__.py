"""The block types that the kernels read as they are, by qtype."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hf2q.backends.cpu.blocks import codebooks, grids, kquants, legacy
from hf2q.backends.cpu.blocks.block import Block
from hf2q.backends.cpu.blocks.grids import points_of

__all__ = ("BLOCKS", "Block", "points_of")

BLOCKS: Mapping[str, Block] = MappingProxyType(
    {block.qtype: block for module in (legacy, kquants, codebooks, grids) for block in module.BLOCKS}
)
