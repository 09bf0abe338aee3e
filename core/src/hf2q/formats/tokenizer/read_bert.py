"""GGUF's ``bert`` tokenizer: WordPiece, whose words begin with U+2581 where BERT marks what continues a word.

Source: llama.cpp conversion/bert.py, `BertModel.set_vocab`; conversion/base.py, `get_vocab_base`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf2q.errors import ConfigError
from hf2q.formats.tokenizer.added import AddedToken, read_added_tokens
from hf2q.formats.tokenizer.files import MAX_JSON_BYTES, expect, member, read_bounded
from hf2q.formats.tokenizer.models import BERT
from hf2q.formats.tokenizer.source import TokenizerSource
from hf2q.formats.tokenizer.special import ID_KEYS, read_normalizer, read_special
from hf2q.formats.tokenizer.steps import SPACE, flatten
from hf2q.formats.tokenizer.template import read_templates
from hf2q.formats.tokenizer.vocabulary import CONTROL, check_distinct, check_numbering, read_vocabulary, token_arrays
from hf2q.formats.tokenizer.wordpiece import CONTINUATION, DEFAULT_IDS, clean_up
from hf2q.types import MetadataField, PreTokenizer, ValueType


def bert_fields(source: TokenizerSource, vocab_size: int, record: PreTokenizer) -> tuple[MetadataField, ...]:
    """All fields, beginning with the number of token types. Arguments and errors: `hf2q.formats.tokenizer.read`."""
    vocab = read_vocabulary(source.tokenizer["model"], source.path)
    check_numbering(vocab, source.path)
    added = read_added_tokens(source, vocab, BERT)
    _check_vocab_txt(source, vocab, added)
    _check_settings(source)
    texts, types = token_arrays(vocab, added, vocab_size, source.where, clean_up)
    tokens = [text if kind == CONTROL else _phantom(text) for text, kind in zip(texts, types, strict=True)]
    check_distinct(tokens, types, source.where)
    special = read_special(source, vocab_size)
    _check_ids(source, vocab, special)
    types_of_tokens = member(source.config, "type_vocab_size", int, f"{source.where}/config.json", 1)
    return (
        MetadataField.u32("tokenizer.ggml.token_type_count", types_of_tokens),
        MetadataField.string("tokenizer.ggml.model", BERT),
        MetadataField.string("tokenizer.ggml.pre", record.name),
        MetadataField.array("tokenizer.ggml.tokens", ValueType.STRING, tokens),
        MetadataField.array("tokenizer.ggml.token_type", ValueType.INT32, types),
        *special,
        *read_templates(source.directory, source.settings),
        *read_normalizer(source),
    )


def _phantom(text: str) -> str:
    return text.removeprefix(CONTINUATION) if text.startswith(CONTINUATION) else SPACE + text


def _check_vocab_txt(source: TokenizerSource, vocab: Mapping[str, int], added: Mapping[int, AddedToken]) -> None:
    """See that ``vocab.txt``, where there is one, says what ``tokenizer.json`` says. Errors: ConfigError."""
    path = source.directory / "vocab.txt"
    data = read_bounded(path, MAX_JSON_BYTES)
    if data is None:
        return
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    lines = text.removesuffix("\n").split("\n")
    known = {number: word for word, number in vocab.items()}
    known.update({number: token.content for number, token in added.items()})
    for number in range(max(len(lines), len(vocab))):
        listed = lines[number] if number < len(lines) else None
        if listed != known.get(number):
            raise ConfigError(
                f"{path} has {listed!r} for token {number}, tokenizer.json has {known.get(number)!r}",
                hint="the two files belong to different models; remove the one that is wrong",
            )


def _check_settings(source: TokenizerSource) -> None:
    """See that ``tokenizer_config.json`` does not contradict the normalizer of ``tokenizer.json``.

    transformers would follow the former, llama.cpp's converter the latter. Errors: ConfigError naming the key.
    """
    where = f"{source.where}/tokenizer_config.json"
    (normalizer,) = [
        step
        for step in flatten(source.tokenizer.get("normalizer"), "normalizers")
        if step.get("type") == "BertNormalizer"
    ] or [{}]
    if not normalizer:
        return
    here = f"{source.path}: normalizer"
    lowercase = member(normalizer, "lowercase", bool, here, True)
    chinese = member(normalizer, "handle_chinese_chars", bool, here, True)
    strip = member(normalizer, "strip_accents", bool, here, lowercase)
    stated = {
        "do_lower_case": (member(source.settings, "do_lower_case", bool, where, lowercase), lowercase),
        "tokenize_chinese_chars": (member(source.settings, "tokenize_chinese_chars", bool, where, chinese), chinese),
        "strip_accents": (member(source.settings, "strip_accents", bool, where, strip), strip),
    }
    for key, (setting, found) in stated.items():
        if setting != found:
            raise ConfigError(
                f"{where}: {key} is {str(setting).lower()}, but the normalizer of tokenizer.json does the opposite",
                hint="make the two files agree: load the tokenizer with AutoTokenizer and save it again",
            )


def _check_ids(source: TokenizerSource, vocab: Mapping[str, int], special: tuple[MetadataField, ...]) -> None:
    """See that readers will know the unknown token, and those at both ends of a text. Errors: ConfigError."""
    found: dict[str, Any] = {**DEFAULT_IDS, **{field.key: field.value for field in special}}
    model = source.tokenizer["model"]
    unknown = expect(model.get("unk_token"), str, f"{source.path}: model.unk_token")
    if unknown not in vocab:
        raise ConfigError(f"{source.path}: model.unk_token is {unknown!r}, which is not in the vocabulary")
    if found[ID_KEYS["unk"]] != vocab[unknown]:
        raise ConfigError(
            f"{source.where}: the unknown token {unknown!r} has the id {vocab[unknown]}, but GGUF would say"
            f" {found[ID_KEYS['unk']]}",
            hint=f"name it as unk_token in tokenizer_config.json and list it under added_tokens in {source.path}",
        )
    named = {field.key for field in special}
    for role, default in (("bos", "[CLS]"), ("sep", "[SEP]")):
        key = ID_KEYS[role]
        if key not in named and vocab.get(default) != DEFAULT_IDS[key]:
            raise ConfigError(
                f"{source.where}: no file says which id the token {default} has, which every text gets",
                hint="name it as cls_token or sep_token in tokenizer_config.json",
            )
