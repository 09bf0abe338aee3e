"""``hf2q convert``: parse, show progress, call `hf2q.convert`, and hand the result to `converted` for printing."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from hf2q.cli.measuring import POSITIVE
from hf2q.cli.numbers import byte_size, whole_number


def command(
    source: Annotated[
        str | None,
        Parameter(
            help="A checkpoint directory, with config.json and safetensors files in it; a GGUF file, the first of "
            "several; or a repository of the Hub, org/name or its address. What exists here, or begins with ./ ../ / "
            "or ~, is never taken for a repository."
        ),
    ] = None,
    *,
    quant: Annotated[
        str,
        Parameter(
            help="What to convert to: auto, f32, f16, bf16, q8_0, q4_k_m, … (`hf2q plugins` lists them); or "
            "auto-bpw=4.5, so many bits for each weight, or auto-size=12GiB, so large a file, with the types for which "
            "the tensors lose least by measurement."
        ),
    ],
    format: Annotated[
        str,
        Parameter(
            help="The output format: gguf; or mlx, a folder for mlx-lm (-o names it), with --quant 4bit, 8bit-g32, "
            "bf16 and the like."
        ),
    ] = "gguf",
    repo: Annotated[str | None, Parameter(help="A repository of the Hub, instead of SOURCE, whatever is here.")] = None,
    revision: Annotated[
        str | None, Parameter(help="For a repository: a branch, a tag or a commit (default: its main branch).")
    ] = None,
    output: Annotated[
        str | None,
        Parameter(
            name=["--output", "-o"], help="The file, or a directory for a file of the usual name (default: here)."
        ),
    ] = None,
    imatrix: Annotated[
        str | None, Parameter(help="An importance matrix, .imatrix.gguf or .dat: which columns matter how much.")
    ] = None,
    imatrix_corpus: Annotated[
        str | None,
        Parameter(
            help="Compute the importance matrix first, as `hf2q imatrix` does, on a text file or a text that comes "
            "with hf2q."
        ),
    ] = None,
    imatrix_out: Annotated[
        Path | None, Parameter(help="Where the computed matrix goes (default: OUTPUT.imatrix.gguf, beside the output).")
    ] = None,
    imatrix_n_ctx: Annotated[
        int | None,
        Parameter(help="Tokens of a chunk of the text (default: 512).", converter=whole_number, validator=POSITIVE),
    ] = None,
    auto_corpus: Annotated[
        str | None,
        Parameter(
            help="For auto-bpw and auto-size: weigh what is lost by the predictions over a text file, or a text that "
            "comes with hf2q; slower, and better for a text like those that the model is for."
        ),
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
    mmproj: Annotated[
        bool,
        Parameter(
            name=["--mmproj", "--emit-vision-tower"],
            negative=(),
            help="For a checkpoint: write its vision tower too, as a projector beside the model (mmproj-NAME.gguf); "
            "only that, when the output's name contains mmproj. F32, F16 or BF16 as the mix is, F16 for any quantized "
            "mix.",
        ),
    ] = False,
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
    dry_run: Annotated[
        bool,
        Parameter(
            help="Show what would be written; write nothing, and read no weights unless types are chosen by them."
        ),
    ] = False,
    json: Annotated[bool, Parameter(help="Print the result as JSON.")] = False,
    force: Annotated[bool, Parameter(help="Replace an existing output.")] = False,
    no_provenance: Annotated[
        bool, Parameter(help="Leave hf2q's own keys out of the metadata, so that the file is llama.cpp's to the byte.")
    ] = False,
    no_sidecars: Annotated[
        bool, Parameter(help="For a checkpoint: copy no tokenizer.json, config.json and the like beside the output.")
    ] = False,
    no_receipt: Annotated[bool, Parameter(help="Write no receipt (OUTPUT.receipt.json) beside the output.")] = False,
    no_fallback: Annotated[bool, Parameter(help="Refuse when a tensor's shape does not fit the chosen type.")] = False,
) -> None:
    """Convert a Hugging Face checkpoint, or another GGUF file, to a quantized GGUF file, or to a folder for mlx-lm.

    The bytes are those of llama.cpp's converter followed by its quantizer, whatever the machine and the number of
    threads. The file appears under its name only when it is complete; of several files, all at the end.
    """
    from hf2q.cli import convert_auto, convert_importance
    from hf2q.cli.converted import show
    from hf2q.cli.progress import progress_bar
    from hf2q.convert import convert
    from hf2q.convert.projector import names_projector
    from hf2q.errors import UsageError
    from hf2q.policy import parse_qtype, parse_tensor_type, read_tensor_types
    from hf2q.types import PolicyOptions

    if imatrix_corpus is not None and format != "gguf":
        raise UsageError(
            f"--imatrix-corpus cannot be used with --format {format}", hint="it is for GGUF files, --format gguf"
        )
    convert_importance.check(
        imatrix=imatrix, corpus=imatrix_corpus, out=imatrix_out, n_ctx=imatrix_n_ctx, dry_run=dry_run
    )
    budget = convert_auto.asked(
        quant,
        format=format,
        corpus=auto_corpus,
        dry_run=dry_run,
        refused={
            "--pure": pure,
            "--output-tensor-type": output_tensor_type is not None,
            "--token-embedding-type": token_embedding_type is not None,
            "--tensor-type": bool(tensor_type),
            "--tensor-type-file": tensor_type_file is not None,
            "--leave-output-tensor": leave_output_tensor,
            "--mmproj with an output that is a projector alone": mmproj and names_projector(Path(output or "")),
        },
        split={
            "--keep-split": keep_split,
            "--split-max-size": split_max_size is not None,
            "--split-max-tensors": split_max_tensors is not None,
        },
    )
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
    shown = not json and sys.stderr.isatty()
    if budget is not None and not dry_run:
        convert_auto.check_outputs(output, force=force)
    if imatrix_corpus is not None:
        with _cleaning_up():
            computed = convert_importance.computed(
                source,
                quant if budget is None else "q8_0",
                output,
                imatrix_corpus,
                repo=repo,
                revision=revision,
                out=imatrix_out,
                n_ctx=imatrix_n_ctx,
                pre=pre,
                threads=threads,
                force=force,
                shown=shown,
            )
        imatrix = str(computed)
    found = types = None
    if budget is not None:
        with _cleaning_up():
            found = convert_auto.searched(
                source,
                budget,
                output,
                corpus=auto_corpus,
                repo=repo,
                revision=revision,
                via=via,
                mtp=not no_mtp,
                pre=pre,
                imatrix=imatrix,
                include_weights=include_weights or (),
                exclude_weights=exclude_weights or (),
                allow_requantize=allow_requantize,
                threads=threads,
                shown=shown,
            )
        quant, output = found.recipe, convert_auto.output_of(found, output)
        options = PolicyOptions(tensor_types=found.pairs)
        if not dry_run:
            types = convert_auto.types_path(output)
            convert_auto.check_outputs(output, force=force)
    with _cleaning_up(), progress_bar(shown=shown) as (progress, downloading):
        summary = convert(
            source,
            quant,
            output,
            format=format,
            repo=repo,
            revision=revision,
            imatrix=imatrix,
            include_weights=include_weights or (),
            exclude_weights=exclude_weights or (),
            options=options,
            via=via,
            mtp=not no_mtp,
            mmproj=mmproj,
            pre=pre,
            allow_requantize=allow_requantize,
            keep_split=keep_split,
            split_max_size=split_max_size,
            split_max_tensors=split_max_tensors,
            threads=threads,
            force=force,
            dry_run=dry_run,
            no_fallback=no_fallback,
            provenance=not no_provenance,
            sidecars=not no_sidecars,
            receipt=not no_receipt,
            progress=progress,
            downloading=downloading,
        )
    if found is not None and types is not None:
        convert_auto.keep(found, types)
    show(summary, json=json, importance=imatrix is not None, search=found, types=types)


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
