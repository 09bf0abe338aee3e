"""What quantizing costs the test checkpoint: mean KL divergence, in nats, of each recipe's file to the f32 file.

    python bench/divergence.py [RECIPE ...]

Logits of the checkpoint's four recorded prompts, float64 softmax, the f32 file as reference.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

import hf2q
from hf2q.convert import convert

CHECKPOINT = Path(__file__).resolve().parent.parent / "tests" / "data" / "qwen3_5"
RECIPES = ("q8_0", "q6_k", "q4_k_m", "q4_0")


def log_softmax(logits):
    """Float64 log probabilities along the last axis."""
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def log_probabilities(recipe, folder, prompts):
    """Log probabilities (tokens of all prompts, vocabulary) of the checkpoint converted by `recipe`."""
    path = folder / f"{recipe}.gguf"
    convert(CHECKPOINT, recipe, path)
    model = hf2q.load(path)
    return np.concatenate([log_softmax(model.logits(ids)) for ids in prompts])


def main():
    """Print a line for each recipe."""
    with np.load(CHECKPOINT / "oracle.npz") as oracle:
        prompts = [oracle[f"{name}.ids"].tolist() for name in ("text_short", "text_300", "chat", "tool")]
    with tempfile.TemporaryDirectory() as name:
        p = log_probabilities("f32", Path(name), prompts)
        for recipe in sys.argv[1:] or RECIPES:
            q = log_probabilities(recipe, Path(name), prompts)
            print(f"{recipe:8} {(np.exp(p) * (p - q)).sum(-1).mean():.1e}")


if __name__ == "__main__":
    main()
