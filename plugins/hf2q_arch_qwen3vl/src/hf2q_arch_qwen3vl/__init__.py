"""Qwen 3-VL for hf2q: GGUF archs ``qwen3vl`` and ``qwen3vlmoe``, and the projector ``qwen3vl_merger``.

    families     names of the family          transforms   how tensors are changed
    hparams      the sizes of a text model    vision       the sizes of a vision tower
    checkpoint   config.json → sizes          tower        its config.json and keys → sizes
    keys         GGUF metadata → sizes        projector    every tensor of a tower
    catalog      every tensor of a text model tokenizer    its pre-tokenizer
    embedders    variants that give vectors   transposed   stacks of matrices, a few rows at a time
    graph        the text model's forward     vision_graph the tower's;  images   how it gets an image

The tower also serves Qwen 3.5 and later, whose entries name the projector.
This module yields records only; the modules they name are imported when used.
"""

from __future__ import annotations

from collections.abc import Iterator

from hf2q.hookspecs import hookimpl
from hf2q.types import ArchEntry, ChatFormat, GraphEntry, ProjectorEntry, TensorCatalog
from hf2q_arch_qwen3vl.catalog import dense_catalog, moe_catalog
from hf2q_arch_qwen3vl.families import (
    CARD,
    DENSE,
    DENSE_CLASSES,
    DENSE_MODEL_TYPES,
    MODULES,
    MOE,
    MOE_CLASSES,
    MOE_MODEL_TYPES,
    PROJECTOR,
)
from hf2q_arch_qwen3vl.projector import projector_catalog
from hf2q_arch_qwen3vl.tokenizer import PRE_TOKENIZERS

HF2Q_PLUGIN_API = 1


@hookimpl
def hf2q_arch_entries() -> Iterator[ArchEntry]:
    """Dense and MoE."""
    yield ArchEntry(
        arch=DENSE,
        hf_architectures=DENSE_CLASSES,
        model_types=DENSE_MODEL_TYPES,
        hparams="hf2q_arch_qwen3vl.hparams:Qwen3VLHParams",
        catalog=DENSE,
        side_files=(MODULES, CARD),
        pre_tokenizers=PRE_TOKENIZERS,
        chat_format="qwen3vl",
        projector=PROJECTOR,
        has_vision=True,
        smoke_prompts=("The quick brown fox",),
        hf_repos=("Qwen/Qwen3-VL-4B-Instruct", "Qwen/Qwen3-VL-8B-Instruct"),
    )
    yield ArchEntry(
        arch=MOE,
        hf_architectures=MOE_CLASSES,
        model_types=MOE_MODEL_TYPES,
        hparams="hf2q_arch_qwen3vl.hparams:Qwen3VLHParams",
        catalog=MOE,
        pre_tokenizers=PRE_TOKENIZERS,
        chat_format="qwen3vl",
        projector=PROJECTOR,
        has_vision=True,
        smoke_prompts=("The quick brown fox",),
        hf_repos=("Qwen/Qwen3-VL-30B-A3B-Instruct",),
    )


@hookimpl
def hf2q_projectors() -> Iterator[ProjectorEntry]:
    """The tower of Qwen 3-VL, and of Qwen 3.5 and later."""
    yield ProjectorEntry(
        name=PROJECTOR,
        hparams="hf2q_arch_qwen3vl.vision:TowerHParams",
        catalog=PROJECTOR,
        graph="hf2q_arch_qwen3vl.vision_graph:Qwen3VLTower",
        image="<|image_pad|>",
    )


@hookimpl
def hf2q_forward_graphs() -> Iterator[GraphEntry]:
    """One graph runs both."""
    for arch in (DENSE, MOE):
        yield GraphEntry(
            arch=arch,
            graph="hf2q_arch_qwen3vl.graph:Qwen3VLGraph",
            caches=("kv",),
            images=True,
            cache_bytes="hf2q_arch_qwen3vl.memory:cache_bytes",
        )


@hookimpl
def hf2q_tensor_catalogs() -> Iterator[TensorCatalog]:
    """One for each arch, and one for the projector."""
    yield dense_catalog()
    yield moe_catalog()
    yield projector_catalog()


@hookimpl
def hf2q_chat_formats() -> Iterator[ChatFormat]:
    """Thinking variants reason between <think> and </think>; a turn ends with <|im_end|>."""
    yield ChatFormat(
        name="qwen3vl",
        reasoning=("<think>", "</think>"),
        end_of_turn=("<|im_end|>", "<|endoftext|>"),
        tools="hf2q_arch_qwen3vl.calls:HermesCalls",
    )
