"""The example family: a plain dense decoder with grouped-query attention. GGUF arch ``example``.

hparams   config.json and GGUF metadata → sizes      catalog   every tensor      graph   the forward pass

This module yields records only; the modules they name are imported when used.
"""

from __future__ import annotations

from collections.abc import Iterator

from hf2q.hookspecs import hookimpl
from hf2q.types import ArchEntry, GraphEntry, PreTokenizer, TensorCatalog
from hf2q_example_arch.catalog import CATALOG

HF2Q_PLUGIN_API = 1

PRE = PreTokenizer(
    name="gpt-2",
    split=(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",),
    source="tokenizers, pre_tokenizers/byte_level.rs, RE; llama.cpp, src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_GPT2",
)


@hookimpl
def hf2q_arch_entries() -> Iterator[ArchEntry]:
    """The one member of the family."""
    yield ArchEntry(
        arch="example",
        hf_architectures=("ExampleForCausalLM",),
        model_types=("example",),
        hparams="hf2q_example_arch.hparams:ExampleHParams",
        catalog="example",
        pre_tokenizers=(PRE,),
    )


@hookimpl
def hf2q_tensor_catalogs() -> Iterator[TensorCatalog]:
    """Its tensors."""
    yield CATALOG


@hookimpl
def hf2q_forward_graphs() -> Iterator[GraphEntry]:
    """Its forward pass."""
    graph = "hf2q_example_arch.graph:ExampleGraph"
    yield GraphEntry(arch="example", graph=graph, caches=("kv",))
