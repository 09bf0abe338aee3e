"""`Model`: a loaded model file. What `hf2q.load` returns; everything above works with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Several
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hf2q.backends.graph import ForwardGraph
from hf2q.backends.ops import Ops
from hf2q.errors import ContextLengthError, RequestError, UsageError
from hf2q.serve.events import GenerateRequest, TokenEvent
from hf2q.serve.generation import PREFILL_CHUNK, Generation
from hf2q.serve.sampling import SamplingParams
from hf2q.serve.sequence import Sequence, TokenIds, token_ids
from hf2q.types import ChatFormat, HParams

if TYPE_CHECKING:
    from hf2q.formats.tokenizer import Tokenizer
    from hf2q.types import Float32


class Closeable(Protocol):
    """An open file."""

    def close(self) -> None: ...


class Model:
    """A model that can be asked. Thread-safe: sequences are separate, and weights never change.

    path, name      the file, and its name without ``.gguf``
    arch            GGUF architecture
    hparams         the family's sizes
    metadata        the file's metadata, arrays read when asked for
    tokenizer       see `hf2q.formats.tokenizer.Tokenizer`
    context_length  most tokens of a sequence, prompt and answer together
    n_vocab         number of logits
    backend         name of the backend it runs on
    end_ids         token ids that end a generation
    chat_template   the file's Jinja template, or None
    chat_format     how the family marks reasoning and ends turns, or None
    """

    def __init__(
        self,
        *,
        path: str | Path,
        arch: str,
        hparams: HParams,
        metadata: Mapping[str, Any],
        tokenizer: Tokenizer,
        context_length: int,
        graph: ForwardGraph,
        ops: Ops,
        chat_format: ChatFormat | None = None,
        file: Closeable | None = None,
    ) -> None:
        """Put a model together; `hf2q.serve.load.load` does it from a file, which `close` lets go."""
        self.path = Path(path)
        self.name = self.path.name.removesuffix(".gguf") or self.path.name
        self.arch = arch
        self.hparams = hparams
        self.metadata = metadata
        self.tokenizer = tokenizer
        self.context_length = context_length
        self.n_vocab = graph.n_vocab
        self.backend = ops.name
        template = metadata.get("tokenizer.chat_template")
        self.chat_template: str | None = template if isinstance(template, str) and template else None
        self.chat_format = chat_format
        turn_ends = chat_format.end_of_turn if chat_format is not None else ()
        ids = (tokenizer.id_of(text) for text in turn_ends)
        self.end_ids = frozenset(tokenizer.eos_ids) | {token for token in ids if token is not None}
        self._graph = graph
        self._ops = ops
        self._file = file

    def sequence(self) -> Sequence:
        """A new, empty sequence: token ids in, logits out."""
        return Sequence(self._graph, self._ops)

    def logits(self, ids: TokenIds) -> Float32:
        """Logits float32 (T, V) after each of the T token ids: a list, or an integer array.

        Errors: ContextLengthError for more ids than the context holds, RequestError for ids outside the vocabulary.
        """
        checked = token_ids(ids, self.n_vocab)
        count = len(checked)
        if count > self.context_length:
            raise ContextLengthError(
                f"{count} tokens do not fit the model's context of {self.context_length}",
                code="context_length_exceeded",
            )
        sequence = self.sequence()
        logits = np.empty((count, self.n_vocab), np.float32)
        for start in range(0, count, PREFILL_CHUNK):
            logits[start : start + PREFILL_CHUNK] = sequence.all_logits(checked[start : start + PREFILL_CHUNK])
        return logits

    def generate(
        self,
        prompt: str | TokenIds,
        *,
        max_tokens: int | None = None,
        sampling: SamplingParams | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int | None = None,
        stop: str | Several[str] = (),
        ignore_eos: bool = False,
    ) -> Iterator[TokenEvent]:
        """Generate from a text (special tokens in it are read as such) or token ids, yielding events as they come.

        prompt       no chat template is applied; a text gets BOS where the file asks for it, and never EOS
        max_tokens   most tokens to generate; None leaves it to the context
        sampling     all sampling settings; or give some of temperature, top_k, top_p, min_p and seed, see
                     `SamplingParams` (the default is greedy)
        stop         texts that end the generation
        ignore_eos   go on after tokens that end a generation

        The joined texts of the events are the answer; the last event says why it ended. Errors: RequestError and
        ContextLengthError at once, before the first event is asked for.
        """
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
        fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if sampling is not None and fields:
            raise UsageError(f"give either sampling or single settings, not both: {', '.join(fields)}")
        request = GenerateRequest(
            prompt_ids=self._prompt_ids(prompt),
            sampling=SamplingParams(**fields) if sampling is None else sampling,
            max_tokens=max_tokens,
            stop=_texts(stop),
            ignore_eos=ignore_eos,
        )
        return _events(Generation(self, request))

    def _prompt_ids(self, prompt: str | TokenIds) -> tuple[int, ...]:
        if isinstance(prompt, str):
            # a prompt that ended in EOS would be over
            return tuple(self.tokenizer.encode(prompt, add_bos=self.tokenizer.add_bos))
        return tuple(token_ids(prompt, self.n_vocab).tolist())

    def close(self) -> None:
        """Let the file go. Metadata that was not read yet cannot be read any more; the model runs on."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _texts(stop: str | Several[str]) -> tuple[str, ...]:
    if isinstance(stop, str):
        return (stop,)
    if not isinstance(stop, list | tuple):
        raise RequestError(f"stop is {stop!r:.60}, expected a text or a list of texts", param="stop")
    return tuple(stop)


def _events(generation: Generation) -> Iterator[TokenEvent]:
    while not generation.done:
        yield from generation.step()
