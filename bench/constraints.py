"""How long it takes to hold an answer to a form, per token: masks over a vocabulary of 250,000 made-up tokens.

python bench/constraints.py [TOKENS]
"""

from __future__ import annotations

import random
import sys
import time

import numpy as np

from hf2q.formats.tokenizer import load_tokenizer
from hf2q.formats.tokenizer.alphabet import CHAR_OF_BYTE
from hf2q.serve.chat.constraints import Constraints
from hf2q.serve.chat.query import ChatQuery, ResponseFormat, Tool, ToolChoice
from hf2q.serve.chat.syntax import ToolSchema
from hf2q.types import PreTokenizer
from hf2q_arch_gemma4.calls import GemmaCalls
from hf2q_arch_qwen35.calls import QwenCalls

MARKERS = ("<think>", "</think>")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 40}},
        "zip": {"type": "string", "pattern": "^\\d{5}$"},
    },
    "required": ["name", "age", "tags", "zip"],
    "additionalProperties": False,
}
TOOLS = tuple(
    Tool(
        name=f"tool_{number}",
        parameters={
            "type": "object",
            "properties": {"path": {"type": "string"}, "n": {"type": "integer"}, "who": PERSON},
            "required": ["path"],
        },
    )
    for number in range(20)
)


def vocabulary(count: int) -> dict[str, object]:
    """Metadata of a byte-level tokenizer: bytes, an end, and words as they begin in texts and in JSON."""
    rng = random.Random(0)
    words: set[str] = set()
    while len(words) < count - 260:
        word = "".join(
            rng.choice("etaoinshrdlucmfwypvbgkjqxz") for _ in range(rng.choice([2, 3, 3, 4, 4, 5, 6, 8, 10]))
        )
        before, behind = rng.choice([(" ", ""), (" ", ""), ("", ""), ('"', ""), ("", '":'), ("日本", ""), ("\n", "(")])
        words.add("".join(CHAR_OF_BYTE[byte] for byte in f"{before}{word}{behind}".encode()))
    tokens = [*(CHAR_OF_BYTE[byte] for byte in range(256)), *sorted(words), "<|im_end|>", *MARKERS]
    types = [1] * (len(tokens) - 3) + [3, 4, 4]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "bench",
        "tokenizer.ggml.tokens": tuple(tokens),
        "tokenizer.ggml.token_type": tuple(types),
        "tokenizer.ggml.merges": ("a b",) if "ab" in words else (),
        "tokenizer.ggml.eos_token_id": len(tokens) - 3,
    }


def main(count: int) -> None:
    """Print a table."""
    tokenizer = load_tokenizer(vocabulary(count), [PreTokenizer(name="bench")])
    n_vocab = tokenizer.n_vocab + 64
    begun = time.perf_counter()
    constraints = Constraints(tokenizer, end_ids=tokenizer.eos_ids, n_vocab=n_vocab)
    constraints.warm()
    print(f"{n_vocab} tokens, prepared in {time.perf_counter() - begun:.2f} s")
    print(f"{'form':24} {'compile ms':>10} {'mean ms':>8} {'p99 ms':>8} {'max ms':>8}")
    person = ResponseFormat(kind="json_schema", schema=PERSON)
    required = ToolChoice(mode="required")
    for name, syntax, inside, query in (
        ("json_schema", None, False, ChatQuery(messages=(), format=person)),
        ("json_object", None, False, ChatQuery(messages=(), format=ResponseFormat(kind="json_object"))),
        ("reasoning, then JSON", None, True, ChatQuery(messages=(), format=person)),
        ("auto, Qwen", QwenCalls(), False, ChatQuery(messages=(), tools=TOOLS)),
        ("required, Qwen", QwenCalls(), False, ChatQuery(messages=(), tools=TOOLS, choice=required)),
        ("required, Gemma", GemmaCalls(), False, ChatQuery(messages=(), tools=TOOLS, choice=required)),
    ):
        tools = tuple(ToolSchema(tool.name, tool.parameters) for tool in query.tools)
        begun = time.perf_counter()
        form = constraints.form(query, markers=MARKERS, inside=inside, syntax=syntax, tools=tools)
        compiled = time.perf_counter() - begun
        assert form is not None
        rng, times = np.random.default_rng(0), []
        for _ in range(4):
            constraint = form.constraint()
            for _ in range(200):
                begun = time.perf_counter()
                mask = constraint.allowed()
                times.append(time.perf_counter() - begun)
                assert mask is not None
                allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
                begun = time.perf_counter()
                constraint.accept(int(rng.choice(allowed)))
                times[-1] += time.perf_counter() - begun
                if constraint.complete:
                    break
        spent = np.array(times) * 1e3
        print(
            f"{name:24} {compiled * 1e3:10.1f} {spent.mean():8.3f} {np.percentile(spent, 99):8.3f} {spent.max():8.3f}"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 250_000)
