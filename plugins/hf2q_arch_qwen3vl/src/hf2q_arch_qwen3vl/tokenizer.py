"""The pre-tokenizer that Qwen 3-VL checkpoints come with.

It normalises to NFC, cuts at the matches of one regular expression, and maps bytes to the byte-level alphabet without a
space in front.
"""

from hf2q.types import PreTokenizer

QWEN2_PRE = PreTokenizer(
    name="qwen2",
    split=(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    normalizer="NFC",
    source=(
        "transformers models/qwen2/tokenization_qwen2.py, PRETOKENIZE_REGEX;"
        " llama.cpp src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_QWEN2"
    ),
)

PRE_TOKENIZERS = (QWEN2_PRE,)
