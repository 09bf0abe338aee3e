"""Tokenizers: the `tokenizer.*` metadata of a checkpoint (convert), and a tokenizer rebuilt from it (serve).

    files        bounded reading of the checkpoint's JSON and template files
    source       the tokenizer files of a checkpoint, parsed
    steps        normalizers, pre-tokenizers and decoders of ``tokenizer.json``, taken apart
    models       which GGUF model a ``tokenizer.json`` is: ``gpt2``, ``gemma4`` or ``bert``
    alphabet     the byte-level alphabet: how bytes are written as characters in a vocabulary
    added        added tokens, out of ``tokenizer.json`` and ``tokenizer_config.json``
    vocabulary   token texts, token types and merges
    structure    which registered pre-tokenizer the steps of ``tokenizer.json`` amount to
    special      special token ids, the add_bos/add_eos/add_sep flags and those of the normalizer
    template     chat templates
    wordpiece    what BERT's tokenizer takes for granted
    read, read_gemma4, read_bert   all of these as metadata fields, in the order llama.cpp's converter writes them
    metadata     checked view of the same keys in a GGUF file
    ending       which tokens end a generation
    stream       incremental decoding that never splits a character
    spelling     what the tokens of each model stand for
    texts        the texts of a vocabulary, kept small;  merges  the same of a BPE's merges
    table        the tokens by id
    backend      the `tokenizers` library's part of encoding
    runtime      encode and decode

Nothing here knows a model family: the pre-tokenizers come from the registry. Importing this package imports neither
`tokenizers` nor numpy, nor what reads checkpoints.
"""

from typing import TYPE_CHECKING, Any

from hf2q.formats.tokenizer.runtime import Tokenizer, load_tokenizer
from hf2q.formats.tokenizer.stream import Decoder, StreamDecoder

if TYPE_CHECKING:
    from hf2q.formats.tokenizer.read import read_tokenizer

__all__ = ["Decoder", "StreamDecoder", "Tokenizer", "load_tokenizer", "read_tokenizer"]


def __getattr__(name: str) -> Any:
    if name == "read_tokenizer":
        from hf2q.formats.tokenizer.read import read_tokenizer

        return read_tokenizer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
