"""The pre-tokenizers that Qwen3.5 checkpoints come with.

Both normalise to NFC, cut at the matches of one regular expression, and map bytes to the byte-level alphabet without a
space in front. They differ in whether combining marks (``\\p{M}``) stay with the letters before them.
"""

from hf2q.types import PreTokenizer

QWEN35_PRE = PreTokenizer(
    name="qwen35",
    split=(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    normalizer="NFC",
    source=(
        "transformers models/qwen3_5/tokenization_qwen3_5.py, PRETOKENIZE_REGEX;"
        " llama.cpp src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_QWEN35"
    ),
)
"""What Qwen publishes."""

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
"""What a fine-tune has that was loaded as ``Qwen2Tokenizer`` and saved again: transformers rebuilds the steps then."""

PRE_TOKENIZERS = (QWEN35_PRE, QWEN2_PRE)
