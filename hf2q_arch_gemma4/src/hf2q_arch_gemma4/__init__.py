"""hf2q-arch-gemma4: Gemma 4, dense, MoE and per-layer-embedding models.

This version knows the family by name. Its hparams refuse, so that a checkpoint is never converted by the wrong rules.
"""

from __future__ import annotations

from collections.abc import Iterator

from hf2q.hookspecs import hookimpl
from hf2q.types import ArchEntry

HF2Q_PLUGIN_API = 1


@hookimpl
def hf2q_arch_entries() -> Iterator[ArchEntry]:
    """The family's identity. Source: llama.cpp conversion/gemma.py, `Gemma4Model`."""
    yield ArchEntry(
        arch="gemma4",
        hf_architectures=(
            "Gemma4ForConditionalGeneration",
            "Gemma4ForCausalLM",
            "Gemma4UnifiedForConditionalGeneration",
        ),
        model_types=("gemma4", "gemma4_text"),
        hparams="hf2q_arch_gemma4.hparams:HParams",
        catalog="gemma4",
        has_mtp=False,
        has_vision=True,
        disk_floor_gb=100,
        hf_repos=("google/gemma-4-26b-a4b-it",),
    )
