"""The vision tower ``gemma4v``: patches of an image to embeddings of a text model.

Attributes are named as the GGUF tensors. Patches come block by block: those that are averaged into one vector follow
each other. Their order means nothing else, for each has its place in the image.

Of a head's numbers the first half turns by the column of a patch, the second by its row, each in two halves of its own.
`_turned` changes the order of the numbers, of queries and keys alike, so that both turn at once.

Sources: transformers, models/gemma4/modeling_gemma4.py, `Gemma4VisionModel` and `Gemma4MultimodalEmbedder`; llama.cpp,
tools/mtmd/models/gemma4v.cpp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hf2q.backends import rope
from hf2q.backends.media import ImageEmbeddings
from hf2q.backends.ops import Array, Ops
from hf2q.backends.weights import Weights
from hf2q.errors import LoadError, RequestError
from hf2q_arch_gemma4.images import fitted_size, in_blocks, normalised, patches_of
from hf2q_arch_gemma4.tower import POOLING
from hf2q_arch_gemma4.vision import Gemma4TowerHParams

if TYPE_CHECKING:
    from hf2q.types import Float32

ROPE_BASE = 100.0
"""GGUF has no key for another one."""

TOKENS = (70, 140, 280, 560, 1120)
"""How many tokens an image may become at most: the numbers that the family was trained with."""

DEFAULT_TOKENS = 280

Rotation = tuple[Array, Array]


class Linear:
    """A linear layer; what goes in and what comes out is kept within bounds that the file may have."""

    def __init__(self, weights: Weights, ops: Ops, name: str) -> None:
        def bound(which: str) -> float | None:
            full = f"{name}.{which}"
            return float(ops.to_numpy(weights.array(full)).reshape(())) if full in weights else None

        self.ops = ops
        self.weight = weights.matrix(f"{name}.weight")
        self.input = bound("input_min"), bound("input_max")
        self.output = bound("output_min"), bound("output_max")

    def __call__(self, x: Array) -> Array:
        """x (..., in) -> (..., out)."""
        return self._kept(self.ops.linear(self._kept(x, self.input), self.weight), self.output)

    def _kept(self, x: Array, bounds: tuple[float | None, float | None]) -> Array:
        return x if bounds == (None, None) else self.ops.clamp(x, *bounds)


class Block:
    """Attention between all patches of an image and a gated FFN, each between two norms."""

    def __init__(self, h: Gemma4TowerHParams, weights: Weights, ops: Ops, i: int) -> None:
        def norm(name: str) -> Array:
            return weights.array(f"v.blk.{i}.{name}.weight")

        def linear(name: str) -> Linear:
            return Linear(weights, ops, f"v.blk.{i}.{name}")

        self.h, self.ops = h, ops
        self.ln1, self.attn_post_norm = norm("ln1"), norm("attn_post_norm")
        self.ln2, self.ffn_post_norm = norm("ln2"), norm("ffn_post_norm")
        self.attn_q_norm, self.attn_k_norm = norm("attn_q_norm"), norm("attn_k_norm")
        self.attn_q, self.attn_k, self.attn_v = linear("attn_q"), linear("attn_k"), linear("attn_v")
        self.attn_out = linear("attn_out")
        self.ffn_gate, self.ffn_up, self.ffn_down = linear("ffn_gate"), linear("ffn_up"), linear("ffn_down")

    def __call__(self, x: Array, rotation: Rotation) -> Array:
        """x (1, P, C) -> (1, P, C)."""
        ops, eps = self.ops, self.h.norm_eps
        mixed = self._attention(ops.rms_norm(x, self.ln1, eps), rotation)
        x = x + ops.rms_norm(mixed, self.attn_post_norm, eps)
        y = ops.rms_norm(x, self.ln2, eps)
        y = self.ffn_down(ops.geglu(self.ffn_gate(y), self.ffn_up(y)))
        return x + ops.rms_norm(y, self.ffn_post_norm, eps)

    def _attention(self, x: Array, rotation: Rotation) -> Array:
        h, ops, eps = self.h, self.ops, self.h.norm_eps
        shape = (1, x.shape[1], h.n_head, h.n_embd // h.n_head)
        q, k, v = (layer(x).reshape(*shape) for layer in (self.attn_q, self.attn_k, self.attn_v))  # (1,P,H,D)
        q = self._turned(ops.rms_norm(q, self.attn_q_norm, eps), rotation)
        k = self._turned(ops.rms_norm(k, self.attn_k_norm, eps), rotation)
        v = ops.rms_norm(v, None, eps)
        keys, values = k[0].transpose(1, 0, 2), v[0].transpose(1, 0, 2)  # (H,P,D)
        out = ops.attention(q, [keys], [values], 1.0, causal=False)
        return self.attn_out(out.reshape(1, x.shape[1], h.n_embd))

    def _turned(self, x: Array, rotation: Rotation) -> Array:
        """x (1, P, H, D), each quarter of a head an array of its own: 0, 1 by column, 2, 3 by row -> 0, 2, 1, 3."""
        _, patches, heads, size = x.shape
        x = x.reshape(patches, heads, 2, 2, size // 4).transpose(0, 1, 3, 2, 4).reshape(1, patches, heads, size)
        return self.ops.rope(x, *rotation)


class Gemma4Tower:
    """Projector ``gemma4v``; follows `hf2q.backends.graph.VisionGraph`."""

    def __init__(self, hparams: Gemma4TowerHParams, weights: Weights, ops: Ops) -> None:
        h = hparams
        if h.n_embd // h.n_head % 4:
            raise LoadError(
                f"the vision tower has heads of {h.n_embd // h.n_head}, expected a multiple of 4: half of a head's "
                "pairs turn by the column of a patch, half by its row"
            )
        self.h, self.ops = h, ops
        self.most = _most_tokens(h)
        patches = weights.array("v.patch_embd.weight")  # (C,3,patch,patch)
        self.patch_embd = patches.transpose(2, 3, 1, 0).reshape(-1, h.n_embd)
        # looked up for each image once, so that there is no need of it where the backend computes
        self.position_embd = ops.to_numpy(weights.array("v.position_embd.weight"))  # (2,positions,C)
        self.blk = [Block(h, weights, ops, i) for i in range(h.n_layer)]
        if ("v.std_bias" in weights) != ("v.std_scale" in weights):
            raise LoadError("the projector has one of v.std_bias and v.std_scale, expected both or neither")
        standardized = "v.std_bias" in weights
        self.std = (weights.array("v.std_bias"), weights.array("v.std_scale")) if standardized else None
        self.input_projection = weights.matrix("mm.input_projection.weight")
        self.inverse_frequencies = rope.frequencies(h.n_embd // h.n_head // 2, ROPE_BASE)
        self.shares = ops.asarray(np.full((1, 1, POOLING**2), 1 / POOLING**2, np.float32))
        ops.eval(self.patch_embd, self.shares)

    @property
    def n_deepstack(self) -> int:
        """The tower gives the text model nothing besides embeddings."""
        return 0

    def prepare(self, pixels: NDArray[np.uint8]) -> tuple[Float32, tuple[int, int]]:
        """An image (height, width, 3), RGB -> patches (P, patch · patch · 3), block by block, and their grid."""
        from hf2q.formats.images import resized

        h = self.h
        height, width, _ = pixels.shape
        size = fitted_size(height, width, h.patch_size * POOLING, self.most)
        known = self.position_embd.shape[1]
        if max(size) > known * h.patch_size:
            raise RequestError(
                f"an image of {width} × {height} pixels is too narrow: it becomes {size[1]} × {size[0]}, and the tower "
                f"knows positions of {known} patches of {h.patch_size} pixels",
                param="image",
            )
        return patches_of(normalised(resized(pixels, size), h.image_mean, h.image_std), h.patch_size, POOLING)

    def embed(self, patches: Float32, grid: tuple[int, int]) -> ImageEmbeddings:
        """Patches (P, patch · patch · 3) in blocks, of a grid whose sides can be divided by the pooling's."""
        x, rotation = self.embedded(patches, grid), self._rotation(grid)
        for block in self.blk:
            x = block(x, rotation)
        pooled = self.pooled(x)
        self.ops.eval(pooled)
        return ImageEmbeddings(pooled, (), (grid[0] // POOLING, grid[1] // POOLING))

    def embedded(self, patches: Float32, grid: tuple[int, int]) -> Array:
        """What goes into the first block: patches, spread from -1 to 1, and their positions, (1, P, C)."""
        ops = self.ops
        spread = np.float32(2) * (np.ascontiguousarray(patches, np.float32) - np.float32(0.5))
        columns, rows = self._cells(grid).T
        places = self.position_embd[0, columns] + self.position_embd[1, rows]  # (P,C)
        x = ops.matmul(ops.asarray(spread), self.patch_embd) + ops.asarray(places)
        return x.reshape(1, *x.shape)

    def pooled(self, x: Array) -> Array:
        """The mean of each block of patches (1, P, C), as the text model takes it: (N, C of the text model)."""
        ops, width = self.ops, self.h.n_embd
        x = ops.matmul(self.shares, x.reshape(-1, POOLING**2, width)).reshape(-1, width) * width**0.5
        if self.std is not None:
            bias, scale = self.std
            x = (x - bias) * scale
        return ops.linear(ops.rms_norm(x, None, self.h.norm_eps), self.input_projection)

    def _cells(self, grid: tuple[int, int]) -> NDArray[np.int64]:
        """Column and row of each patch, (P, 2)."""
        rows, columns = np.meshgrid(*(np.arange(side) for side in grid), indexing="ij")
        return in_blocks(np.stack([columns, rows], axis=-1), POOLING)

    def _rotation(self, grid: tuple[int, int]) -> Rotation:
        """Half of a head's pairs turn by a patch's column, half by its row: (1, P, D / 2) each."""
        places = np.repeat(self._cells(grid), len(self.inverse_frequencies), axis=-1)[None]
        cos, sin = rope.table(places, np.tile(self.inverse_frequencies, 2))
        return self.ops.asarray(cos), self.ops.asarray(sin)


def _most_tokens(h: Gemma4TowerHParams) -> int:
    """Of an image. Errors: LoadError when the file states a number of pixels that is not one of `TOKENS`."""
    if not h.max_pixels:
        return DEFAULT_TOKENS
    area = (h.patch_size * POOLING) ** 2
    if h.max_pixels not in [tokens * area for tokens in TOKENS]:
        raise LoadError(
            f"clip.vision.image_max_pixels is {h.max_pixels}, expected {', '.join(map(str, TOKENS[:-1]))} or "
            f"{TOKENS[-1]} times {area}: the family was trained with these numbers of tokens"
        )
    return h.max_pixels // area
