"""`MtpHead`: the multi-token prediction block of Qwen 3.5, dense or MoE, as a draft head.

Of the trunk's final state at a token and the embedding of the next token, both normalised, a projection makes the input
of one more full-attention block with keys and values of its own. Its output, normalised, gives with the trunk's output
matrix the logits of the token after the next, and may stand for the next state, to guess one token further.

Attributes are named as the GGUF tensors. Source: llama.cpp, src/models/qwen35.cpp, `graph_mtp` and `load_block_mtp`
(the state is taken after the final norm).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hf2q.backends.cache import Cache, advance, layers, positions
from hf2q.backends.ops import Array, Ops
from hf2q.backends.weights import Weights
from hf2q.errors import LoadError
from hf2q_arch_qwen35.graph import Block, Qwen35Graph
from hf2q_arch_qwen35.hparams import Qwen35HParams


class MtpHead:
    """Archs ``qwen35`` and ``qwen35moe``; follows `hf2q.backends.graph.DraftHead`."""

    def __init__(self, hparams: Qwen35HParams, weights: Weights, ops: Ops, trunk: Qwen35Graph) -> None:
        if hparams.n_mtp != 1:
            raise LoadError(
                f"the model file has {hparams.n_mtp or 'no'} MTP blocks; speculation takes one",
                hint="load it without speculation, or convert a checkpoint with an MTP block without --no-mtp",
            )
        blk = f"blk.{hparams.n_trunk}"
        self.h, self.ops, self.trunk = hparams, ops, trunk
        self.block = Block(hparams, weights, ops, hparams.n_trunk)
        self.eh_proj = weights.matrix(f"{blk}.nextn.eh_proj.weight")
        self.enorm = weights.array(f"{blk}.nextn.enorm.weight")
        self.hnorm = weights.array(f"{blk}.nextn.hnorm.weight")
        norm, embeddings = f"{blk}.nextn.shared_head_norm.weight", f"{blk}.nextn.embed_tokens.weight"
        self.shared_head_norm = weights.array(norm) if norm in weights else trunk.output_norm
        self.embed_tokens = weights.matrix(embeddings) if embeddings in weights else trunk.token_embd

    def new_cache(self) -> Cache:
        """An empty cache."""
        return Cache([self.block.mixer.new_cache()])

    def hidden(self, states: Array, ids: NDArray[np.int32], caches: Sequence[Cache]) -> Array:
        """states and ids (B, T), after what `caches` hold -> final, normalised states (B, T, C)."""
        ops, eps, tokens = self.ops, self.h.rms_eps, ids.shape[1]
        embedded = ops.rms_norm(ops.embedding(ops.asarray(ids), self.embed_tokens), self.enorm, eps)
        x = ops.linear(ops.concat((embedded, ops.rms_norm(states, self.hnorm, eps)), -1), self.eh_proj)
        places = np.repeat(positions(caches, tokens)[..., None], 3, axis=-1)  # (B,T,3): as the positions of text
        (parts,) = layers(caches)
        x = self.block(x, self.trunk.rotation(places), parts)
        advance(caches, tokens)
        return ops.rms_norm(x, self.shared_head_norm, eps)

    def head(self, hidden: Array) -> Array:
        """(..., C) -> logits (..., V)."""
        return self.trunk.head(hidden)
