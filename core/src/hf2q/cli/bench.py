"""``hf2q bench``: how many tokens per second a model file reads and writes on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, validators

from hf2q.cli.measuring import Backend, Exact, IgnoreMemory, Threads
from hf2q.cli.numbers import whole_number
from hf2q.cli.output import print_json, print_table, printable, size
from hf2q.errors import ContextLengthError, UsageError

if TYPE_CHECKING:
    from hf2q.serve.bench import Speed
    from hf2q.serve.model import Model

_NOT_NEGATIVE = validators.Number(gte=0)
_POSITIVE = validators.Number(gte=1)


def command(
    model: Annotated[Path, Parameter(help="A GGUF file; of several, the first.")],
    /,
    *,
    n_prompt: Annotated[
        int,
        Parameter(
            name=["--n-prompt", "-p"],
            help="Tokens of the prompt; 0 leaves this test out.",
            converter=whole_number,
            validator=_NOT_NEGATIVE,
        ),
    ] = 512,
    n_gen: Annotated[
        int,
        Parameter(
            name=["--n-gen", "-n"],
            help="Tokens to generate; 0 leaves this test out.",
            converter=whole_number,
            validator=_NOT_NEGATIVE,
        ),
    ] = 128,
    repetitions: Annotated[
        int,
        Parameter(name=["--repetitions", "-r"], help="Runs of each test.", converter=whole_number, validator=_POSITIVE),
    ] = 5,
    slots: Annotated[
        int,
        Parameter(
            help="Sequences that generate together; their tokens are added up.",
            converter=whole_number,
            validator=_POSITIVE,
        ),
    ] = 1,
    threads: Threads = None,
    backend: Backend = "auto",
    exact: Exact = False,
    ignore_memory: IgnoreMemory = False,
    json: Annotated[bool, Parameter(help="Print JSON.")] = False,
) -> None:
    """Measure tokens per second of prompts and of generation, with random tokens.

    The tests are those of llama-bench: pp reads a prompt in one go, tg generates token by token into an empty context.
    One run of each is done first and not counted.
    """
    if not (n_prompt or n_gen):
        raise UsageError("nothing to measure: -p and -n are both 0")
    from hf2q.cli.progress import bar
    from hf2q.codec import thread_count
    from hf2q.serve.bench import measure
    from hf2q.serve.load import load

    count = thread_count(threads)
    with load(model, backend=backend, threads=count, exact=exact, ignore_memory=ignore_memory) as loaded:
        longest = max(n_prompt, n_gen)
        if longest > loaded.context_length:
            raise ContextLengthError(f"{longest} tokens do not fit the model's context of {loaded.context_length}")
        with bar(shown=not json) as report:
            prefill, decode = measure(
                loaded, prompt=n_prompt, generate=n_gen, repetitions=repetitions, slots=slots, report=report
            )
        facts = _facts(loaded, count, slots, prefill, decode)
    if json:
        print_json(facts)
        return
    parameters = f"{facts['parameters'] / 1e6:,.1f} M"
    print_table(
        [
            (printable(facts["model"]), size(facts["size"]), parameters, facts["backend"], str(count), test, rate)
            for test, rate in _rates(prefill, decode, slots)
        ],
        header=("model", "size", "params", "backend", "threads", "test", "t/s"),
    )


def _rates(prefill: Speed | None, decode: Speed | None, slots: int) -> list[tuple[str, str]]:
    tests = []
    if prefill is not None:
        tests.append((f"pp{prefill.tokens}", prefill))
    if decode is not None:
        each = decode.tokens // slots
        tests.append((f"tg{each}" if slots == 1 else f"tg{each} x {slots}", decode))
    return [(name, f"{speed.tokens_per_second:.2f} ± {speed.deviation:.2f}") for name, speed in tests]


def _facts(model: Model, threads: int, slots: int, prefill: Speed | None, decode: Speed | None) -> dict[str, Any]:
    def told(speed: Speed | None) -> dict[str, Any] | None:
        if speed is None:
            return None
        return {
            "tokens": speed.tokens,
            "tokens_per_second": speed.tokens_per_second,
            "stddev": speed.deviation,
            "samples": list(speed.rates),
        }

    return {
        "model": model.path.name,
        "arch": model.arch,
        "size": model.file_size,
        "parameters": model.parameters,
        "backend": model.backend,
        "threads": threads,
        "slots": slots,
        "prefill": told(prefill),
        "decode": told(decode),
        "peak_memory": _peak_memory(),
    }


def _peak_memory() -> int | None:
    """Bytes of memory that this process had at most, where the system counts them."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
