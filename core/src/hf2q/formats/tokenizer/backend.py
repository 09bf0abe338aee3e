"""The `tokenizers` library's part: normalising, cutting and merging text that holds no special tokens.

The only module that imports `tokenizers`, and only when a tokenizer is built.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hf2q.errors import LoadError
from hf2q.formats.tokenizer.metadata import HINT, PREFIX, TokenizerData
from hf2q.formats.tokenizer.models import BERT, GEMMA4, MAX_WORD
from hf2q.formats.tokenizer.spelling import ByteLevel
from hf2q.formats.tokenizer.steps import SPACE
from hf2q.formats.tokenizer.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, ids_of
from hf2q.formats.tokenizer.wordpiece import CONTINUATION
from hf2q.types import PreTokenizer

PLAIN = (NORMAL, BYTE)
"""Types of the tokens that text is merged into."""

MARKED = (UNKNOWN, CONTROL, USER_DEFINED)
"""Types of the tokens that are found in text before it is cut."""

CACHED_WORDS = 1000
"""Words whose pieces the library keeps, for ever: of long ones that never come again, its 10,000 take 40 MB."""


def tokens_by_text(data: TokenizerData) -> tuple[dict[str, int], dict[str, int]]:
    """Ids by text: of ordinary tokens, and of those found in text before it is cut. Unused tokens are in neither.

    Errors: LoadError when two tokens in use have the same text.
    """
    types = data.types
    plain = data.tokens.ids(types.translate(bytes(kind in PLAIN for kind in range(256))))
    marked = {data.tokens[number]: number for number in ids_of(types, *MARKED)}
    used = len(types) - types.count(UNUSED)
    if len(plain) + len(marked) != used or not plain.keys().isdisjoint(marked):
        live = [text for text, kind in zip(data.tokens, types, strict=True) if kind != UNUSED]
        ((doubled, count),) = Counter(live).most_common(1)
        raise LoadError(f"{PREFIX}tokens: {count} tokens have the same text {doubled!r}", hint=HINT)
    return plain, marked


def build_backend(
    data: TokenizerData, plain: dict[str, int], marked: Mapping[str, int], pre: PreTokenizer | None, spelling: ByteLevel
) -> Any:
    """A `tokenizers.Tokenizer` over the ordinary tokens `plain`, with their ids; `pre` only for ``gpt2``.

    Text can never become one of `marked`: they are not in its vocabulary, and merges that would form one are left out.
    The unknown token is the exception, which stands for words that WordPiece cannot spell; so are user-defined tokens
    of WordPiece, which are found in normalised text and therefore here.
    Errors: LoadError when `tokenizers` is missing, for a merge that names no token, and for an unusable `pre`.
    """
    try:
        import tokenizers
        from tokenizers import normalizers
    except ImportError as error:
        raise LoadError(
            f"the package tokenizers cannot be imported: {error}", hint='pip install "hf2q[serve]"'
        ) from error
    if data.model == BERT:
        return _word_piece(data, plain, spelling)
    if data.model == GEMMA4:
        backend = tokenizers.Tokenizer(_bpe(data, plain, marked, byte_fallback=True, fuse_unk=True))
        backend.normalizer = normalizers.Replace(" ", SPACE)
        return backend
    assert pre is not None
    backend = tokenizers.Tokenizer(_bpe(data, plain, marked, ignore_merges=pre.ignore_merges))
    _set_steps(backend, pre)
    return backend


def _set_steps(backend: Any, pre: PreTokenizer) -> None:
    from tokenizers import Regex, normalizers, pre_tokenizers

    if pre.normalizer not in ("", "NFC"):
        raise LoadError(f"pre-tokenizer {pre.name!r} has the normalizer {pre.normalizer!r}, expected NFC or none")
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if pre.digits else []
    try:
        steps += [pre_tokenizers.Split(Regex(regex), "isolated") for regex in pre.split]
    except Exception as error:  # the library raises no narrower class
        raise LoadError(f"pre-tokenizer {pre.name!r} has an expression that cannot be compiled: {error}") from error
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=pre.add_prefix_space, use_regex=False))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if pre.normalizer:
        backend.normalizer = normalizers.NFC()


def _word_piece(data: TokenizerData, plain: Mapping[str, int], spelling: ByteLevel) -> Any:
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

    if "unk" not in data.ids:
        raise LoadError(f"{PREFIX}unknown_token_id is missing, expected the id of a token in use", hint=HINT)
    number = data.ids["unk"]
    unknown = data.tokens[number] if data.types[number] not in PLAIN else spelling.merged(data.tokens[number], NORMAL)
    vocab = {spelling.merged(text, NORMAL): token for text, token in plain.items()}
    if len(vocab) != len(plain):
        raise LoadError(f"{PREFIX}tokens: two tokens stand for the same part of a word", hint=HINT)
    added = {
        spelling.merged(text, USER_DEFINED): token
        for token, (text, kind) in enumerate(zip(data.tokens, data.types, strict=True))
        if kind == USER_DEFINED
    }
    backend = Tokenizer(
        models.WordPiece(
            vocab={**vocab, **added, unknown: number},
            unk_token=unknown,
            continuing_subword_prefix=CONTINUATION,
            max_input_chars_per_word=MAX_WORD,
        )
    )
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=data.normalizer["strip_accents"],
        lowercase=data.normalizer["lowercase"],
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.add_tokens([AddedToken(text, normalized=True) for text in added if text])
    return backend


def _bpe(data: TokenizerData, plain: dict[str, int], marked: Mapping[str, int], **options: int) -> Any:
    from tokenizers import models

    options["cache_capacity"] = CACHED_WORDS
    try:
        return models.BPE(vocab=plain, merges=data.merges, **options)
    except Exception:  # the library raises no narrower class; what is wrong with the merges is found out below
        merges = _usable_merges(data.merges, plain, marked)
    try:
        return models.BPE(vocab=plain, merges=merges, **options)
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
