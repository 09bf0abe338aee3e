"""A model that says what a script wants: engine and server behaviour is tested with it, without weights.

    model = scripted_model("Tokyo")                              # answers every chat so
    model = scripted_model(lambda prompt: prompt.upper())        # from the text of the conversation
    model = scripted_model(script=lambda ids: (ids[-1] + 1) % 100)

`scripted_model` gives a real `hf2q.serve.model.Model` with a real tokenizer (one token for each byte, ChatML marks)
over a `ScriptedGraph`, which follows `hf2q.backends.graph.ForwardGraph` and obeys the laws of a real graph: the next
token depends only on the sequence so far, however that was fed, and rows of a batch do not see each other. A script
may block or raise, and `ScriptedGraph.before` is called with every piece of work: that is how slow and failing models
are tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hf2q.backends.cache import Cache, advance
from hf2q.types import ChatFormat, MetadataField, PreTokenizer, Record, TensorInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hf2q.formats.tokenizer import Tokenizer
    from hf2q.serve.model import Model

Script = Callable[[tuple[int, ...]], int]
"""All ids so far -> the id that comes next."""

MARGIN = 50.0
"""By how much the logit of the scripted token exceeds the others (0): its probability is 1 within float32."""

MOST_PLACES = 1 << 16
"""Positions, of all sequences together, whose logits may still be asked for."""


def after(marker: Sequence[int], reply: Sequence[int], *, then: int) -> Script:
    """A script that says `reply` after the last occurrence of the ids `marker`, and `then` (say, EOS) for ever after.

    Without the marker in the sequence it says `then`.
    """
    wanted = tuple(marker)

    def script(ids: tuple[int, ...]) -> int:
        for at in range(len(ids) - len(wanted), -1, -1):
            if ids[at : at + len(wanted)] == wanted:
                said = len(ids) - at - len(wanted)
                return reply[said] if said < len(reply) else then
        return then

    return script


class History:
    """The cache part of the scripted graph: the ids so far. `trimmable` False makes it a recurrent layer.

    bytes_per_token  what it seems to take: it holds an array of zeros of that size
    """

    def __init__(self, *, trimmable: bool = True, bytes_per_token: int = 0) -> None:
        self.trimmable = trimmable
        self.bytes_per_token = bytes_per_token
        self.ids: tuple[int, ...] = ()

    @property
    def endless(self) -> bool:
        """Whether it can be cut back to any position."""
        return self.trimmable

    def bytes_after(self, tokens: int) -> int:
        """What it will take once `tokens` more are in."""
        return self.bytes_per_token * (len(self.ids) + tokens)

    def can_trim(self, position: int) -> bool:
        """Anywhere, or to the beginning only."""
        return self.trimmable or position == 0

    def trim(self, position: int) -> None:
        """Forget the ids from `position` on."""
        self.ids = self.ids[:position]

    def copy(self) -> History:
        """An independent part with the same content."""
        other = History(trimmable=self.trimmable, bytes_per_token=self.bytes_per_token)
        other.ids = self.ids
        return other

    def arrays(self) -> Iterator[Any]:
        """Zeros, or none."""
        if self.bytes_per_token and self.ids:
            yield np.zeros(self.bytes_per_token * len(self.ids), np.uint8)

    def save(self) -> dict[str, NDArray[Any]]:
        """The ids."""
        return {"ids": np.array(self.ids, np.int64)}

    def restore(self, saved: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `save` gave."""
        self.ids = tuple(saved["ids"].tolist())


class ScriptedGraph:
    """A forward graph whose logits force the tokens of `script`.

    n_vocab    number of logits V
    trimmable  False behaves as a graph with recurrent layers does
    bytes_per_token  what its caches seem to take
    before     called with (rows, tokens) before each piece of work; may wait or raise
    calls      (rows, tokens) of every call so far, for tests of batching and scheduling
    """

    def __init__(
        self,
        script: Script,
        *,
        n_vocab: int,
        trimmable: bool = True,
        bytes_per_token: int = 0,
        before: Callable[[int, int], None] | None = None,
    ) -> None:
        self.script = script
        self.bytes_per_token = bytes_per_token
        self.before = before
        self.n_vocab = n_vocab
        self.trimmable = trimmable
        self.calls: list[tuple[int, int]] = []
        self._shapes: dict[tuple[int, int], tuple[int, int]] = {}
        self._places: dict[int, tuple[tuple[int, ...], int]] = {}
        self._next_place = 0

    def new_cache(self) -> Cache:
        """An empty cache."""
        return Cache([History(trimmable=self.trimmable, bytes_per_token=self.bytes_per_token)])

    def hidden(self, ids: NDArray[np.int32], caches: Sequence[Cache]) -> Any:
        """ids (B, T) -> (B, T, 1): for each position a number by which `head` finds the sequence up to it."""
        rows, tokens = ids.shape
        self.calls.append(self._shapes.setdefault((rows, tokens), (rows, tokens)))  # for hours, in little memory
        if self.before is not None:
            self.before(rows, tokens)
        assert len(caches) == rows, f"{len(caches)} caches for {rows} rows"
        first = self._room_for(rows * tokens)
        for cache, new in zip(caches, ids.tolist(), strict=True):
            part = cache.parts[0]
            assert isinstance(part, History)
            part.ids += tuple(new)
            for t in range(tokens):
                self._places[self._next_place] = (part.ids, cache.position + t + 1)
                self._next_place += 1
        advance(caches, tokens)
        return np.arange(first, first + rows * tokens, dtype=np.float32).reshape(rows, tokens, 1)

    def _room_for(self, places: int) -> int:
        """Forget the earliest places when there are many; numbers begin again before float32 confuses them."""
        while len(self._places) > MOST_PLACES:
            del self._places[next(iter(self._places))]
        if self._next_place + places >= 1 << 24:
            self._next_place = 0
        return self._next_place

    def head(self, hidden: Any) -> Any:
        """Positions (..., 1) -> logits float32 (..., V): `MARGIN` at the scripted token, 0 elsewhere.

        The script is asked here, so only about positions whose logits are wanted.
        """
        places = np.asarray(hidden, np.float32).astype(np.int64)
        tokens = np.array([self._next(place) for place in places.ravel().tolist()]).reshape(places.shape)
        logits = np.zeros((*places.shape[:-1], self.n_vocab), np.float32)
        np.put_along_axis(logits, tokens, MARGIN, axis=-1)
        return logits

    def _next(self, place: int) -> int:
        row, length = self._places[place]
        token = self.script(row[:length])
        if not 0 <= token < self.n_vocab:
            raise ValueError(f"the script says {token}, the vocabulary has {self.n_vocab}")
        return token


# ------------------------------------------------------------------------------------------------- a whole model

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML."""
MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
REASONING = ("<think>", "</think>")
ASSISTANT = "<|im_start|>assistant\n"


class ScriptedHParams(Record, frozen=True, kw_only=True):
    """Sizes of a model that has none but its vocabulary."""

    n_vocab: int
    layer_kinds: tuple[str, ...] = ()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], tensors: Iterable[TensorInfo], *, mtp: bool) -> ScriptedHParams:
        """From ``vocab_size``."""
        return cls(n_vocab=config["vocab_size"])

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> ScriptedHParams:
        """From the length of the token list."""
        return cls(n_vocab=len(metadata["tokenizer.ggml.tokens"]))

    @property
    def symbols(self) -> Mapping[str, int]:
        """The vocabulary's size."""
        return {"n_vocab": self.n_vocab}

    def metadata(self) -> tuple[MetadataField, ...]:
        """None."""
        return ()


def scripted_tokenizer() -> Tokenizer:
    """256 byte tokens, one merge (``Ġt``), the ChatML marks as control tokens, ``<think>`` and ``</think>``."""
    from hf2q.formats.tokenizer import load_tokenizer

    return load_tokenizer(_tokenizer_metadata(), [PreTokenizer(name="scripted")])


def scripted_model(
    reply: str | Callable[[str], str] = "",
    *,
    script: Script | None = None,
    context_length: int = 4096,
    chat_template: str | None = TEMPLATE,
    trimmable: bool = True,
    bytes_per_token: int = 0,
    before: Callable[[int, int], None] | None = None,
    name: str = "scripted",
) -> Model:
    """A model whose answers are given.

    reply   the text of every answer, or a function from the text of the conversation (all before the last
            ``<|im_start|>assistant``) to it; the answer ends with ``<|im_end|>``. Without that mark in the prompt the
            model ends at once
    script  instead of `reply`: any function from all ids so far to the next id
    name    model name; the rest as in `ScriptedGraph`
    """
    from hf2q.backends.reference import ReferenceOps
    from hf2q.serve.model import Model

    tokenizer = scripted_tokenizer()
    metadata = _tokenizer_metadata()
    if chat_template is not None:
        metadata["tokenizer.chat_template"] = chat_template
    graph = ScriptedGraph(
        script or _answering(tokenizer, reply),
        n_vocab=tokenizer.n_vocab,
        trimmable=trimmable,
        bytes_per_token=bytes_per_token,
        before=before,
    )
    return Model(
        path=f"{name}.gguf",
        arch="scripted",
        hparams=ScriptedHParams(n_vocab=tokenizer.n_vocab),
        metadata=metadata,
        tokenizer=tokenizer,
        context_length=context_length,
        graph=graph,
        ops=ReferenceOps(threads=1),
        chat_format=ChatFormat(name="scripted", reasoning=REASONING, end_of_turn=("<|im_end|>",)),
    )


def _answering(tokenizer: Tokenizer, reply: str | Callable[[str], str]) -> Script:
    marker = tuple(tokenizer.encode(ASSISTANT))
    end = tokenizer.encode("<|im_end|>")[0]

    def script(ids: tuple[int, ...]) -> int:
        for at in range(len(ids) - len(marker), -1, -1):
            if ids[at : at + len(marker)] == marker:
                text = reply if isinstance(reply, str) else reply(tokenizer.decode(ids[:at]))
                wanted = [*tokenizer.encode(text), end]
                said = len(ids) - at - len(marker)
                return wanted[said] if said < len(wanted) else end
        return end

    return script


def _tokenizer_metadata() -> dict[str, Any]:
    from hf2q.formats.tokenizer.alphabet import CHAR_OF_BYTE
    from hf2q.formats.tokenizer.vocabulary import CONTROL, NORMAL, USER_DEFINED

    plain = [*(CHAR_OF_BYTE[byte] for byte in range(256)), "Ġt"]
    tokens = [*plain, *MARKS, *REASONING]
    types = [NORMAL] * len(plain) + [CONTROL] * len(MARKS) + [USER_DEFINED] * len(REASONING)
    return {
        "general.architecture": "scripted",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "scripted",
        "tokenizer.ggml.tokens": tuple(tokens),
        "tokenizer.ggml.token_type": tuple(types),
        "tokenizer.ggml.merges": ("Ġ t",),
        "tokenizer.ggml.eos_token_id": tokens.index("<|endoftext|>"),
    }
