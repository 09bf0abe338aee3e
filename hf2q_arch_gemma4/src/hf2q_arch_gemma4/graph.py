"""The forward pass of Gemma 4: dense, with experts beside the dense FFN, and with per-layer inputs.

What is special about the family: norms before and after attention and FFN; a factor on what each block gives; small
models give every block a vector of its own for each token, made from a second embedding and from the first; their last
blocks have no keys and values of their own (`graph_attention`).

Attributes are named as the GGUF tensors. Embeddings are multiplied by sqrt(C) in float32, as llama.cpp does;
transformers rounds the factor to the type of the weights, which is the same number when it computes in float32.

An image goes in as embeddings in the place of tokens, which are not multiplied; see `graph_images`.

Sources: transformers, models/gemma4/modeling_gemma4.py, `Gemma4TextModel` and `Gemma4TextDecoderLayer`; llama.cpp,
src/models/gemma4.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hf2q.backends import media as images
from hf2q.backends.cache import Cache
from hf2q.backends.media import Media
from hf2q.backends.ops import Array, Ops
from hf2q.backends.weights import Weights
from hf2q.errors import LoadError
from hf2q_arch_gemma4.graph_attention import Attention, Memory, Rotation, Rotations
from hf2q_arch_gemma4.graph_ffn import DenseFFN, MoEFFN
from hf2q_arch_gemma4.graph_images import Sight, without_images
from hf2q_arch_gemma4.hparams import Gemma4HParams


class PerLayerInputs:
    """For each token a vector of P values for every block, from the token itself and from its embedding."""

    def __init__(self, h: Gemma4HParams, weights: Weights, ops: Ops) -> None:
        self.h, self.ops = h, ops
        self.per_layer_token_embd = weights.matrix("per_layer_token_embd.weight")
        self.per_layer_model_proj = weights.matrix("per_layer_model_proj.weight")
        self.per_layer_proj_norm = weights.array("per_layer_proj_norm.weight")

    def __call__(self, ids: Array, x: Array) -> list[Array]:
        """ids and scaled embeddings (B, T, C) -> one (B, T, P) for each block."""
        h, ops = self.h, self.ops
        batch, tokens, _ = x.shape
        shape = (batch, tokens, h.n_layer, h.n_ple)
        context = (ops.linear(x, self.per_layer_model_proj) * h.n_embd**-0.5).reshape(*shape)
        own = ops.embedding(ids, self.per_layer_token_embd).reshape(*shape) * h.n_ple**0.5
        both = (ops.rms_norm(context, self.per_layer_proj_norm, h.rms_eps) + own) * 2**-0.5
        flat = both.reshape(batch, tokens, h.n_layer * h.n_ple)
        return [flat[:, :, i * h.n_ple : (i + 1) * h.n_ple] for i in range(h.n_layer)]


class Block:
    """One layer: attention and FFN between norms, the layer's own input if there is one, a factor on all of it."""

    def __init__(self, h: Gemma4HParams, weights: Weights, ops: Ops, i: int) -> None:
        blk = f"blk.{i}"
        self.h, self.ops = h, ops
        self.attn_norm = weights.array(f"{blk}.attn_norm.weight")
        self.attention = Attention(h, weights, ops, i)
        self.post_attention_norm = weights.array(f"{blk}.post_attention_norm.weight")
        self.ffn = (MoEFFN if h.n_expert else DenseFFN)(h, weights, ops, blk)
        self.post_ffw_norm = weights.array(f"{blk}.post_ffw_norm.weight")
        if h.n_ple:
            self.inp_gate = weights.matrix(f"{blk}.inp_gate.weight")
            self.proj = weights.matrix(f"{blk}.proj.weight")
            self.post_norm = weights.array(f"{blk}.post_norm.weight")
        self.layer_output_scale = weights.array(f"{blk}.layer_output_scale.weight")  # (1,)

    def __call__(self, x: Array, rotation: Rotation, memory: Memory, own: Array | None) -> Array:
        """x (B, T, C) and the layer's own input (B, T, P), None in models without -> (B, T, C)."""
        ops, eps = self.ops, self.h.rms_eps
        mixed = self.attention(ops.rms_norm(x, self.attn_norm, eps), rotation, memory)
        x = x + ops.rms_norm(mixed, self.post_attention_norm, eps)
        x = x + ops.rms_norm(self.ffn(x), self.post_ffw_norm, eps)
        if own is not None:
            gated = ops.geglu(ops.linear(x, self.inp_gate), own)
            x = x + ops.rms_norm(ops.linear(gated, self.proj), self.post_norm, eps)
        return x * self.layer_output_scale


class Gemma4Graph:
    """Arch ``gemma4``; follows `hf2q.backends.graph.SeeingGraph`."""

    def __init__(self, hparams: Gemma4HParams, weights: Weights, ops: Ops) -> None:
        if not hparams.causal:
            raise LoadError(
                "this model attends both ways over all of its text; the graph of its family is causal only",
                hint="the model embeds text and does not generate; converting it works, running it does not",
            )
        self.h, self.ops = hparams, ops
        self.rotations = Rotations(hparams, weights, ops)
        self.token_embd = weights.matrix("token_embd.weight")
        self.per_layer_inputs = PerLayerInputs(hparams, weights, ops) if hparams.n_ple else None
        self.blk = [Block(hparams, weights, ops, i) for i in range(hparams.n_layer)]
        self.output_norm = weights.array("output_norm.weight")
        tied = "output.weight" not in weights
        self.output = self.token_embd if tied else weights.matrix("output.weight")

    @property
    def n_vocab(self) -> int:
        """Number of logits."""
        return self.output.shape[0]

    @property
    def n_deepstack(self) -> int:
        """An image brings nothing besides its embeddings."""
        return 0

    @property
    def whole_images(self) -> bool:
        """Whether the tokens of an image see each other."""
        return self.h.images_both_ways

    def new_cache(self) -> Cache:
        """An empty cache, with parts for the blocks that have keys and values of their own."""
        return Cache([block.attention.new_part() for block in self.blk if block.attention.own])

    def hidden(self, ids: NDArray[np.int32], caches: Sequence[Cache], media: Media | None = None) -> Array:
        """ids (B, T) after what `caches` hold -> final, normalised hidden states (B, T, C)."""
        h, ops = self.h, self.ops
        tokens = ids.shape[1]
        seen = images.check_media(caches, tokens, media)
        sight = Sight(ops, caches, tokens, seen) if seen and self.whole_images else None
        numbers = ops.asarray(without_images(ids, caches, seen))
        x = images.with_images(ops, ops.embedding(numbers, self.token_embd) * h.n_embd**0.5, caches, seen)  # (B,T,C)
        own = self.per_layer_inputs(numbers, x) if self.per_layer_inputs else [None] * h.n_layer
        rotations, memory = self.rotations(caches, tokens), Memory(caches, sight)
        for block, mine in zip(self.blk, own, strict=True):
            x = block(x, rotations[block.attention.sliding], memory, mine)
        images.advance_images(caches, tokens, seen)
        return ops.rms_norm(x, self.output_norm, h.rms_eps)

    def head(self, hidden: Array) -> Array:
        """(..., C) -> logits (..., V)."""
        logits = self.ops.linear(hidden, self.output)
        return logits if self.h.softcap is None else self.ops.softcap(logits, self.h.softcap)
