"""The `tokenizers` library's part: normalising, cutting and merging text that holds no special tokens.

The only module that imports `tokenizers`, and only when a tokenizer is built.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hf2q.errors import LoadError
from hf2q.formats.tokenizer.metadata import HINT, PREFIX, TokenizerData
from hf2q.formats.tokenizer.vocabulary import BYTE, NORMAL, UNUSED
from hf2q.types import PreTokenizer

PLAIN = (NORMAL, BYTE)
"""Types of the tokens that text is merged into."""


def tokens_by_text(data: TokenizerData) -> tuple[dict[str, int], dict[str, int]]:
    """Ids by text: of ordinary tokens, and of those found in text before it is cut. Unused tokens are in neither.

    Errors: LoadError when two tokens in use have the same text.
    """
    plain: dict[str, int] = {}
    marked: dict[str, int] = {}
    used = 0
    for number, (text, kind) in enumerate(zip(data.tokens, data.types, strict=True)):
        if kind != UNUSED:
            used += 1
            (plain if kind in PLAIN else marked)[text] = number
    if len(plain) + len(marked) != used or not plain.keys().isdisjoint(marked):
        live = [text for text, kind in zip(data.tokens, data.types, strict=True) if kind != UNUSED]
        ((doubled, count),) = Counter(live).most_common(1)
        raise LoadError(f"{PREFIX}tokens: {count} tokens have the same text {doubled!r}", hint=HINT)
    return plain, marked


def build_backend(data: TokenizerData, plain: dict[str, int], marked: Mapping[str, int], pre: PreTokenizer) -> Any:
    """A `tokenizers.Tokenizer` over the ordinary tokens `plain`, with their ids.

    Text can never become one of `marked`: they are not in its vocabulary, and merges that would form one are left out.
    Errors: LoadError when `tokenizers` is missing, for a merge that names no token, and for an unusable `pre`.
    """
    try:
        import tokenizers
        from tokenizers import normalizers, pre_tokenizers
    except ImportError as error:
        raise LoadError(
            f"the package tokenizers cannot be imported: {error}", hint='pip install "hf2q[serve]"'
        ) from error
    if pre.normalizer not in ("", "NFC"):
        raise LoadError(f"pre-tokenizer {pre.name!r} has the normalizer {pre.normalizer!r}, expected NFC or none")
    backend = tokenizers.Tokenizer(_model(data, plain, marked, pre.ignore_merges))
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if pre.digits else []
    try:
        steps += [pre_tokenizers.Split(tokenizers.Regex(regex), "isolated") for regex in pre.split]
    except Exception as error:  # the library raises no narrower class
        raise LoadError(f"pre-tokenizer {pre.name!r} has an expression that cannot be compiled: {error}") from error
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=pre.add_prefix_space, use_regex=False))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if pre.normalizer:
        backend.normalizer = normalizers.NFC()
    return backend


def _model(data: TokenizerData, plain: dict[str, int], marked: Mapping[str, int], ignore_merges: bool) -> Any:
    from tokenizers import models

    try:
        return models.BPE(vocab=plain, merges=data.merges, ignore_merges=ignore_merges)
    except Exception:  # the library raises no narrower class; what is wrong with the merges is found out below
        merges = _usable_merges(data.merges, plain, marked)
    try:
        return models.BPE(vocab=plain, merges=merges, ignore_merges=ignore_merges)
    except Exception as error:
        raise LoadError(f"the tokenizer's vocabulary cannot be used: {error}", hint=HINT) from error


def _usable_merges(
    merges: Sequence[tuple[str, str]], plain: Mapping[str, int], marked: Mapping[str, int]
) -> list[tuple[str, str]]:
    """`merges` without those that have to do with `marked`. Errors: LoadError for a merge that names no token."""
    usable = []
    for left, right in merges:
        missing = [part for part in (left, right, left + right) if part not in plain]
        if not missing:
            usable.append((left, right))
        for part in missing:
            if part not in marked:
                raise LoadError(f"{PREFIX}merges: {left!r} {right!r} needs {part!r}, which is no token", hint=HINT)
    return usable
