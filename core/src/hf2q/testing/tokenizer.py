"""`TokenizerContract`: a family's pre-tokenizers, from tokenizer.json over GGUF metadata back to the same ids."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hf2q.formats.tokenizer import load_tokenizer, read_tokenizer
from hf2q.formats.tokenizer.files import read_object
from hf2q.testing.checkpoints import SPECIAL, write_tokenizer
from hf2q.testing.contract import Contract, not_checked

if TYPE_CHECKING:
    from hf2q.formats.tokenizer import Tokenizer

TINY = 300
"""Tokens of a tiny tokenizer."""

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    " leading space,  two,   three and trailing   ",
    "tabs\tand\nnewlines\r\n\r\n  and\n\n\nmore \n ",
    "naïve café, cafe\u0301 — Ünïcödé Ångström",
    "東京は日本の首都です。한국어 中文 ไทย हिन्दी עברית العربية",
    "👩‍👩‍👧‍👦 🗼 👍🏽 🇯🇵 \U0001f600",
    "1 12 123 1234 12345 3.14159 1,000,000 ٣٤٥ ½",
    "def f(x: int) -> str:\n    return f'{x!r}'  # it's we'll I'D don't\n\tif x>=0: pass",
    "the in he 'the' _the_ the1the ththe Thé",
    "\u200b\ufeff\xa0nbsp\u3000wide \x00\x01\x7f",
    "",
    " ",
    "a",
)
"""What tokenizers stumble over; each is also tried with special tokens glued to it."""


class TokenizerContract(Contract):
    """Subclass it, set `plugin` and `arch`, and pytest runs the checks.

    tokenizer  a folder with a real ``tokenizer.json`` (and ``tokenizer_config.json``) of the family; a tiny one is made
               for each of the family's pre-tokenizers besides
    n_vocab    its number of tokens, as ``config.json`` has it
    """

    arch: ClassVar[str] = ""
    tokenizer: ClassVar[Path | str | None] = None
    n_vocab: ClassVar[int] = 0

    def folders(self, tmp_path: Path) -> Iterator[tuple[Path, int, str]]:
        """Tokenizers to try: folder, number of tokens, and the name that is expected for its structure."""
        known = self.plugins().arch(self.arch).pre_tokenizers
        if not known:
            not_checked("the family names no pre-tokenizer")
        for place, pre in enumerate(known):
            folder = tmp_path / f"{place}-{pre.name}"  # one name may have several spellings
            folder.mkdir()
            n_vocab = pre.n_tokens or TINY
            write_tokenizer(folder, pre, n_vocab)
            yield folder, n_vocab, pre.name
        if self.tokenizer is not None:
            assert self.n_vocab, "set n_vocab as well"
            yield Path(self.tokenizer), self.n_vocab, ""

    def rebuilt(self, folder: Path, n_vocab: int) -> Tokenizer:
        """The tokenizer that a GGUF file made from `folder` gives."""
        known = self.plugins().arch(self.arch).pre_tokenizers
        fields = read_tokenizer(folder, n_vocab, {}, known)
        return load_tokenizer({field.key: field.value for field in fields}, known)

    def test_every_structure_is_recognised(self, tmp_path: Path) -> None:
        """A tokenizer.json with the structure of a record is named by it: no two records are alike."""
        for folder, n_vocab, name in self.folders(tmp_path):
            if name:
                assert self.rebuilt(folder, n_vocab).pre == name

    def test_ids_equal_those_of_the_source(self, tmp_path: Path) -> None:
        """On every text, alone and with special tokens glued to it."""
        for folder, n_vocab, _ in self.folders(tmp_path):
            source, found = original(folder), self.rebuilt(folder, n_vocab)
            specials = list_of_specials(folder)
            for text in TEXTS:
                for glued in (text, *(f"{text}{mark}{text}{mark}" for mark in specials[:3])):
                    expected = source.encode(glued, add_special_tokens=False).ids
                    assert found.encode(glued, add_bos=False) == expected, f"{folder.name}: {glued!r}"

    def test_what_is_put_around_a_text_is_that_of_the_source(self, tmp_path: Path) -> None:
        """BOS, EOS and their like, of tokenizers that always want them (``gemma4``, ``bert``)."""
        for folder, n_vocab, _ in self.folders(tmp_path):
            source, found = original(folder), self.rebuilt(folder, n_vocab)
            for text in TEXTS if found.model != "gpt2" else ():
                assert found.encode(text) == source.encode(text).ids, f"{folder.name}: {text!r}"

    def test_text_comes_back(self, tmp_path: Path) -> None:
        """Decoding what was encoded gives the text, normalised as the tokenizer normalises; streamed or whole.

        WordPiece does not keep text: what the source's decoder makes of it is expected then.
        """
        for folder, n_vocab, _ in self.folders(tmp_path):
            source, found = original(folder), self.rebuilt(folder, n_vocab)
            records = {pre.name: pre for pre in self.plugins().arch(self.arch).pre_tokenizers}
            pre = records[found.pre]
            for text in TEXTS:
                ids = found.encode(text, add_bos=False)
                expected = unicodedata.normalize("NFC", text) if pre.normalizer == "NFC" else text
                if pre.add_prefix_space and text and not text.startswith(" "):
                    expected = f" {expected}"
                if found.model == "bert":
                    expected = source.decode(ids, skip_special_tokens=False)
                assert found.decode(ids) == expected, f"{folder.name}: {text!r}"
                stream = found.stream()
                assert "".join([*(stream.push(token) for token in ids), stream.flush()]) == expected

    def test_special_tokens_can_be_kept_out(self, tmp_path: Path) -> None:
        """Text that a user typed never becomes a control token unless asked for."""
        for folder, n_vocab, _ in self.folders(tmp_path):
            found = self.rebuilt(folder, n_vocab)
            for mark in list_of_specials(folder):
                ids = found.encode(f"say {mark}!", special=False, add_bos=False)
                assert not found.special_ids - {found.unk_id} & set(ids), f"{folder.name}: {mark}"

    def test_a_real_tokenizer_was_tried(self) -> None:
        """Tiny ones have few merges: a published tokenizer finds more."""
        if self.tokenizer is None:
            not_checked("no tokenizer of a published model; set `tokenizer` and `n_vocab`")


def original(folder: Path) -> Any:
    """The source's tokenizer, run by the `tokenizers` library itself."""
    import tokenizers

    source = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    source.no_truncation()
    source.no_padding()
    return source


def list_of_specials(folder: Path) -> list[str]:
    """Texts of the special tokens in a tokenizer.json."""
    found = read_object(folder / "tokenizer.json") or {}
    return [entry["content"] for entry in found.get("added_tokens", ()) if entry.get("special")] or list(SPECIAL)
