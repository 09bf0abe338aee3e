"""Names of files that a server gives, and which of them a conversion needs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from hf2q.errors import HubError
from hf2q.formats.safetensors.shards import INDEX

CONFIG = "config.json"
CARD = "README.md"
MODULES = "modules.json"

WANTED = frozenset(
    {
        CONFIG,
        CARD,
        INDEX,
        MODULES,
        "generation_config.json",
        # what the tokenizer is, in any of its forms
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "tiktoken.model",
        "spiece.model",
        "sentencepiece.bpe.model",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "chat_template.jinja",
        "chat_template.json",
        # what images and sounds become
        "preprocessor_config.json",
        "processor_config.json",
        "image_processor_config.json",
        "video_preprocessor_config.json",
        "feature_extractor_config.json",
        # embedders: pooling and prompts
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        # what says that weights are quantized already
        "hf_quant_config.json",
        "quantize_config.json",
        "quant_config.json",
    }
)
"""Small files beside ``config.json`` that a conversion may read or copy."""

_TEMPLATE = re.compile(r"additional_chat_templates/[^/]+\.jinja")
_MODULE = re.compile(r"[^/]+/config\.json")

MAX_SMALL_BYTES = 1 << 30
"""No tokenizer is larger; what claims to be is not fetched before the weights are known to be wanted."""


def check_listing(paths: Iterable[str], where: str) -> None:
    """Refuse names that leave the repository. Errors: HubError naming the first."""
    for path in paths:
        parts = path.split("/")
        if not path or path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in parts):
            raise HubError(f"{where} lists a file {path[:200]!r}, expected a name inside the repository")


def check_selected(paths: Iterable[str], where: str) -> None:
    """Refuse names that would be something else on some system. Errors: HubError naming the first."""
    check_listing(paths := tuple(paths), where)
    for path in paths:
        parts = PurePosixPath(path).parts
        if not path.isprintable() or any(c in path for c in '\\:*?"<>|') or any(len(p.encode()) > 255 for p in parts):
            raise HubError(f"{where} lists a file {path[:200]!r}, which is no name for a file")


def small_files(paths: Iterable[str]) -> tuple[str, ...]:
    """Of all files of a repository those that say what the model is; no weights."""
    names = set(paths)
    found = {name for name in names if name in WANTED or _TEMPLATE.fullmatch(name)}
    if MODULES in names:
        found |= {name for name in names if _MODULE.fullmatch(name)}
    return tuple(sorted(found))
