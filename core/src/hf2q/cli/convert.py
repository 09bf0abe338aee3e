"""``hf2q convert``: parse, show progress, call `hf2q.convert`, and hand the result to `converted` for printing."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from hf2q.cli.numbers import byte_size, whole_number

if TYPE_CHECKING:
    from hf2q.types import Plan, TensorPlan


def command(
    source: Annotated[
        str,
        Parameter(
            help="A checkpoint directory, with config.json and safetensors files in it; or a GGUF file, the first of "
            "several."
        ),
    ],
    *,
    quant: Annotated[
        str, Parameter(help="What to convert to: f32, f16, bf16, q8_0, q4_k_m, … (`hf2q plugins` lists them).")
    ],
    output: Annotated[
        str | None,
        Parameter(
            name=["--output", "-o"], help="The file, or a directory for a file of the usual name (default: here)."
        ),
    ] = None,
    imatrix: Annotated[
        str | None, Parameter(help="An importance matrix, .imatrix.gguf or .dat: which columns matter how much.")
    ] = None,
    include_weights: Annotated[
        list[str] | None,
        Parameter(help="Use only entries of the matrix with this in their names. May be repeated.", negative=()),
    ] = None,
    exclude_weights: Annotated[
        list[str] | None,
        Parameter(help="Use no entries of the matrix with this in their names. May be repeated.", negative=()),
    ] = None,
    pure: Annotated[bool, Parameter(help="Give every tensor the default type of the mix.")] = False,
    output_tensor_type: Annotated[str | None, Parameter(help="Type of output.weight, for example q8_0.")] = None,
    token_embedding_type: Annotated[str | None, Parameter(help="Type of token_embd.weight.")] = None,
    tensor_type: Annotated[
        list[str] | None,
        Parameter(
            help="PATTERN=TYPE: tensors whose names match the regular expression get the type; the first that matches "
            "counts. May be repeated.",
            negative=(),
        ),
    ] = None,
    tensor_type_file: Annotated[
        Path | None, Parameter(help="A file of PATTERN=TYPE, which count after those of --tensor-type.")
    ] = None,
    leave_output_tensor: Annotated[bool, Parameter(help="Do not quantize output.weight.")] = False,
    via: Annotated[
        Literal["auto", "f16", "bf16", "f32"],
        Parameter(
            help="For a checkpoint: the type that values pass through before they are quantized, as with llama.cpp's "
            "two steps."
        ),
    ] = "auto",
    no_mtp: Annotated[bool, Parameter(help="For a checkpoint: leave multi-token-prediction blocks out.")] = False,
    pre: Annotated[
        str | None,
        Parameter(help="For a checkpoint: name of the pre-tokenizer, instead of recognising it from tokenizer.json."),
    ] = None,
    allow_requantize: Annotated[
        bool, Parameter(help="For a GGUF file: encode tensors again that are quantized already, with more loss.")
    ] = False,
    keep_split: Annotated[
        bool, Parameter(help="For a GGUF file in several: write as many, with the same tensors in each.")
    ] = False,
    split_max_size: Annotated[
        int | None,
        Parameter(help="Write several files of at most so many bytes of tensors: 4G, 500M.", converter=byte_size),
    ] = None,
    split_max_tensors: Annotated[
        int | None, Parameter(help="Write several files of at most so many tensors.", converter=whole_number)
    ] = None,
    threads: Annotated[
        int | None, Parameter(help="Default: HF2Q_THREADS, else the CPUs there are.", converter=whole_number)
    ] = None,
    dry_run: Annotated[bool, Parameter(help="Show what would be written; read no weights, write nothing.")] = False,
    json: Annotated[bool, Parameter(help="Print the result as JSON.")] = False,
    force: Annotated[bool, Parameter(help="Replace an existing output.")] = False,
    no_fallback: Annotated[bool, Parameter(help="Refuse when a tensor's shape does not fit the chosen type.")] = False,
) -> None:
    """Convert a Hugging Face checkpoint, or another GGUF file, to a quantized GGUF file.

    The bytes are those of llama.cpp's converter followed by its quantizer, whatever the machine and the number of
    threads. The file appears under its name only when it is complete; of several files, all at the end.
    """
    from hf2q.cli.converted import show
    from hf2q.convert import convert
    from hf2q.policy import parse_qtype, parse_tensor_type, read_tensor_types
    from hf2q.types import PolicyOptions

    pairs = [parse_tensor_type(text) for text in tensor_type or ()]
    if tensor_type_file is not None:
        pairs += read_tensor_types(tensor_type_file)
    options = PolicyOptions(
        pure=pure,
        output_tensor_type=output_tensor_type and parse_qtype(output_tensor_type, "--output-tensor-type"),
        token_embedding_type=token_embedding_type and parse_qtype(token_embedding_type, "--token-embedding-type"),
        tensor_types=tuple(pairs),
        leave_output_tensor=leave_output_tensor,
    )
    with _cleaning_up(), _progress(shown=not (dry_run or json) and sys.stderr.isatty()) as progress:
        summary = convert(
            source,
            quant,
            output,
            imatrix=imatrix,
            include_weights=include_weights or (),
            exclude_weights=exclude_weights or (),
            options=options,
            via=via,
            mtp=not no_mtp,
            pre=pre,
            allow_requantize=allow_requantize,
            keep_split=keep_split,
            split_max_size=split_max_size,
            split_max_tensors=split_max_tensors,
            threads=threads,
            force=force,
            dry_run=dry_run,
            no_fallback=no_fallback,
            progress=progress,
        )
    show(summary, json=json, importance=imatrix is not None)


@contextmanager
def _cleaning_up() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the conversion as Ctrl-C does, so that no unfinished file stays behind."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # where Python allows no handlers
        yield
        return
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [number for name in names if signal.getsignal(number := getattr(signal, name)) is signal.SIG_DFL]
    try:
        for number in numbers:
            signal.signal(number, stop)
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[Plan, TensorPlan, int], None] | None]:
    """A callback that draws a bar on stderr, or None where nobody would see it."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def update(plan: Plan, tensor: TensorPlan, written: int) -> None:
            bar.update(task, total=plan.nbytes, completed=written, description=tensor.name)

        yield update
