"""The pre-tokenizer of DeepSeek-V4, in the two spellings of the same regular expressions that are in use.

Text is cut at groups of up to three digits, then at runs of Chinese and Japanese characters, then at words,
punctuation and space. Published files hold carriage return and line feed as characters, files that a program wrote
from the pattern's text hold them escaped.
"""

from hf2q.types import PreTokenizer

DIGITS = r"\p{N}{1,3}"
CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
).replace(r"\"", '"')
SOURCE = (
    "llama.cpp src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_JOYAI_LLM (the regular expressions of deepseek-v3); the name "
    "by conversion/base.py, get_vocab_base_pre, for DeepSeek-V4's tokenizer"
)

PUBLISHED = PreTokenizer(
    name="joyai-llm", split=(DIGITS, CJK, WORDS.replace(r"\r", "\r").replace(r"\n", "\n")), source=SOURCE
)
ESCAPED = PreTokenizer(name="joyai-llm", split=(DIGITS, CJK, WORDS), source=SOURCE)

PRE_TOKENIZERS = (PUBLISHED, ESCAPED)
