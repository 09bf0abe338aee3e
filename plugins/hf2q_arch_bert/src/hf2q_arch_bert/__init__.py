"""BERT and Nomic-BERT embedding models for hf2q: GGUF archs ``bert`` and ``nomic-bert``.

    families     names of the family          hparams     the sizes of one model
    checkpoint   BERT's config.json → sizes   nomic       Nomic-BERT's, in either of its spellings
    pooling      side files → pooling type    keys        GGUF metadata → sizes
    catalog      every tensor                 transforms  how tensors are changed
    tokenizer    its pre-tokenizer           graph       forward passes

This module yields records only; the modules they name are imported when used.
"""

from __future__ import annotations

from collections.abc import Iterator

from hf2q.hookspecs import hookimpl
from hf2q.types import ArchEntry, GraphEntry, TensorCatalog
from hf2q_arch_bert.catalog import bert_catalog, nomic_catalog
from hf2q_arch_bert.families import (
    BERT,
    BERT_CLASSES,
    BERT_MODEL_TYPES,
    MODULES,
    NOMIC,
    NOMIC_CLASSES,
    NOMIC_MODEL_TYPES,
)
from hf2q_arch_bert.tokenizer import PRE_TOKENIZERS

HF2Q_PLUGIN_API = 1
HPARAMS = "hf2q_arch_bert.hparams:BertHParams"


@hookimpl
def hf2q_arch_entries() -> Iterator[ArchEntry]:
    """BERT and Nomic-BERT."""
    yield ArchEntry(
        arch=BERT,
        hf_architectures=BERT_CLASSES,
        model_types=BERT_MODEL_TYPES,
        hparams=HPARAMS,
        catalog=BERT,
        pre_tokenizers=PRE_TOKENIZERS,
        side_files=(MODULES,),
        hf_repos=("sentence-transformers/all-MiniLM-L6-v2", "BAAI/bge-small-en-v1.5"),
    )
    yield ArchEntry(
        arch=NOMIC,
        hf_architectures=NOMIC_CLASSES,
        model_types=NOMIC_MODEL_TYPES,
        hparams=HPARAMS,
        catalog=NOMIC,
        pre_tokenizers=PRE_TOKENIZERS,
        side_files=(MODULES,),
        hf_repos=("nomic-ai/nomic-embed-text-v1.5",),
    )


@hookimpl
def hf2q_tensor_catalogs() -> Iterator[TensorCatalog]:
    """One for each arch."""
    yield bert_catalog()
    yield nomic_catalog()


@hookimpl
def hf2q_forward_graphs() -> Iterator[GraphEntry]:
    """One for each arch; encoders keep no cache."""
    yield GraphEntry(arch=BERT, graph="hf2q_arch_bert.graph:BertGraph", task="embed")
    yield GraphEntry(arch=NOMIC, graph="hf2q_arch_bert.graph:NomicGraph", task="embed")
