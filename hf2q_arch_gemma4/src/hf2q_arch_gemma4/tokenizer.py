"""The tokenizer of Gemma 4: BPE over text whose spaces are U+2581, with bytes for what the vocabulary lacks."""

from hf2q.types import PreTokenizer

GEMMA4_PRE = PreTokenizer(
    name="gemma4",
    model="gemma4",
    normalizer="Replace",
    source=(
        "transformers models/gemma/tokenization_gemma.py, GemmaTokenizer;"
        " llama.cpp conversion/gemma.py, Gemma4Model.set_vocab; src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_GEMMA4"
    ),
)

PRE_TOKENIZERS = (GEMMA4_PRE,)
