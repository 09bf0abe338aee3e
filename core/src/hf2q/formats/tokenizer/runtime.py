"""Encoding and decoding with a tokenizer rebuilt from GGUF metadata. The serve side's way into this package.

Texts of special tokens are found here; what lies between them goes to the `tokenizers` library, which normalises,
cuts and merges it. So the ids are those that the checkpoint's ``tokenizer.json`` gives, and text that must not be read
as special tokens (what a user typed) can be kept from it: such tokens are not in the merging vocabulary at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from hf2q.errors import LoadError, RequestError, listing
from hf2q.formats.tokenizer.backend import build_backend, tokens_by_text
from hf2q.formats.tokenizer.ending import KEYS, ending_ids
from hf2q.formats.tokenizer.metadata import HINT, PREFIX, TokenizerData, check_metadata
from hf2q.formats.tokenizer.models import BERT, GEMMA4, GPT2, VISIBLE
from hf2q.formats.tokenizer.spelling import spelling_of
from hf2q.formats.tokenizer.stream import Decoder
from hf2q.formats.tokenizer.table import TokenTable
from hf2q.formats.tokenizer.vocabulary import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, ids_of
from hf2q.types import PreTokenizer

_HIDDEN = (CONTROL, UNKNOWN)


def load_tokenizer(metadata: Mapping[str, Any], pre_tokenizers: Iterable[PreTokenizer]) -> Tokenizer:
    """The tokenizer of a GGUF file, from its metadata alone; `pre_tokenizers` are the known ones.

    Those count for byte-level BPE only: how the other models cut text does not depend on a name.
    Errors: LoadError naming the key when the metadata is incomplete or contradicts itself, when its pre-tokenizer is
    not among the known ones, or when `tokenizers` is not installed.
    """
    data = check_metadata(metadata)
    if data.model != GPT2:
        return Tokenizer(data, None)
    known = {record.name: record for record in reversed(tuple(pre_tokenizers)) if record.model == GPT2}
    if data.pre not in known:
        raise LoadError(
            f"{PREFIX}pre is {data.pre!r}; known pre-tokenizers: {listing(known) or 'none'}",
            hint="install the plugin of the model's family; `hf2q plugins` lists what is loaded",
        )
    return Tokenizer(data, known[data.pre])


class Tokenizer:
    """Encodes and decodes text. Made by `load_tokenizer`; immutable and thread-safe.

    model        ``gpt2``, ``gemma4`` or ``bert``
    pre          name of the pre-tokenizer
    n_vocab      number of tokens, unused ones included
    bos_id, eos_id, pad_id   ids that the file names, None when it names none; ``bert`` ends a text with its separator
    unk_id       id of what WordPiece puts for a word that it cannot spell; None for the other models
    eos_ids      every id that ends a generation (see `hf2q.formats.tokenizer.ending`)
    special_ids  ids of control tokens: parsed from text only when asked for, left out by `skip_special`
    suppressed_ids           ids that must never be generated
    add_bos, add_eos         whether the file wants them around a text
    """

    def __init__(self, data: TokenizerData, pre: PreTokenizer | None) -> None:
        self.model, self.pre = data.model, data.pre
        self.n_vocab = len(data.tokens)
        self.bos_id, self.eos_id, self.pad_id = (data.ids.get(role) for role in ("bos", "eos", "pad"))
        if data.model == BERT:
            self.eos_id = data.ids.get("sep")
        self.unk_id = data.ids.get("unk") if data.model == BERT else None
        self.add_bos, self.add_eos = data.add.get("bos", False), data.add.get("eos", False)
        spelling = spelling_of(data.model)
        self._spelling = spelling
        self._table = TokenTable(data.tokens, data.types, spelling)
        plain, self._marked = tokens_by_text(data)
        self.special_ids = frozenset(ids_of(data.types, *_HIDDEN))
        self.suppressed_ids = data.suppressed
        stated = frozenset(data.ids[role] for role in KEYS if role in data.ids)
        self.eos_ids = ending_ids(self._marked, stated)
        for role, number in (("bos", self.bos_id), ("eos", self.eos_id)):
            if data.add.get(role) and number is None:
                raise LoadError(
                    f"{PREFIX}add_{role}_token is set, but the file names no usable {role} token", hint=HINT
                )
        found = self._marked
        if data.model == BERT:  # matched in normalised text, which is the backend's part
            found = {text: number for text, number in found.items() if data.types[number] != USER_DEFINED}
        user = [text for text, number in found.items() if data.types[number] == USER_DEFINED]
        if data.model == GEMMA4:  # parts of a reply that readers are to see, but no text of a user
            user = [text for text in user if text not in VISIBLE]
        self._user_pattern, self._all_pattern = _pattern(user), _pattern(found)
        self._backend = build_backend(data, plain, self._marked, pre, spelling)

    def encode(self, text: str, *, special: bool = True, add_bos: bool | None = None) -> list[int]:
        """Token ids of `text`.

        special  True reads control tokens that are spelled out in `text`; False takes them as ordinary text, so that
                 no id of `special_ids` can come out of it but `unk_id`. User-defined tokens are read either way, except
                 the marks of a ``gemma4`` reply (``<|tool_call>``), which are control tokens but in name
        add_bos  None adds BOS and EOS as the file says, True adds BOS alone, False nothing

        Errors: RequestError for text that is not valid Unicode, and when BOS is asked for and the model has none.
        """
        if add_bos and self.bos_id is None:
            raise RequestError("this model's tokenizer has no BOS token")
        ids: list[int] = []
        if self.bos_id is not None and (add_bos or (add_bos is None and self.add_bos)):
            ids.append(self.bos_id)
        pattern = self._all_pattern if special else self._user_pattern
        start = 0
        for match in pattern.finditer(text) if pattern is not None else ():
            self._extend(ids, text[start : match.start()])
            ids.append(self._marked[match.group()])
            start = match.end()
        self._extend(ids, text[start:])
        if self.eos_id is not None and add_bos is None and self.add_eos:
            ids.append(self.eos_id)
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Text of `ids`; invalid UTF-8 becomes U+FFFD. Errors: RequestError for an id outside the vocabulary."""
        decoder = self.stream(skip_special)
        return "".join([*map(decoder.push, ids), decoder.flush()])

    def stream(self, skip_special: bool = False) -> Decoder:
        """A decoder for one stream of ids; see `Decoder`."""
        return self._table.decoder(self.special_ids if skip_special else frozenset())

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token adds to a text, none for an unused one. Errors: RequestError for an unknown id."""
        return self._table.data(token)

    def token_text(self, token: int) -> str:
        """The token as the vocabulary writes it (``Ġthe``). Errors: RequestError for an unknown id."""
        return self._table.text(token)

    def id_of(self, text: str) -> int | None:
        """Id of the token that the vocabulary writes as `text`; None when there is none, or it is unused."""
        if text in self._marked:
            return self._marked[text]
        found: int | None = self._backend.token_to_id(self._spelling.merged(text, NORMAL))
        return found if found is not None and self._table.text(found) == text else None

    def _extend(self, ids: list[int], text: str) -> None:
        if not text:
            return
        try:
            ids.extend(self._backend.encode(text, add_special_tokens=False).ids)
        except (UnicodeEncodeError, TypeError) as error:
            raise RequestError("the text is not valid Unicode: it holds a lone surrogate") from error


def _pattern(texts: Iterable[str]) -> re.Pattern[str] | None:
    """Matches any of `texts`, the longest where several begin; None when there are none."""
    ordered = sorted(filter(None, texts), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None
