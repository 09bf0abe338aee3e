"""Ids of special tokens, and whether BOS, EOS and SEP are added around a text.

Source of every rule: llama.cpp gguf-py/gguf/vocab.py, `SpecialVocab._try_load_from_tokenizer_json` and
`_try_load_from_config_json`. Named tokens of ``tokenizer_config.json`` are looked up among the added tokens of
``tokenizer.json``; ids of ``config.json`` fill what is left; a list of ids is not used.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from hf2q.errors import ConfigError
from hf2q.formats.tokenizer.files import expect, member
from hf2q.formats.tokenizer.models import BERT, gguf_model
from hf2q.formats.tokenizer.source import TokenizerSource
from hf2q.formats.tokenizer.steps import flatten
from hf2q.types import MetadataField

log = logging.getLogger(__name__)

ID_KEYS = {
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "unk": "tokenizer.ggml.unknown_token_id",
    "sep": "tokenizer.ggml.seperator_token_id",
    "pad": "tokenizer.ggml.padding_token_id",
    "cls": "",
    "mask": "tokenizer.ggml.mask_token_id",
    "eot": "tokenizer.ggml.eot_token_id",
}
"""GGUF keys by role, in the order they are looked for; GGUF has none for ``cls``. `seperator` is GGUF's spelling."""

ADD_KEYS = {role: f"tokenizer.ggml.add_{role}_token" for role in ("bos", "eos", "sep")}


NORMALIZER_KEYS = {key: f"tokenizer.ggml.normalizer.{key}" for key in ("lowercase", "strip_accents")}


def read_special(source: TokenizerSource, n_vocab: int | None = None) -> tuple[MetadataField, ...]:
    """Id fields, then flag fields; ids of `n_vocab` and more are left out. Errors: ConfigError naming file and key."""
    reader = _Reader(source.settings, source.where, gguf_model(source.tokenizer, source.path), n_vocab)
    reader.post_processor(source.tokenizer.get("post_processor"))
    ids = reader.resolve(source.tokenizer.get("added_tokens") or [], source.config)
    reader.check_added(ids)
    fields = [MetadataField.u32(ID_KEYS[role], number) for role, number in ids.items() if ID_KEYS[role]]
    fields += [MetadataField.boolean(ADD_KEYS[role], value) for role, value in reader.add.items() if role in ADD_KEYS]
    return tuple(fields)


def read_normalizer(source: TokenizerSource) -> tuple[MetadataField, ...]:
    """Whether text is put in lower case and loses its accents, where the normalizer says so; null says nothing.

    Source: llama.cpp gguf-py/gguf/vocab.py, `SpecialVocab._parse_normalizer`. Errors: ConfigError for other types.
    """
    found: dict[str, bool | None] = dict.fromkeys(NORMALIZER_KEYS)
    here = f"{source.path}: normalizer"
    for step in flatten(source.tokenizer.get("normalizer"), "normalizers"):
        name = step.get("type")
        if name == "Lowercase":
            found["lowercase"] = True
        elif name == "StripAccents":
            found["strip_accents"] = True
        elif name == "BertNormalizer":
            for key in NORMALIZER_KEYS:
                if key in step:
                    found[key] = None if step[key] is None else member(step, key, bool, here, False)
    return tuple(
        MetadataField.boolean(NORMALIZER_KEYS[key], value) for key, value in found.items() if value is not None
    )


class _Reader:
    """The names of special tokens, as the post-processor may change them, and the flags found on the way."""

    def __init__(self, config: Mapping[str, Any], where: str, model: str, n_vocab: int | None) -> None:
        self.model, self.n_vocab = model, n_vocab
        self.named = dict(config)
        self.configured = bool(config)
        self.where = where
        self.roles = [role for role in ID_KEYS if role != "eot"]
        self.add: dict[str, bool] = {}
        self.processed: set[str] = set()
        self.bos, self.cls = self._name("bos"), self._name("cls")
        self.eos, self.sep = self._name("eos"), self._name("sep")
        if not self.bos and self.cls:
            self.bos = self.named["bos_token"] = self.cls
        if not self.eos and self.sep:
            self.eos = self.named["eos_token"] = self.sep

    def _name(self, role: str) -> str | None:
        value = self.named.get(f"{role}_token")
        if isinstance(value, dict):
            value = value.get("content")
        return value if isinstance(value, str) else None

    def post_processor(self, step: object) -> None:
        """Read what is added around a text. Errors: ConfigError for a step that the flags cannot express."""
        if step is None:
            return
        here = f"{self.where}/tokenizer.json: post_processor"
        table = expect(step, dict, here)
        for entry in expect(table.get("processors", [table]), list, f"{here}.processors"):
            name = expect(entry, dict, here).get("type")
            if name == "ByteLevel":
                self.add.setdefault("bos", False)
                self.add.setdefault("eos", False)
            elif name == "TemplateProcessing":
                self._template(entry, here)
            elif name == "BertProcessing" and self.model == BERT:
                pass  # [CLS] and [SEP], which a reader of a ``bert`` tokenizer adds whatever the flags say
            elif name == "RobertaProcessing":
                self._roberta(entry, here)
            else:
                raise ConfigError(f"{here} has a step {name!r}, which a GGUF tokenizer cannot express")
        self.processed.update(self.add)

    def _roberta(self, entry: Mapping[str, Any], here: str) -> None:
        self.add.update(bos=True, eos=True, sep=True)
        for role, own in (("cls", self.bos), ("sep", self.eos)):
            text = next(iter(expect(entry.get(role) or [own], list, f"{here}.{role}")))
            if not getattr(self, role) and self.configured and text is not None:
                self.named[f"{role}_token"] = expect(text, str, f"{here}.{role}")
                setattr(self, role, text)

    def _template(self, entry: Mapping[str, Any], here: str) -> None:
        single = _pieces(entry, "single", here)
        pair = _pieces(entry, "pair", here)
        first = single[0][1] if len(single) > 1 and single[0][0] == "SpecialToken" else None
        last = single[-1][1] if len(single) > 1 and single[-1][0] == "SpecialToken" else None
        inner = single[1 if first else 0 : -1 if last else None]
        if [what for what, _ in inner] != ["Sequence"]:
            raise ConfigError(
                f"{here}.single adds {[name for what, name in single if what == 'SpecialToken']}; GGUF can express one"
                " token before and one after the text"
            )
        if first:
            self._leading(first, here)
        if last:
            self._trailing(last)
        if pair:
            self._separator(pair, first, last)

    def _leading(self, first: str, here: str) -> None:
        if not self.configured or not self.bos:
            self.bos = self.named["bos_token"] = first
        if first != self.bos:
            raise ConfigError(f"{here}.single begins with {first!r}, which is not the BOS token {self.bos!r}")
        self.add["bos"] = True

    def _trailing(self, last: str) -> None:
        if not self.configured:
            self.eos = last
        elif last != self.eos:
            if "eot" not in self.roles:
                self.roles.append("eot")
            self.named["eot_token"] = self.eos
            self.eos = self.named["eos_token"] = last
        self.add["eos"] = True

    def _separator(self, pair: list[tuple[str, str]], first: str | None, last: str | None) -> None:
        """Whether a separator stands between two texts: A [sep] [eos] B."""
        start = 1 if first and pair[0] == ("SpecialToken", first) else 0
        stop = -1 if last and pair[-1] == ("SpecialToken", last) else None
        middle = pair[start:stop]
        if len(middle) < 3 or middle[0] != ("Sequence", "A") or middle[-1] != ("Sequence", "B"):
            return
        between = middle[1:-1]
        separators = (self.sep, self.eos)
        add = between[0][0] == "SpecialToken" and between[0][1] in separators and not last
        if len(between) == 2 and between[1][0] == "SpecialToken" and between[1][1] in separators:
            add = True
        self.add["sep"] = add
        if add and not self.sep and self.configured:
            self.named["sep_token"] = self.eos

    def resolve(self, added: list[Any], config: Mapping[str, Any]) -> dict[str, int]:
        """Ids by role, in the order found; fills the flags that only ``tokenizer_config.json`` states."""
        ids: dict[str, int] = {}
        numbers: dict[Any, Any] = {}
        for token in added:
            numbers.setdefault(token.get("content"), token.get("id"))
        for role in self.roles if self.configured else ():
            flag = self.named.get(f"add_{role}_token")
            if isinstance(flag, bool) and self.add.setdefault(role, flag) != flag:
                log.warning(
                    "%s: add_%s_token = %s contradicts the post-processor, which counts", self.where, role, flag
                )
            name = self._name(role)
            if name is not None:
                self._set(ids, role, numbers.get(name), "tokenizer.json: added_tokens")
        text_config = config.get("text_config")
        for role in self.roles:
            key = f"{role}_token_id"
            number = config.get(key)
            if number is None and isinstance(text_config, dict):
                number = text_config.get(key)
            self._set(ids, role, number, f"config.json: {key}")
        return ids

    def check_added(self, ids: Mapping[str, int]) -> None:
        """See that a token which is to be added exists: readers fall back on ids of their own otherwise.

        A flag of ``tokenizer_config.json`` without its token has no effect in transformers, so it is written as false.
        Errors: ConfigError when it is the post-processor that adds the token.
        """
        for role in ("bos", "eos"):
            if not self.add.get(role) or role in ids:
                continue
            if role in self.processed:
                raise ConfigError(
                    f"{self.where}: the post-processor adds the {role} token, but no file says which id that is",
                    hint=f"name it as {role}_token in tokenizer_config.json, or {role}_token_id in config.json",
                )
            log.warning("%s: add_%s_token is set, but there is no %s token: written as false", self.where, role, role)
            self.add[role] = False

    def _set(self, ids: dict[str, int], role: str, number: object, place: str) -> None:
        if type(number) is not int:
            return
        if not 0 <= number < 1 << 32:
            raise ConfigError(f"{self.where}/{place} is {number}, expected a token id")
        if self.n_vocab is not None and number >= self.n_vocab:
            log.warning("%s/%s is %d, which is outside the vocabulary: not used", self.where, place, number)
            return
        ids.setdefault(role, number)


def _pieces(entry: Mapping[str, Any], key: str, here: str) -> list[tuple[str, str]]:
    """A template as pairs (``SpecialToken`` or ``Sequence``, its id)."""
    pieces = []
    for piece in expect(entry.get(key) or [], list, f"{here}.{key}"):
        table = expect(piece, dict, f"{here}.{key}")
        if len(table) != 1:
            raise ConfigError(f"{here}.{key} has a piece {table!r}, expected one SpecialToken or Sequence")
        ((what, body),) = table.items()
        pieces.append((what, expect(expect(body, dict, f"{here}.{key}").get("id"), str, f"{here}.{key}.id")))
    return pieces
