"""What a tokenizer keeps of a large vocabulary: a model's memory should be its weights."""

import gc
import tracemalloc

import pytest

from hf2q.formats.tokenizer import load_tokenizer
from hf2q.types import PreTokenizer

TOKENS = 50_000


def metadata():
    letters = [chr(code) for code in range(ord("!"), ord("~") + 1)]
    words = [f"{a}{b}" for a in letters for b in letters]
    merges = [f"{a} {b}" for a in letters for b in letters]
    texts = [*letters, *words, "<|end|>"]
    texts += [f"[unused {number}]" for number in range(TOKENS - len(texts))]
    known = len(letters) + len(words)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "any",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [1] * known + [3] + [5] * (TOKENS - known - 1),
        "tokenizer.ggml.merges": merges,
    }


def test_a_token_takes_its_letters_and_little_more():
    pytest.importorskip("tokenizers")
    pre = PreTokenizer(name="any", split=(r"\p{L}+| ",))
    load_tokenizer(metadata(), [pre]).encode("warm")
    given = metadata()
    letters = sum(map(len, given["tokenizer.ggml.tokens"]))
    gc.collect()
    tracemalloc.start()
    tokenizer = load_tokenizer(given, [pre])
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 2 * letters + 8 * TOKENS  # a str alone has 49 bytes besides its letters
    assert tokenizer.id_of("th") == tokenizer.encode("th")[0]
    assert tokenizer.token_text(tokenizer.id_of("<|end|>")) == "<|end|>"
    assert (tokenizer.id_of("[unused 7]"), tokenizer.id_of("thx")) == (None, None)
