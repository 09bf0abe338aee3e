"""The vision tower ``qwen3vl_merger``: patches of an image to embeddings of a text model.

Attributes are named as the GGUF tensors. Patches come block by block: those that are merged into one follow each
other, so that joining them is a reshape. A still image is shown as two equal frames, whose two convolutions are one
with the sum of their weights.

The norms' epsilon is 1e-6 whatever the file says, and the mergers' GELU is the exact one while that of the blocks is
approximated by tanh: transformers, models/qwen3_vl/modeling_qwen3_vl.py. llama.cpp (tools/mtmd/models/qwen3vl.cpp) has
one GELU for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hf2q.backends import rope
from hf2q.backends.media import ImageEmbeddings
from hf2q.backends.ops import Array, Ops
from hf2q.backends.weights import Weights
from hf2q.errors import LoadError
from hf2q_arch_qwen3vl.images import in_blocks, interpolation, normalised, patches_of, smart_size
from hf2q_arch_qwen3vl.tower import NORM_EPS
from hf2q_arch_qwen3vl.vision import TowerHParams

if TYPE_CHECKING:
    from hf2q.types import Float32

ROPE_BASE = 10000.0
"""GGUF has no key for another one."""

MIN_TOKENS, MAX_TOKENS = 4, 4096
"""Bounds of an image where the file does not say. The larger one is llama.cpp's: tools/mtmd/clip.cpp."""

Rotation = tuple[Array, Array]


class Layer:
    """A linear layer with a bias."""

    def __init__(self, weights: Weights, ops: Ops, name: str) -> None:
        self.ops = ops
        self.weight = weights.matrix(f"{name}.weight")
        self.bias = weights.array(f"{name}.bias")

    def __call__(self, x: Array) -> Array:
        """x (..., in) -> (..., out)."""
        return self.ops.linear(x, self.weight) + self.bias


class Norm:
    """A layer norm."""

    def __init__(self, weights: Weights, ops: Ops, name: str) -> None:
        self.ops = ops
        self.weight = weights.array(f"{name}.weight")
        self.bias = weights.array(f"{name}.bias")

    def __call__(self, x: Array) -> Array:
        """x (..., C), the same shape."""
        return self.ops.layer_norm(x, self.weight, self.bias, NORM_EPS)


class Block:
    """Attention between all patches of an image and an FFN, each behind a norm and added to the residual stream."""

    def __init__(self, h: TowerHParams, weights: Weights, ops: Ops, i: int) -> None:
        blk = f"v.blk.{i}"
        self.h, self.ops = h, ops
        self.ln1, self.ln2 = Norm(weights, ops, f"{blk}.ln1"), Norm(weights, ops, f"{blk}.ln2")
        self.attn_qkv = Layer(weights, ops, f"{blk}.attn_qkv")
        self.attn_out = Layer(weights, ops, f"{blk}.attn_out")
        self.ffn_up, self.ffn_down = Layer(weights, ops, f"{blk}.ffn_up"), Layer(weights, ops, f"{blk}.ffn_down")

    def __call__(self, x: Array, rotation: Rotation) -> Array:
        """x (1, P, C) -> (1, P, C)."""
        x = x + self._attention(self.ln1(x), rotation)
        return x + self.ffn_down(self.ops.gelu_tanh(self.ffn_up(self.ln2(x))))

    def _attention(self, x: Array, rotation: Rotation) -> Array:
        h, ops = self.h, self.ops
        qkv = self.attn_qkv(x)  # (1,P,3C): queries | keys | values
        size = h.n_embd // h.n_head
        parts = (qkv[..., at * h.n_embd : (at + 1) * h.n_embd] for at in range(3))
        q, k, v = (part.reshape(1, x.shape[1], h.n_head, size) for part in parts)  # (1,P,H,D)
        q, k = ops.rope(q, *rotation), ops.rope(k, *rotation)
        keys, values = k[0].transpose(1, 0, 2), v[0].transpose(1, 0, 2)  # (H,P,D)
        out = ops.attention(q, [keys], [values], size**-0.5, causal=False)
        return self.attn_out(out.reshape(1, x.shape[1], h.n_embd))


class Merger:
    """Joins the patches of each block of a grid into one vector of the text model.

    The norm comes before they are joined, or (of a DeepStack merger) after that.
    """

    def __init__(self, h: TowerHParams, weights: Weights, ops: Ops, norm: str, fc1: str, fc2: str) -> None:
        self.h, self.ops = h, ops
        self.norm = Norm(weights, ops, norm)
        self.fc1, self.fc2 = Layer(weights, ops, fc1), Layer(weights, ops, fc2)

    def __call__(self, x: Array) -> Array:
        """x (1, P, C) -> (N, C of the text model)."""
        wide = self.h.symbols["n_merged"]
        after = self.norm.bias.shape[-1] == wide
        x = self.norm(x.reshape(-1, wide)) if after else self.norm(x).reshape(-1, wide)
        return self.fc2(self.ops.gelu(self.fc1(x)))


class Qwen3VLTower:
    """Projector ``qwen3vl_merger``; follows `hf2q.backends.graph.VisionGraph`."""

    def __init__(self, hparams: TowerHParams, weights: Weights, ops: Ops) -> None:
        h = hparams
        if h.n_embd % h.n_head or h.n_embd // h.n_head % 4:
            raise LoadError(
                f"the vision tower is {h.n_embd} wide and has {h.n_head} heads, expected a multiple of 4 for each: a "
                "quarter of a head's pairs turn by the row of a patch, and by its column"
            )
        area = (h.patch_size * h.merge) ** 2
        self.bounds = h.min_pixels or MIN_TOKENS * area, h.max_pixels or MAX_TOKENS * area
        if not area <= self.bounds[0] <= self.bounds[1]:
            raise LoadError(
                f"images of {self.bounds[0]} to {self.bounds[1]} pixels, by clip.vision.image_min_pixels and "
                f"image_max_pixels; expected an ascending pair of at least {area}"
            )
        self.h, self.ops = h, ops
        self.patch_embd = self._convolution(weights, "v.patch_embd.weight") + self._convolution(
            weights, "v.patch_embd.weight.1"
        )
        self.patch_embd_bias = weights.array("v.patch_embd.bias")
        self.position_embd = weights.matrix("v.position_embd.weight")
        self.blk = [Block(h, weights, ops, i) for i in range(h.n_layer)]
        self.deepstack = {
            i: Merger(h, weights, ops, *(f"v.deepstack.{i}.{part}" for part in ("norm", "fc1", "fc2")))
            for i in sorted(h.taps)
        }
        self.merger = Merger(h, weights, ops, "v.post_ln", "mm.0", "mm.2")
        self.inverse_frequencies = rope.frequencies(h.n_embd // h.n_head // 2, ROPE_BASE)
        ops.eval(self.patch_embd)

    @property
    def n_deepstack(self) -> int:
        """Number of blocks after which features are taken for the text model."""
        return len(self.deepstack)

    def prepare(self, pixels: NDArray[np.uint8]) -> tuple[Float32, tuple[int, int]]:
        """An image (height, width, 3), RGB -> patches (P, 3 · patch · patch), block by block, and their grid."""
        from hf2q.formats.images import resized

        h = self.h
        height, width, _ = pixels.shape
        size = smart_size(height, width, h.patch_size * h.merge, *self.bounds)
        image = normalised(resized(pixels, size), h.image_mean, h.image_std)
        return patches_of(image, h.patch_size, h.merge)

    def embed(self, patches: Float32, grid: tuple[int, int]) -> ImageEmbeddings:
        """Patches (P, 3 · patch · patch) in blocks, of a grid whose sides can be divided by the merger's."""
        x, rotation = self.embedded(patches, grid), self._rotation(grid)
        taps = []
        for i, block in enumerate(self.blk):
            x = block(x, rotation)
            if i in self.deepstack:
                taps.append(self.deepstack[i](x))
        merged = self.merger(x)
        self.ops.eval(merged, *taps)
        return ImageEmbeddings(merged, tuple(taps), (grid[0] // self.h.merge, grid[1] // self.h.merge))

    def embedded(self, patches: Float32, grid: tuple[int, int]) -> Array:
        """What goes into the first block: patches and their positions, (1, P, C)."""
        ops, h = self.ops, self.h
        x = ops.matmul(ops.asarray(np.ascontiguousarray(patches)), self.patch_embd) + self.patch_embd_bias  # (P,C)
        index, share = interpolation(grid, h.image_size // h.patch_size, h.merge)
        near = ops.embedding(ops.asarray(index), self.position_embd) * ops.asarray(share[..., None])  # (4,P,C)
        x = x + (near[0] + near[1] + near[2] + near[3])
        return x.reshape(1, *x.shape)

    def _convolution(self, weights: Weights, name: str) -> Array:
        """(C, 3, patch, patch) -> (3 · patch · patch, C)."""
        return weights.array(name).reshape(self.h.n_embd, -1).transpose(1, 0)

    def _rotation(self, grid: tuple[int, int]) -> Rotation:
        """Of a head's pairs the first half turns by a patch's row, the second by its column: (1, P, D / 2) each."""
        cells = np.stack(np.meshgrid(*(np.arange(side) for side in grid), indexing="ij"), axis=-1)  # (rows,columns,2)
        places = np.repeat(in_blocks(cells, self.h.merge), len(self.inverse_frequencies), axis=-1)[None]
        cos, sin = rope.table(places, np.tile(self.inverse_frequencies, 2))
        return self.ops.asarray(cos), self.ops.asarray(sin)
