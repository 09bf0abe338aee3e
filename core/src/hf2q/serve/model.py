"""`Model`: a loaded model file. What `hf2q.load` returns; everything above works with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Several
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack, cast

import numpy as np

from hf2q.backends.graph import DraftHead, EncoderGraph, ForwardGraph
from hf2q.backends.ops import Ops
from hf2q.errors import ContextLengthError, RequestError, UsageError
from hf2q.serve import pooling as pooled
from hf2q.serve.embedding import CausalEncoder, Embedder
from hf2q.serve.events import ChatEvent, GenerateRequest, TokenEvent
from hf2q.serve.generation import PREFILL_CHUNK, Generation
from hf2q.serve.sampling import Sampler, SamplingParams
from hf2q.serve.sequence import Sequence, TokenIds, token_ids
from hf2q.serve.speculate import SpeculativeSequence
from hf2q.types import ChatFormat, HParams, Task

if TYPE_CHECKING:
    from hf2q.backends.media import PlacedImage
    from hf2q.formats.tokenizer import Tokenizer
    from hf2q.serve.chat import Chat, ToolChoice
    from hf2q.serve.chat.asking import MessageLike, ToolLike
    from hf2q.serve.constraint import Constraint
    from hf2q.serve.vision import ImageSource, Vision
    from hf2q.types import Float32


WARM_UP_TOKENS = 10
"""Of the prefill of a warm-up."""


class Closeable(Protocol):
    """An open file."""

    def close(self) -> None: ...


class GenerateSettings(TypedDict, total=False):
    """The settings that `Model.chat` hands on to `Model.generate`, where they are explained."""

    max_tokens: int | None
    sampling: SamplingParams | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    stop: str | Several[str]
    ignore_eos: bool
    logprobs: int | None
    speculative: bool


class Model:
    """A model that can be asked. Thread-safe: sequences are separate, and weights never change.

    path, name      the file, and its name without ``.gguf``
    arch            GGUF architecture
    task            ``generate``: it continues texts; ``embed``: it is an encoder, which turns them into vectors
    hparams         the family's sizes
    metadata        the file's metadata, arrays read when asked for
    tokenizer       see `hf2q.formats.tokenizer.Tokenizer`
    context_length  most tokens of a sequence, prompt and answer together
    n_vocab         number of logits
    parameters      number of weights in the file;  file_size  its bytes, of all shards
    backend         name of the backend it runs on
    end_ids         token ids that end a generation
    chat_template   the file's Jinja template, or None
    chat_format     how the family marks reasoning and ends turns, or None
    vision          the tower by which it sees, or None
    draft           the head that guesses tokens ahead, or None
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
        graph: ForwardGraph | EncoderGraph,
        ops: Ops,
        task: Task = "generate",
        chat_format: ChatFormat | None = None,
        vision: Vision | None = None,
        draft: DraftHead | None = None,
        file: Closeable | None = None,
        parameters: int = 0,
        file_size: int = 0,
    ) -> None:
        """Put a model together; `hf2q.serve.load.load` does it from a file, which `close` lets go."""
        self.path = Path(path)
        self.name = self.path.name.removesuffix(".gguf") or self.path.name
        self.arch = arch
        self.task = task
        self.hparams = hparams
        self.metadata = metadata
        self.tokenizer = tokenizer
        self.context_length = context_length
        self.n_vocab = graph.n_vocab
        self.parameters, self.file_size = parameters, file_size
        self.backend = ops.name
        template = metadata.get("tokenizer.chat_template")
        self.chat_template: str | None = template if isinstance(template, str) and template else None
        self.chat_format = chat_format
        self.vision = vision
        self.draft = draft
        turn_ends = chat_format.end_of_turn if chat_format is not None else ()
        ids = (tokenizer.id_of(text) for text in turn_ends)
        self.end_ids = frozenset(tokenizer.eos_ids) | {token for token in ids if token is not None}
        self._graph = graph
        self._ops = ops
        self._file = file
        self._lock = threading.Lock()
        self._chat: Chat | None = None

    def sequence(self, images: Several[PlacedImage] = ()) -> Sequence:
        """A new, empty sequence: token ids in, logits out. Errors: UsageError for an encoder.

        `images` stand in for the tokens that will be fed at the positions they name.
        """
        return Sequence(self._generating(), self._ops, images=images)

    def speculative(self) -> SpeculativeSequence:
        """A new, empty sequence that computes ahead on guesses of the draft head.

        Errors: UsageError for an encoder, and for a model that was loaded without its draft head.
        """
        graph = self._generating()
        if self.draft is None:
            raise UsageError(
                f"{self.path} was loaded without its draft head, so it cannot speculate",
                hint="load it with draft=True (hf2q generate --speculative)",
            )
        return SpeculativeSequence(graph, self.draft, self._ops, limit=self.context_length)

    def free_memory(self) -> int | None:
        """Bytes of memory that caches may take now, or None when that is not known."""
        return self._ops.available()

    def warm_up(self) -> None:
        """Run the model once, one token alone and then ten together, on a sequence that is dropped.

        Afterwards kernels are compiled and weights are in memory, so the first request is as fast as others.
        Errors: UsageError for an encoder; Hf2qError when logits are no finite numbers: such a model can answer nobody.
        """
        sequence = self.sequence()
        logits = sequence.next_logits([0])
        Sampler(SamplingParams(), (), self.n_vocab).sample(logits)
        sequence = self.sequence()
        sequence.prefill([0] * min(WARM_UP_TOKENS, self.context_length))

    def logits(self, ids: TokenIds) -> Float32:
        """Logits float32 (T, V) after each of the T token ids: a list, or an integer array.

        Errors: ContextLengthError for more ids than the context holds, RequestError for ids outside the vocabulary,
        UsageError for an encoder.
        """
        self._generating()
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
        images: Several[ImageSource] = (),
        max_tokens: int | None = None,
        sampling: SamplingParams | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int | None = None,
        stop: str | Several[str] = (),
        ignore_eos: bool = False,
        logprobs: int | None = None,
        speculative: bool = False,
    ) -> Iterator[TokenEvent]:
        """Generate from a text (special tokens in it are read as such) or token ids, yielding events as they come.

        prompt       no chat template is applied; a text gets BOS where the file asks for it, and never EOS
        images       files, bytes of files or RGB pixels uint8 (height, width, 3), which the prompt has places for:
                     one token each (``<|image_pad|>``; the model's own is `vision`'s `placeholder`)
        max_tokens   most tokens to generate; None leaves it to the context
        sampling     all sampling settings; or give some of temperature, top_k, top_p, min_p and seed, see
                     `SamplingParams` (the default is greedy)
        stop         texts that end the generation
        ignore_eos   go on after tokens that end a generation
        logprobs     give log probabilities with each token, see `GenerateRequest`
        speculative  compute ahead on guesses of the draft head, see `hf2q.serve.speculate`

        The joined texts of the events are the answer; the last event says why it ended. Errors: RequestError and
        ContextLengthError at once, before the first event is asked for; UsageError for an encoder.
        """
        settings: GenerateSettings = {
            "max_tokens": max_tokens,
            "sampling": sampling,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "seed": seed,
            "stop": stop,
            "ignore_eos": ignore_eos,
            "logprobs": logprobs,
            "speculative": speculative,
        }
        return _events(Generation(self, self._request(prompt, images, settings)))

    def _request(
        self,
        prompt: str | TokenIds,
        images: Several[ImageSource],
        settings: GenerateSettings,
        *,
        constraint: Constraint | None = None,
        skip_special: bool = True,
    ) -> GenerateRequest:
        self._generating()
        given: Mapping[str, Any] = settings
        single = ("temperature", "top_k", "top_p", "min_p", "seed")
        fields = {name: given[name] for name in single if given.get(name) is not None}
        sampling = settings.get("sampling")
        if sampling is not None and fields:
            raise UsageError(f"give either sampling or single settings, not both: {', '.join(fields)}")
        ids = self._prompt_ids(prompt)
        _check_listed(images)
        placed: tuple[PlacedImage, ...] = ()
        if images or self.vision is not None:  # a place without an image is as wrong as the reverse
            ids, placed = self._seeing().place(ids, images)
        return GenerateRequest(
            prompt_ids=ids,
            images=placed,
            sampling=SamplingParams(**fields) if sampling is None else sampling,
            max_tokens=settings.get("max_tokens"),
            stop=_texts(settings.get("stop", ()), "stop"),
            ignore_eos=settings.get("ignore_eos", False),
            skip_special=skip_special,
            logprobs=settings.get("logprobs"),
            speculative=settings.get("speculative", False),
            constraint=constraint,
        )

    def chat(
        self,
        messages: Several[MessageLike],
        *,
        images: Several[ImageSource] = (),
        tools: Several[ToolLike] = (),
        tool_choice: str | ToolChoice = "auto",
        parallel_tool_calls: bool = True,
        template_options: Mapping[str, Any] | None = None,
        **settings: Unpack[GenerateSettings],
    ) -> Iterator[ChatEvent]:
        """Answer in a dialogue, by the chat template of the model file, yielding events as they come.

        messages          the dialogue so far: mappings with ``role`` and ``content`` (a text or a list of texts), or
                          `hf2q.serve.chat.Message`
        images            those in the messages, in order; a message says with ``images`` how many come before its
                          text, else all belong to the last one
        tools             functions that the model may call: mappings with ``name``, ``description`` and ``parameters``
                          (a JSON schema), in OpenAI's form, or `hf2q.serve.chat.Tool`
        tool_choice       ``none``, ``auto`` (as it likes), ``required`` (at least one call), or the name of the tool
                          that it has to call
        parallel_tool_calls  whether it may make more than one call in an answer
        template_options  variables of the template (``enable_thinking`` …)
        settings          as those of `generate`

        The joined `text` of the events is the answer, the joined `reasoning` what led to it, where the family marks
        that; `calls` are its calls (see `hf2q.serve.chat.deltas.CallDelta`), whose results go into the dialogue as
        messages of the role ``tool`` with the ``tool_call_id``, behind the assistant's message with its ``tool_calls``.

        Errors: as `generate`; RequestError for messages that the template refuses, for a file without one, and for
        tools that the model cannot be asked with; while the answer comes, AnswerError where a call was required and
        none was made.
        """
        from hf2q.serve.chat.asking import query_of, read

        unknown = settings.keys() - GenerateSettings.__annotations__.keys()
        if unknown:  # as Python refuses them where they are parameters
            raise TypeError(f"Model.chat() got unexpected keyword arguments: {', '.join(sorted(unknown))}")
        if not isinstance(template_options, Mapping | None):
            raise RequestError(
                f"template_options is {template_options!r:.60}, expected a mapping", param="template_options"
            )
        _check_listed(images)
        self._generating()
        query = query_of(
            messages,
            images=len(images),
            tools=tools,
            tool_choice=tool_choice,
            parallel=parallel_tool_calls,
            options=template_options,
        )
        asked = self._dialogue().prepare(query)
        ids = self.tokenizer.encode(asked.text, add_bos=False)  # the template writes BOS where the model wants it
        request = self._request(ids, images, settings, constraint=asked.constraint(), skip_special=asked.skip_special)
        return read(_events(Generation(self, request)), asked.parser())

    def _dialogue(self) -> Chat:
        from hf2q.serve.chat import open_chat

        with self._lock:
            if self._chat is None:
                self._chat = open_chat(self)
            return self._chat

    def embed(
        self,
        texts: str | Several[str],
        *,
        pooling: str | None = None,
        normalize: bool = True,
        truncate: bool = False,
    ) -> Float32:
        """One vector for each of N texts: float32 (N, C). A prefix that the model wants is the caller's to write.

        pooling    ``mean``, ``cls`` or ``last``, how the vectors of tokens become one; default: as the file states
        normalize  give every vector length 1, so that a dot product is a cosine
        truncate   cut texts that the context does not hold, instead of refusing them

        Errors: UsageError for a model that generates, unless its file states a pooling, and for an encoder whose file
        states none when the caller does not either; ContextLengthError with both numbers; RequestError for no texts.
        """
        embedder = self.embedder()
        embedder.chosen(pooling)
        tokens = [embedder.tokens(text, truncate=truncate) for text in _texts(texts, "input")]
        return embedder.vectors(tokens, pooling=pooling, normalize=normalize)

    def embedder(self) -> Embedder:
        """What `embed` works with, step by step: token ids of texts, vectors or hidden states of ids.

        Errors: UsageError for a model that generates, unless its file states a pooling.
        """
        key = f"{self.arch}.pooling_type"
        stated = pooled.stated(self.metadata, self.arch)
        if self.task == "embed":
            encoder = cast("EncoderGraph", self._graph)
        elif stated is not None:
            encoder = CausalEncoder(self._generating())
        else:
            raise UsageError(
                f"{self.path} generates text and was not made to embed it ({key} is missing)",
                hint="take an embedding model",
            )
        return Embedder(
            encoder, self._ops, self.tokenizer, context_length=self.context_length, pooling=stated, pooling_key=key
        )

    def _generating(self) -> ForwardGraph:
        if self.task != "generate":
            raise UsageError(
                f"{self.path} is an embedding model ({self.arch}): it gives vectors, and generates no text",
                hint="hf2q embed, or Model.embed from Python",
            )
        return cast("ForwardGraph", self._graph)

    def _seeing(self) -> Vision:
        if self.vision is None:
            raise UsageError(
                f"{self.path} was loaded without its projector, so it cannot take images",
                hint="give it as mmproj (--mmproj); hf2q convert --mmproj writes it beside the text model",
            )
        return self.vision

    def _prompt_ids(self, prompt: str | TokenIds) -> tuple[int, ...]:
        if isinstance(prompt, str):
            # a prompt that ended in EOS would be over
            return tuple(self.tokenizer.encode(prompt, add_bos=self.tokenizer.add_bos))
        return tuple(token_ids(prompt, self.n_vocab).tolist())

    def close(self) -> None:
        """Let the file go. Arrays of the metadata cannot be read any more; the model runs on."""
        with self._lock:
            chat, self._chat = self._chat, None
        if chat is not None:
            chat.close()
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_listed(images: object) -> None:
    if not isinstance(images, list | tuple):
        raise RequestError(f"images is a {type(images).__name__}, expected a list of images", param="images")


def _texts(given: str | Several[str], param: str) -> tuple[str, ...]:
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, list | tuple) or not all(isinstance(text, str) for text in given):
        raise RequestError(f"{param} is {given!r:.60}, expected a text or a list of texts", param=param)
    return tuple(given)


def _events(generation: Generation) -> Iterator[TokenEvent]:
    while not generation.done:
        yield from generation.step()
