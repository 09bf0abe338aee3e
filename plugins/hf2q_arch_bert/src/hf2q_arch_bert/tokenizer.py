"""The tokenizers that BERT and Nomic-BERT checkpoints come with: WordPiece over words cut by BERT's own rules.

They do the same under every name (llama.cpp, src/llama-vocab.cpp, `llm_tokenizer_wpm_session`). llama.cpp's converter
tells the names apart by what a text is encoded to, which amounts to the vocabulary. Of two names that it knows for that
of bert-base-uncased (bert-bge, jina-v2-en) it takes the later.
"""

from hf2q.types import PreTokenizer

_SOURCE = "llama.cpp, conversion/base.py, TextModel.get_vocab_base_pre; convert_hf_to_gguf_update.py"


def _pre(name: str, n_tokens: int = 0) -> PreTokenizer:
    return PreTokenizer(name=name, model="bert", normalizer="BertNormalizer", n_tokens=n_tokens, source=_SOURCE)


UNCASED = _pre("jina-v2-en", 30522)
"""The vocabulary of bert-base-uncased, which most English embedders have."""

CHINESE = _pre("bert-bge-large", 21128)
"""That of bert-base-chinese."""

OTHER = _pre("bert-bge")

PRE_TOKENIZERS = (UNCASED, CHINESE, OTHER)
