"""`Ops`: the small vocabulary that forward graphs are written in, and that every backend implements.

Axes, here and in every graph: B batch, T tokens of this call, S tokens in the cache, H heads, D head size, C channels,
E experts, V vocabulary. Activations are float32 on every backend; a backend is free in how it stores weights, as long
as it computes with exactly the numbers that the file encodes.

An `Array` belongs to its backend. Between ops a graph uses only what `Array` lists: arithmetic with broadcasting,
reshaping, and slices with step 1. Arrays are values: nothing changes one after it was made, except `write`, which
takes its buffer over. Backends may compute lazily, and may bind unfinished work to the thread that started it;
therefore whoever keeps an array beyond the current call passes it to `eval` first.

A new family may add an op here, together with its plain form in `hf2q.backends.reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from hf2q.types import Shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hf2q.codec import QuantCodec
    from hf2q.types import Bytes


class Array(Protocol):
    """What a graph may do with a backend's array."""

    @property
    def shape(self) -> Shape: ...
    def reshape(self, *shape: int) -> Array: ...
    def transpose(self, *axes: int) -> Array: ...
    def __getitem__(self, key: Any) -> Array: ...
    def __add__(self, other: Array | float) -> Array: ...
    def __radd__(self, other: float) -> Array: ...
    def __sub__(self, other: Array | float) -> Array: ...
    def __mul__(self, other: Array | float) -> Array: ...
    def __rmul__(self, other: float) -> Array: ...
    def __truediv__(self, other: Array | float) -> Array: ...


class Matrix(Protocol):
    """A weight matrix, or a stack of them, in whatever form the backend computes with.

    `shape` is (out, in), or (E, out, in); `nbytes` the memory it takes; `quantized` whether it still is.
    """

    @property
    def shape(self) -> Shape: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def quantized(self) -> bool: ...


class Ops(Protocol):
    """The vocabulary. `name` is the backend's name; `threads` is how many threads loading may use."""

    name: str

    def __init__(self, *, threads: int) -> None: ...

    # -------------------------------------------------------------------------------------------------- at the edges

    def asarray(self, values: NDArray[Any]) -> Array:
        """Numpy float32 or int32 of any shape -> the backend's array, with its own copy of the values."""
        ...

    def to_numpy(self, x: Array) -> NDArray[Any]:
        """The values as numpy, dtype kept. Computes what is pending."""
        ...

    def eval(self, *arrays: Array) -> None:
        """Compute what is pending for these arrays; afterwards any thread may use them."""
        ...

    def matrix(self, blocks: Bytes, codec: QuantCodec, shape: Shape) -> Matrix:
        """A weight as a file holds it: blocks uint8 (rows, bytes) of `codec`, rows the product of shape[:-1].

        Evaluated when it returns. No value is changed: what cannot be computed with as stored is decoded.
        """
        ...

    # ------------------------------------------------------------------------------------------------------- memory

    def zeros(self, shape: Shape) -> Array:
        """float32 zeros."""
        ...

    def write(self, buffer: Array, values: Array, start: int) -> Array:
        """`buffer` (B, H, S, D) with [:, :, start : start + T] replaced by `values` (B, H, T, D).

        Takes `buffer` over: the caller uses the result from here on.
        """
        ...

    def copy(self, x: Array) -> Array:
        """An array that stays as it is when `x` is given to `write`."""
        ...

    def concat(self, arrays: Sequence[Array], axis: int) -> Array:
        """Join along `axis`."""
        ...

    # ----------------------------------------------------------------------------------------------------- matrices

    def embedding(self, ids: Array, table: Matrix) -> Array:
        """Rows of `table` (V, C): ids int32 (B, T) -> (B, T, C)."""
        ...

    def linear(self, x: Array, weight: Matrix) -> Array:
        """x · weightᵀ: (..., in) with (out, in) -> (..., out)."""
        ...

    def moe(
        self,
        x: Array,
        experts: Array,
        weights: Array,
        gate: Matrix,
        up: Matrix,
        down: Matrix,
        activation: Callable[[Array, Array], Array],
    ) -> Array:
        """Mixture of gated experts: Σ_k weights[k] · down_e(activation(gate_e(x), up_e(x))), e = experts[k].

        x (B, T, C); experts int32 and weights float32 (B, T, K); gate and up (E, F, C), down (E, C, F) -> (B, T, C).
        """
        ...

    # -------------------------------------------------------------------------------------------------- elementwise

    def exp(self, x: Array) -> Array:
        """e^x."""
        ...

    def sigmoid(self, x: Array) -> Array:
        """1 / (1 + e^-x)."""
        ...

    def silu(self, x: Array) -> Array:
        """x · sigmoid(x)."""
        ...

    def softplus(self, x: Array) -> Array:
        """log(1 + e^x), without overflow."""
        ...

    def swiglu(self, gate: Array, up: Array) -> Array:
        """silu(gate) · up."""
        ...

    # ------------------------------------------------------------------------------------------- over the last axis

    def rms_norm(self, x: Array, weight: Array | None, eps: float) -> Array:
        """x / sqrt(mean(x²) + eps) · weight (C,), without weight when None."""
        ...

    def l2_norm(self, x: Array, eps: float) -> Array:
        """x / sqrt(Σ x² + eps)."""
        ...

    def softmax(self, x: Array) -> Array:
        """e^x / Σ e^x, without overflow."""
        ...

    def sum(self, x: Array) -> Array:
        """Σ x, the axis kept with size 1."""
        ...

    def top_k(self, x: Array, k: int) -> tuple[Array, Array]:
        """The k largest values in descending order and their indices (int32): (..., C) -> twice (..., k)."""
        ...

    # -------------------------------------------------------------------------------------------------- over tokens

    def rope(self, x: Array, cos: Array, sin: Array) -> Array:
        """Rotary positions on the first 2·R of D dimensions, in halves (NeoX): (j, j + R) is rotated by angle j.

        x (B, T, H, D); cos and sin (T, R), from `hf2q.backends.rope`. The other dimensions pass through.
        """
        ...

    def attention(self, q: Array, k: Array, v: Array, scale: float) -> Array:
        """Causal attention softmax(scale · q kᵀ) v; the T queries are the last T of the S positions.

        q (B, H, T, D); k (B, G, S, D); v (B, G, S, Dv); H a multiple of G: query heads h·H/G and following use key
        head h. -> (B, H, T, Dv).
        """
        ...

    def conv1d_causal(self, x: Array, weight: Array, state: Array) -> tuple[Array, Array]:
        """Depthwise convolution: y_t = Σ_τ weight[:, τ] · x_(t - K + 1 + τ), where `state` holds the inputs before x.

        x (B, T, C); weight (C, K); state (B, K - 1, C) -> y (B, T, C) and the state after x.
        """
        ...

    def gated_delta(self, q: Array, k: Array, v: Array, decay: Array, beta: Array, state: Array) -> tuple[Array, Array]:
        """The gated delta rule, for each value head with a state matrix S, token by token:

            S ← e^decay S;   S ← S + k ⊗ beta (v - Sᵀk);   o = Sᵀq

        q and k (B, T, G, Dk); v (B, T, H, Dv); decay (≤ 0) and beta (B, T, H); state (B, H, Dk, Dv); H a multiple of
        G: value head h uses key head h mod G. -> o (B, T, H, Dv) and the state after the last token.
        Source: Yang et al., Gated Delta Networks, arXiv 2412.06464.
        """
        ...
