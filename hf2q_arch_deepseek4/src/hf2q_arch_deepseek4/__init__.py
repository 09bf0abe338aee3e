"""DeepSeek-V4 for hf2q: GGUF arch ``deepseek4``.

    families     names of the family            hparams     the sizes of one model
    checkpoint   config.json → sizes            keys        GGUF metadata → sizes
    catalog      every tensor                   transforms  how tensors are changed
    mix          types of published layouts     tokenizer   its pre-tokenizer
    graph        forward pass, in several parts

This module yields records only; the modules they name are imported when used.
"""

from __future__ import annotations

from collections.abc import Iterator

from hf2q.hookspecs import hookimpl
from hf2q.types import ArchEntry, ChatFormat, GraphEntry, TensorCatalog
from hf2q_arch_deepseek4.catalog import catalog
from hf2q_arch_deepseek4.families import ARCH, CLASSES, MODEL_TYPES
from hf2q_arch_deepseek4.tokenizer import PRE_TOKENIZERS

HF2Q_PLUGIN_API = 1


@hookimpl
def hf2q_arch_entries() -> Iterator[ArchEntry]:
    """The family. Source: llama.cpp conversion/deepseek.py."""
    yield ArchEntry(
        arch=ARCH,
        hf_architectures=CLASSES,
        model_types=MODEL_TYPES,
        hparams="hf2q_arch_deepseek4.hparams:DeepSeek4HParams",
        catalog=ARCH,
        pre_tokenizers=PRE_TOKENIZERS,
        chat_format="deepseek4",
        # the converter sets a template of its own before anything else, and the checkpoint's takes its place
        first_keys=("tokenizer.chat_template",),
        has_mtp=True,
        has_vision=False,
        disk_floor_gb=100,
        hf_repos=("deepseek-ai/DeepSeek-V4-Flash-0731",),
    )


@hookimpl
def hf2q_tensor_catalogs() -> Iterator[TensorCatalog]:
    """Its tensors."""
    yield catalog()


@hookimpl
def hf2q_forward_graphs() -> Iterator[GraphEntry]:
    """Its forward pass: each block keeps a window of keys and, beyond it, compressed entries."""
    yield GraphEntry(
        arch=ARCH,
        graph="hf2q_arch_deepseek4.graph:DeepSeek4Graph",
        caches=("window", "compressed"),
        cache_bytes="hf2q_arch_deepseek4.memory:cache_bytes",
    )


@hookimpl
def hf2q_chat_formats() -> Iterator[ChatFormat]:
    """Reasoning between <think> and </think>; a turn ends with the end of the sentence."""
    yield ChatFormat(
        name="deepseek4",
        reasoning=("<think>", "</think>"),
        end_of_turn=("<｜end▁of▁sentence｜>",),
        tools="hf2q_arch_deepseek4.calls:DsmlCalls",
    )
