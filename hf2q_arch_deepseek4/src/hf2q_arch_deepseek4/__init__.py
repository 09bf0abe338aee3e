"""hf2q-arch-deepseek4: DeepSeek-V4, compressed-attention MoE models.

This version knows the family by name. Its hparams refuse, so that a checkpoint is never converted by the wrong rules.
"""

from __future__ import annotations

from collections.abc import Iterator

from hf2q.hookspecs import hookimpl
from hf2q.types import ArchEntry

HF2Q_PLUGIN_API = 1


@hookimpl
def hf2q_arch_entries() -> Iterator[ArchEntry]:
    """The family's identity. Source: llama.cpp conversion/deepseek.py."""
    yield ArchEntry(
        arch="deepseek4",
        hf_architectures=("DeepseekV4ForCausalLM",),
        model_types=("deepseek_v4",),
        hparams="hf2q_arch_deepseek4.hparams:HParams",
        catalog="deepseek4",
        has_mtp=True,
        has_vision=False,
        disk_floor_gb=100,
        hf_repos=("deepseek-ai/DeepSeek-V4-Flash-0731",),
    )
