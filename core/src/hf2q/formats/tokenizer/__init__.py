"""Tokenizers: the `tokenizer.*` metadata of a checkpoint (convert), and a tokenizer rebuilt from it (serve).

    files        bounded reading of the checkpoint's JSON and template files
    alphabet     the byte-level alphabet: how bytes are written as characters in a vocabulary
    vocabulary   token texts, token types and merges out of ``tokenizer.json`` and ``tokenizer_config.json``
    structure    which registered pre-tokenizer the steps of ``tokenizer.json`` amount to
    special      special token ids and the add_bos/add_eos/add_sep flags
    template     chat templates
    read         all of these as metadata fields, in the order llama.cpp's converter writes them
    metadata     checked view of the same keys in a GGUF file
    ending       which tokens end a generation
    stream       incremental decoding that never splits a character
    backend      the `tokenizers` library's part of encoding
    runtime      encode and decode

Byte-level BPE (GGUF's ``gpt2``) only. Nothing here knows a model family: the pre-tokenizers come from the registry.
Importing this package imports neither `tokenizers` nor numpy.
"""

from hf2q.formats.tokenizer.read import read_tokenizer
from hf2q.formats.tokenizer.runtime import Tokenizer, load_tokenizer
from hf2q.formats.tokenizer.stream import StreamDecoder

__all__ = ["StreamDecoder", "Tokenizer", "load_tokenizer", "read_tokenizer"]
