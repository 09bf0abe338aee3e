"""Gemma 4 for hf2q: GGUF arch ``gemma4`` (dense, MoE, per-layer inputs) and the projector ``gemma4v``.

    families     names of the family          hparams      the sizes of one text model
    checkpoint   config.json → sizes          keys         GGUF metadata → sizes
    catalog      every tensor of it           transforms   how tensors are changed
    tokenizer    its pre-tokenizer            graph        forward pass, with graph_attention and graph_ffn
    vision       the sizes of a vision tower  tower        its config.json and keys → sizes
    projector    every tensor of it           images       how it gets an image
    graph_tower  its forward pass             graph_images images among tokens

This module yields records only; the modules they name are imported when used.
"""

from __future__ import annotations

from collections.abc import Iterator

from hf2q.hookspecs import hookimpl
from hf2q.types import ArchEntry, ChatFormat, GraphEntry, ProjectorEntry, TensorCatalog, Thresholds
from hf2q_arch_gemma4.catalog import text_catalog
from hf2q_arch_gemma4.families import ARCH, CLASSES, DRAFTERS, MODEL_TYPES, PROJECTOR, UNIFIED
from hf2q_arch_gemma4.projector import projector_catalog
from hf2q_arch_gemma4.tokenizer import PRE_TOKENIZERS

HF2Q_PLUGIN_API = 1


@hookimpl
def hf2q_arch_entries() -> Iterator[ArchEntry]:
    """One entry for all sizes. Drafters lead here as well, so that they are refused by name."""
    yield ArchEntry(
        arch=ARCH,
        hf_architectures=(*CLASSES, *UNIFIED, *DRAFTERS),
        model_types=MODEL_TYPES,
        hparams="hf2q_arch_gemma4.hparams:Gemma4HParams",
        catalog=ARCH,
        pre_tokenizers=PRE_TOKENIZERS,
        chat_format=ARCH,
        projector=PROJECTOR,
        side_files=("tokenizer.json", "generation_config.json"),
        has_vision=True,
        smoke_prompts=("The quick brown fox",),
        # the bounds of the families measured so far; none was measured for this one
        thresholds=Thresholds(ppl_ratio_4_6=1.10, ppl_ratio_4_8=1.05, median_kl=0.02),
        disk_floor_gb=100,
        hf_repos=("google/gemma-4-E2B-it", "google/gemma-4-26B-A4B-it", "google/gemma-4-31B-it"),
    )


@hookimpl
def hf2q_tensor_catalogs() -> Iterator[TensorCatalog]:
    """One for the text model, one for the projector."""
    yield text_catalog()
    yield projector_catalog()


@hookimpl
def hf2q_projectors() -> Iterator[ProjectorEntry]:
    """The vision tower."""
    yield ProjectorEntry(
        name=PROJECTOR,
        hparams="hf2q_arch_gemma4.vision:Gemma4TowerHParams",
        catalog=PROJECTOR,
        graph="hf2q_arch_gemma4.graph_tower:Gemma4Tower",
        image="<|image|>",
        marks=("<|image>", "<image|>"),
    )


@hookimpl
def hf2q_forward_graphs() -> Iterator[GraphEntry]:
    """One graph runs all sizes."""
    yield GraphEntry(
        arch=ARCH,
        graph="hf2q_arch_gemma4.graph:Gemma4Graph",
        caches=("kv",),
        images=True,
        cache_bytes="hf2q_arch_gemma4.memory:cache_bytes",
    )


@hookimpl
def hf2q_chat_formats() -> Iterator[ChatFormat]:
    """Reasoning in a channel of its own; a turn ends with <turn|>, or where a tool has to answer.

    Sources: llama.cpp, models/templates/google-gemma-4-31B-it.jinja; common/parsers/gemma4.cpp, which takes reasoning
    without the line break after its marker as well.
    """
    yield ChatFormat(
        name=ARCH,
        reasoning=("<|channel>thought", "<channel|>"),
        end_of_turn=("<turn|>", "<|tool_response>", "<eos>"),
        tools="hf2q_arch_gemma4.calls:GemmaCalls",
    )
