"""Qwen 3.5, 3.6 and 3.8 for hf2q: GGUF archs ``qwen35`` and ``qwen35moe``.

    families     names of the family          hparams     the sizes of one model
    checkpoint   config.json → sizes          keys        GGUF metadata → sizes
    catalog      every tensor                 transforms  how tensors are changed (exponential: one of them)
    tokenizer    its pre-tokenizer            graph       forward pass
    mtp          the draft head               memory      what caches take

This module yields records only; the modules they name are imported when used.
"""

from __future__ import annotations

from collections.abc import Iterator

from hf2q.hookspecs import hookimpl
from hf2q.types import ArchEntry, ChatFormat, GraphEntry, TensorCatalog, Thresholds
from hf2q_arch_qwen35.catalog import dense_catalog, moe_catalog
from hf2q_arch_qwen35.families import (
    DENSE,
    DENSE_CLASSES,
    DENSE_MODEL_TYPES,
    MOE,
    MOE_CLASSES,
    MOE_MODEL_TYPES,
)
from hf2q_arch_qwen35.tokenizer import PRE_TOKENIZERS

HF2Q_PLUGIN_API = 1


@hookimpl
def hf2q_arch_entries() -> Iterator[ArchEntry]:
    """Dense and MoE."""
    # quality bounds and disk floors: hf2q's own registry of supported families
    bounds = Thresholds(ppl_ratio_4_6=1.10, ppl_ratio_4_8=1.05, median_kl=0.02)
    yield ArchEntry(
        arch=DENSE,
        hf_architectures=DENSE_CLASSES,
        model_types=DENSE_MODEL_TYPES,
        hparams="hf2q_arch_qwen35.hparams:Qwen35HParams",
        catalog=DENSE,
        pre_tokenizers=PRE_TOKENIZERS,
        chat_format="qwen",
        projector="qwen3vl_merger",
        has_mtp=True,
        has_vision=True,
        smoke_prompts=("The quick brown fox",),
        thresholds=bounds,
        disk_floor_gb=100,
        hf_repos=("Qwen/Qwen3.5-9B", "Qwen/Qwen3.5-27B", "Qwen/Qwen3.6-27B"),
    )
    yield ArchEntry(
        arch=MOE,
        hf_architectures=MOE_CLASSES,
        model_types=MOE_MODEL_TYPES,
        hparams="hf2q_arch_qwen35.hparams:Qwen35HParams",
        catalog=MOE,
        pre_tokenizers=PRE_TOKENIZERS,
        chat_format="qwen",
        projector="qwen3vl_merger",
        has_mtp=True,
        has_vision=True,
        smoke_prompts=("The quick brown fox",),
        thresholds=bounds,
        disk_floor_gb=150,
        hf_repos=("Qwen/Qwen3.5-35B-A3B",),
    )


@hookimpl
def hf2q_tensor_catalogs() -> Iterator[TensorCatalog]:
    """One for each arch."""
    yield dense_catalog()
    yield moe_catalog()


@hookimpl
def hf2q_forward_graphs() -> Iterator[GraphEntry]:
    """One graph runs both."""
    for arch in (DENSE, MOE):
        yield GraphEntry(
            arch=arch,
            graph="hf2q_arch_qwen35.graph:Qwen35Graph",
            caches=("kv", "state"),
            images=True,
            draft="hf2q_arch_qwen35.mtp:MtpHead",
            cache_bytes="hf2q_arch_qwen35.memory:cache_bytes",
        )


@hookimpl
def hf2q_chat_formats() -> Iterator[ChatFormat]:
    """Reasoning between <think> and </think>; a turn ends with <|im_end|>."""
    yield ChatFormat(
        name="qwen",
        reasoning=("<think>", "</think>"),
        end_of_turn=("<|im_end|>", "<|endoftext|>"),
        tools="hf2q_arch_qwen35.calls:QwenCalls",
    )
