"""A model's tokens as llguidance wants them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from hf2q.errors import LoadError

if TYPE_CHECKING:
    from hf2q.formats.tokenizer import Tokenizer


def token_table(tokenizer: Tokenizer, *, n_vocab: int, end_ids: Collection[int], visible: Collection[str] = ()) -> Any:
    """An `llguidance.LLTokenizer` over `n_vocab` tokens, those of the model's logits.

    A grammar speaks of bytes, and a token may come where its bytes may: also one in the middle of a character, or of a
    marker. Control tokens have none; they, the rows that pad the vocabulary, unused and suppressed tokens are never
    allowed, and `end_ids` only where a form is complete. Control tokens whose text is part of one of the texts
    `visible` (markers that readers of the answer see) count as text.

    It takes about 0.6 s for 250,000 tokens, without holding the interpreter lock for most of it.
    Errors: LoadError when llguidance is not installed, or no token ends a generation.
    """
    try:
        from llguidance import LLTokenizer
    except ImportError as error:
        raise LoadError(
            f"the package llguidance cannot be imported: {error}", hint='pip install "hf2q[serve]"'
        ) from error
    ends = sorted(token for token in end_ids if token < n_vocab)
    if not ends:
        raise LoadError("no token of the vocabulary ends a generation, so no answer can be held to a form")
    source = _Source(tokenizer, n_vocab, ends, visible)
    return LLTokenizer(source, eos_token=ends, slices=LLTokenizer.json_slices())  # type: ignore[arg-type]


class _Source:
    """What LLTokenizer reads (source: llguidance, python_ext/src/py.rs, `PyTokenizer::py_new`)."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, n_vocab: int, ends: Sequence[int], visible: Collection[str]) -> None:
        known = min(n_vocab, tokenizer.n_vocab)
        controls = {token for token in tokenizer.special_ids if token < known}
        shown = {
            token for token in controls if (text := tokenizer.token_text(token)) and any(text in v for v in visible)
        }
        self._hidden = (controls - shown) | set(ends)
        self.eos_token_id = ends[0]
        self.special_token_ids = sorted(self._hidden)
        self.tokens = [tokenizer.token_bytes(token) for token in range(known)] + [b""] * (n_vocab - known)
        for token in tokenizer.suppressed_ids:
            if token < known and token not in ends:
                self.tokens[token] = b""
        for token, data in enumerate(self.tokens):
            if data.startswith(b"\xff"):  # no part of any text; llguidance marks control tokens so
                self.tokens[token] = b""
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        """How the model would write a text that can be no other: llguidance then allows these tokens alone.

        Where the tokenizer gives back another text (it normalises, or finds a control token), one token a byte.
        """
        data = text.encode() if isinstance(text, str) else bytes(text)
        words = data.decode()  # llguidance asks about whole characters only
        for special in (True, False):
            ids = self._tokenizer.encode(words, special=special, add_bos=False)
            if self._hidden.isdisjoint(ids) and b"".join(self.tokens[token] for token in ids) == data:
                return ids
        return [token for byte in data if (token := self._bytes().get(byte)) is not None]

    def _bytes(self) -> dict[int, int]:
        return {
            data[0]: token for token, data in enumerate(self.tokens) if len(data) == 1 and token not in self._hidden
        }
