"""``hf2q generate``: continue a prompt with a model file, streaming."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, validators

from hf2q.cli.biases import biases
from hf2q.cli.measuring import Backend, Exact, IgnoreMemory, Threads
from hf2q.cli.numbers import whole_number
from hf2q.cli.output import note, print_json
from hf2q.errors import ConfigError, MissingFileError, UsageError

if TYPE_CHECKING:
    from hf2q.serve.events import TokenEvent
    from hf2q.serve.model import Model

_SHARE = validators.Number(gte=0, lte=1)
_NOT_NEGATIVE = validators.Number(gte=0)


def command(
    *,
    model: Annotated[Path, Parameter(help="A GGUF file.")],
    prompt: Annotated[
        str | None, Parameter(help="The text to continue; with --chat, what the user says.", allow_leading_hyphen=True)
    ] = None,
    prompt_file: Annotated[Path | None, Parameter(help="A file with the prompt, UTF-8.")] = None,
    chat: Annotated[
        bool | None,
        Parameter(
            help="Put the prompt through the chat template, as a user's message; --raw continues it as it is.",
            negative="--raw",
            show_default=False,
        ),
    ] = None,
    system: Annotated[
        str | None, Parameter(help="A system message to begin with; only with --chat.", allow_leading_hyphen=True)
    ] = None,
    chat_template_file: Annotated[
        Path | None, Parameter(help="A chat template instead of the model file's own; only with --chat.")
    ] = None,
    image: Annotated[
        tuple[Path, ...],
        Parameter(help="A picture to ask about; may be given several times. Needs --mmproj.", show_default=False),
    ] = (),
    mmproj: Annotated[
        tuple[Path, ...], Parameter(help="The model's projector, a GGUF file, for --image.", show_default=False)
    ] = (),
    max_tokens: Annotated[
        int, Parameter(help="Most tokens to generate.", converter=whole_number, validator=validators.Number(gte=1))
    ] = 256,
    temperature: Annotated[
        float, Parameter(help="0 takes the likeliest token each time.", validator=_NOT_NEGATIVE)
    ] = 0.0,
    top_k: Annotated[
        int, Parameter(help="Sample among the k best; 0 for all.", converter=whole_number, validator=_NOT_NEGATIVE)
    ] = 40,
    typical_p: Annotated[
        float, Parameter(help="Sample among the tokens that surprise as usual, with this share.", validator=_SHARE)
    ] = 1.0,
    top_p: Annotated[float, Parameter(help="Sample among the best with this share.", validator=_SHARE)] = 0.95,
    min_p: Annotated[
        float, Parameter(help="Leave out what is less likely than this times the best.", validator=_SHARE)
    ] = 0.05,
    repetition_penalty: Annotated[
        float, Parameter(help="Makes tokens of prompt and answer less likely; 1 does nothing.")
    ] = 1.0,
    frequency_penalty: Annotated[
        float,
        Parameter(help="Taken from a token's logit for each time it was generated.", allow_leading_hyphen=True),
    ] = 0.0,
    presence_penalty: Annotated[
        float, Parameter(help="Taken from the logit of every token that was generated.", allow_leading_hyphen=True)
    ] = 0.0,
    logit_bias: Annotated[
        tuple[str, ...],
        Parameter(
            help="TOKEN=NUMBER: added to the logit of a token id; may be given several times.", show_default=False
        ),
    ] = (),
    seed: Annotated[int | None, Parameter(help="Makes sampling repeatable.", converter=whole_number)] = None,
    stop: Annotated[
        tuple[str, ...],
        Parameter(
            help="End before this text; may be given several times.", allow_leading_hyphen=True, show_default=False
        ),
    ] = (),
    ignore_eos: Annotated[bool, Parameter(help="Go on after the tokens that end a generation.")] = False,
    logprobs: Annotated[
        int | None,
        Parameter(
            help="Tell the log probability of each token, and of so many of the likeliest (0 to 20); only with --json.",
            converter=whole_number,
            validator=validators.Number(gte=0, lte=20),
        ),
    ] = None,
    backend: Backend = "auto",
    threads: Threads = None,
    ctx: Annotated[
        int | None,
        Parameter(help="Most tokens of prompt and answer (default: all the model takes).", converter=whole_number),
    ] = None,
    exact: Exact = False,
    speculative: Annotated[
        bool,
        Parameter(help="Guess tokens ahead with the file's MTP block: the same answer, often sooner.", negative=()),
    ] = False,
    ignore_memory: IgnoreMemory = False,
    json: Annotated[bool, Parameter(help="Print one JSON object at the end instead of text.")] = False,
) -> None:
    """Continue a prompt with a model file.

    The prompt is continued as it is; --chat asks in the model's own dialogue form instead, and so does --image, unless
    the prompt says where pictures go. Text streams to stdout, and a line about speed follows on stderr.
    """
    text = _prompt(prompt, prompt_file)
    projector = _projector(image, mmproj)
    about_chat = system is not None or chat_template_file is not None
    if not chat and (chat is False or not image) and about_chat:
        raise UsageError("--system and --chat-template-file are for --chat")
    if logprobs is not None and not json:
        raise UsageError("--logprobs is for --json, which has a place for them")
    if speculative and image:
        raise UsageError("--speculative is for text alone, not for --image")
    from hf2q.serve.load import load
    from hf2q.serve.sampling import SamplingParams

    sampling = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        typical_p=typical_p,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        logit_bias=biases(logit_bias),
        seed=seed,
    )
    with load(
        model,
        backend=backend,
        threads=threads,
        ctx=ctx,
        exact=exact,
        mmproj=projector,
        draft=speculative,
        ignore_memory=ignore_memory,
        later=True,
    ) as loaded:
        if chat is None:
            chat = loaded.vision is not None and loaded.vision.placeholder not in text
        if not chat and about_chat:
            raise UsageError("the prompt says where pictures go, so --system and --chat-template-file need --chat")
        given = _chat_ids(loaded, text, system, chat_template_file, len(image)) if chat else text
        events = loaded.generate(
            given,
            images=image,
            max_tokens=max_tokens,
            sampling=sampling,
            stop=stop,
            ignore_eos=ignore_eos,
            logprobs=logprobs,
            speculative=speculative,
        )
        if json:
            print_json(_collected(events, loaded))
        else:
            _print(events)


def _prompt(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise UsageError("give the prompt with either --prompt or --prompt-file")
    if file is None:
        return prompt or ""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise MissingFileError(f"there is no file {file}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text: {error}") from error


def _projector(images: tuple[Path, ...], projectors: tuple[Path, ...]) -> Path | None:
    """The one projector, which goes with pictures and only with them."""
    if len(projectors) > 1:
        raise UsageError(f"--mmproj was given {len(projectors)} times; a model has one projector")
    if images and not projectors:
        raise UsageError(
            "--image needs the model's projector",
            hint="give it with --mmproj; hf2q convert --mmproj writes it beside the text model",
        )
    if projectors and not images:
        raise UsageError("--mmproj is for --image", hint="leave it out to ask without pictures")
    return projectors[0] if projectors else None


def _chat_ids(model: Model, text: str, system: str | None, template: Path | None, images: int) -> list[int]:
    from hf2q.serve.chat import Message, open_chat

    chat = open_chat(model, template)
    try:
        messages = [Message(role="system", content=system)] if system is not None else []
        prompt = chat.prompt([*messages, Message(role="user", content=text, images=images)])
    finally:
        chat.close()
    return model.tokenizer.encode(prompt.text, add_bos=False)  # the template writes BOS where the model wants it


def _print(events: Iterator[TokenEvent]) -> None:
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character gets a sign, not a traceback
    text = ""
    try:
        for event in events:
            if event.text:
                print(event.text, end="", flush=True)
                text = event.text
    except BaseException:  # Ctrl-C too: what is said about it begins on a line of its own
        if text and not text.endswith("\n"):
            print(flush=True)
        raise
    if not text.endswith("\n"):
        print(flush=True)
    usage, times = event.usage, event.timings
    assert usage is not None
    assert times is not None
    note(
        f"prompt: {usage.prompt_tokens} tokens, {times.prefill_rate:.1f} tokens/s; "
        f"generated: {usage.completion_tokens} tokens, {times.decode_rate:.1f} tokens/s; "
        f"ended by: {event.finish_reason}"
    )


def _collected(events: Iterator[TokenEvent], model: Model) -> dict[str, Any]:
    def told(token: int, logprob: float) -> dict[str, Any]:
        text = model.tokenizer.token_bytes(token).decode("utf-8", "replace")
        return {"id": token, "text": text, "logprob": logprob}

    collected = list(events)
    logprobs = [
        told(event.token, event.logprobs.logprob) | {"top": [told(*one) for one in event.logprobs.top]}
        for event in collected
        if event.token is not None and event.logprobs is not None
    ]
    usage, times = collected[-1].usage, collected[-1].timings
    assert usage is not None
    assert times is not None
    return {
        "text": "".join(event.text for event in collected),
        "ids": [event.token for event in collected if event.token is not None],
        **({"logprobs": logprobs} if logprobs else {}),
        "finish_reason": collected[-1].finish_reason,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
        },
        "timings": {
            "prefill_seconds": times.prefill_seconds,
            "prefill_tokens_per_second": times.prefill_rate,
            "decode_seconds": times.decode_seconds,
            "decode_tokens_per_second": times.decode_rate,
        },
    }
