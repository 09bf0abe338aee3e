"""What a user asks of a recipe besides its name: how it is spelled, checked, and kept track of.

Source of the spellings: llama.cpp, tools/quantize/quantize.cpp, `parse_ggml_type`, `parse_tensor_type` and
`parse_tensor_type_file`.
"""

from __future__ import annotations

import logging
import re
import warnings
from pathlib import Path

from hf2q.errors import MissingFileError, UsageError
from hf2q.formats.ggml_types import GGML_TYPES
from hf2q.formats.tokenizer.files import read_text
from hf2q.types import PolicyOptions

log = logging.getLogger(__name__)


def parse_qtype(text: str, flag: str) -> str:
    """A storage type by its name in any case, in ggml's capitals. Errors: UsageError naming `flag`."""
    name = text.strip().upper()
    if name not in GGML_TYPES:
        raise UsageError(f"{flag}: {text!r} is no type of tensor", hint=f"one of {', '.join(GGML_TYPES)}")
    return name


def parse_tensor_type(text: str, flag: str = "--tensor-type") -> tuple[str, str]:
    """``PATTERN=TYPE`` as a pair for `PolicyOptions.tensor_types`. Errors: UsageError naming `flag`."""
    pattern, _, qtype = text.rpartition("=")
    if not pattern or not qtype:
        raise UsageError(f"{flag}: {text!r} is not of the form PATTERN=TYPE", hint="for example ffn_down=q6_k")
    compile_pattern(pattern, flag)
    return pattern, parse_qtype(qtype, flag)


def read_tensor_types(path: Path) -> tuple[tuple[str, str], ...]:
    """The pairs in a text file of ``PATTERN=TYPE``, apart by white space. Lines that begin with # are left out.

    Errors: MissingFileError, SourceError; UsageError naming the file and the line.
    """
    text = read_text(path)
    if text is None:
        raise MissingFileError(f"{path} does not exist", hint="--tensor-type-file takes a file of PATTERN=TYPE")
    return tuple(
        parse_tensor_type(word, f"{path}, line {number}")
        for number, line in enumerate(text.splitlines(), 1)
        if not line.lstrip().startswith("#")
        for word in line.split()
    )


def compile_pattern(pattern: str, flag: str) -> re.Pattern[str]:
    """A pattern for names of tensors, folded to lower case as llama-quantize does.

    Errors: UsageError for what is no regular expression, and for what folding or another dialect would turn into
    something else: the opposites ``\\D \\S \\W \\B``, and classes such as ``[[:digit:]]``.
    """
    folded = re.search(r"(?<!\\)(?:\\\\)*(\\[DSWBAZ])", pattern)
    if folded:
        raise UsageError(
            f"{flag}: the pattern {pattern!r} holds {folded[1]}, which has another meaning in lower case",
            hint="patterns are folded to lower case; write a class, for example [^0-9]",
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of sets that mean different things in different dialects
            return re.compile(pattern.lower(), re.ASCII)
    except (re.error, RecursionError, OverflowError, Warning) as error:
        raise UsageError(f"{flag}: {pattern!r} is no regular expression that can be used: {error}") from None


def asked_for(options: PolicyOptions) -> list[str]:
    """Each option that is set, as it is written on the command line."""
    return [
        *(["--pure"] if options.pure else []),
        *([f"--output-tensor-type {options.output_tensor_type}"] if options.output_tensor_type else []),
        *([f"--token-embedding-type {options.token_embedding_type}"] if options.token_embedding_type else []),
        *(f"--tensor-type {pattern}={qtype}" for pattern, qtype in options.tensor_types),
        *(["--leave-output-tensor"] if options.leave_output_tensor else []),
        *(["--imatrix"] if options.has_imatrix else []),
    ]


class Wishes:
    """Checked options during one walk over a file, and which of them have decided something.

    Errors: UsageError for types and patterns that do not exist, and for options that contradict each other.
    """

    def __init__(self, options: PolicyOptions) -> None:
        if options.leave_output_tensor and options.output_tensor_type:
            raise UsageError("--leave-output-tensor and --output-tensor-type contradict each other", hint="drop one")
        pairs = tuple((pattern, parse_qtype(qtype, "--tensor-type")) for pattern, qtype in options.tensor_types)
        self.output = options.output_tensor_type and parse_qtype(options.output_tensor_type, "--output-tensor-type")
        self.embedding = options.token_embedding_type and parse_qtype(
            options.token_embedding_type, "--token-embedding-type"
        )
        self._patterns = [
            (compile_pattern(pattern, "--tensor-type"), f"--tensor-type {pattern}={qtype}", qtype)
            for pattern, qtype in pairs
        ]
        deciding = PolicyOptions(
            output_tensor_type=self.output,
            token_embedding_type=self.embedding,
            tensor_types=pairs,
            leave_output_tensor=options.leave_output_tensor,
        )
        self._open = dict.fromkeys(asked_for(deciding))

    def pattern_for(self, name: str) -> tuple[str, str] | None:
        """The type for the tensor `name` by the first pattern that matches, and that option as it is written."""
        for pattern, label, qtype in self._patterns:
            if pattern.search(name):
                return qtype, label
        return None

    def use(self, label: str) -> str:
        """Note that the option `label` decided a type; returns it."""
        self._open.pop(label, None)
        return label

    def report(self) -> None:
        """Warn of options that decided nothing: a misspelt pattern must not pass in silence."""
        for label in self._open:
            log.warning("%s decides the type of no tensor in this model", label)
