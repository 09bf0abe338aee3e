"""`Ops`: the small vocabulary that forward graphs are written in, and that every backend implements.

Axes, here and in every graph: B batch, T tokens of this call, S tokens in a cache, H heads, G key heads, D head size,
C channels, E experts, V vocabulary. What a sequence remembers has no axis B: each row of a batch brings its own, of its
own length, and ops that use it take a list with one for each row. Activations are float32 on every backend; a backend
is free in how it stores weights, as long as it computes with exactly the numbers that the file encodes (and rounds
activations in products only where it is not asked to be exact).

An `Array` belongs to its backend. Between ops a graph uses only what `Array` lists: arithmetic with broadcasting,
reshaping, and slices with step 1. Arrays are values: nothing changes one after it was made, except what an op is said
to take over: `write` its buffer, `conv1d_causal` and `gated_delta` their states. Backends may compute lazily, and may
bind unfinished work to the thread that started it; therefore whoever keeps an array beyond the current call passes it
to `eval` first.

A new family may add an op here, together with its plain form in `hf2q.backends.reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hf2q.types import Shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hf2q.backends.cache import KVCache
    from hf2q.backends.weights import Weights
    from hf2q.codec import QuantCodec
    from hf2q.types import Bytes


class Array(Protocol):
    """What a graph may do with a backend's array."""

    @property
    def shape(self) -> Shape: ...
    @property
    def nbytes(self) -> int: ...
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


class DeltaWeights(NamedTuple):
    """What a layer with a gated delta net has: see `Ops.delta_layer`.

    Arrays: norm (C,), conv (channels, K), a and dt (H,), head_norm (Dv,). Matrices: mixed (channels, C),
    gate (H · Dv, C), beta and alpha (H, C), out (C, H · Dv). `eps` belongs to both norms, `l2_eps` to queries and keys.
    """

    norm: Array
    mixed: Matrix
    gate: Matrix
    beta: Matrix
    alpha: Matrix
    conv: Array
    a: Array
    dt: Array
    head_norm: Array
    out: Matrix
    eps: float
    l2_eps: float


class AttentionWeights(NamedTuple):
    """What a layer with attention has: see `Ops.attention_layer`.

    Arrays: norm (C,), q_norm and k_norm (D,). Matrices: q (H · D, C), or with `gated` (H · 2 D, C), where the gate of
    each head follows its query; k and v (G · D, C), out (C, H · D). `eps` belongs to all norms.
    """

    norm: Array
    q: Matrix
    k: Matrix
    v: Matrix
    q_norm: Array
    k_norm: Array
    out: Matrix
    heads: int
    kv_heads: int
    head_dim: int
    gated: bool
    scale: float
    eps: float

    @classmethod
    def of(
        cls, weights: Weights, blk: str, *, heads: int, kv_heads: int, head_dim: int, gated: bool, eps: float
    ) -> AttentionWeights:
        """Those of a block of a file, named as llama.cpp names them. Errors: as `Weights.matrix`."""
        return cls(
            norm=weights.array(f"{blk}.attn_norm.weight"),
            q=weights.matrix(f"{blk}.attn_q.weight"),
            k=weights.matrix(f"{blk}.attn_k.weight"),
            v=weights.matrix(f"{blk}.attn_v.weight"),
            q_norm=weights.array(f"{blk}.attn_q_norm.weight"),
            k_norm=weights.array(f"{blk}.attn_k_norm.weight"),
            out=weights.matrix(f"{blk}.attn_output.weight"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            gated=gated,
            scale=head_dim**-0.5,
            eps=eps,
        )


class Ops(Protocol):
    """The vocabulary.

    name     the backend's name
    threads  how many threads it may use
    exact    in products with quantized weights, activations stay float32 even where rounding them would be faster
    """

    name: str

    def __init__(self, *, threads: int, exact: bool = False) -> None: ...

    @property
    def instructions(self) -> str:
        """What it computes with: an instruction set or a device, for people."""
        ...

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

    def computed(self, x: Array, others: Iterable[Array]) -> NDArray[Any]:
        """`eval` of x and `others`, then x as numpy. x is given up: what comes back may be its memory.

        Backends that compute at once do not look at `others`, which for several long sequences are hundreds.
        """
        ...

    def matrix(self, blocks: Bytes, codec: QuantCodec, shape: Shape) -> Matrix:
        """A weight as a file holds it: blocks uint8 (rows, bytes) of `codec`, rows the product of shape[:-1].

        Evaluated when it returns. No value is changed: what cannot be computed with as stored is decoded.
        """
        ...

    # ------------------------------------------------------------------------------------------------------- memory

    def matrix_bytes(self, codec: QuantCodec, shape: Shape) -> int:
        """About what `matrix` would take of memory; an estimate for before anything is read."""
        ...

    def available(self) -> int | None:
        """Bytes of memory that weights and caches may take now, or None when that is not known."""
        ...

    def zeros(self, shape: Shape, *, grows: bool = False) -> Array:
        """float32 zeros. What `grows` is given up for a larger array when it is full."""
        ...

    def write(self, buffer: Array, values: Array, start: int) -> Array:
        """`buffer` (G, S, D) with [:, start : start + T] replaced by `values` (T, G, D).

        Takes `buffer` over: the caller uses the result from here on.
        """
        ...

    def copy(self, x: Array) -> Array:
        """An array that stays as it is when `x` is taken over."""
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

    def linears(self, x: Array, weights: Sequence[Matrix]) -> tuple[Array, ...]:
        """`linear` with several weights, which a backend can do at once."""
        ...

    def grouped_linear(self, x: Array, weight: Matrix) -> Array:
        """A weight of its own for each group: (B, T, G, in) with (G, out, in) -> (B, T, G, out)."""
        ...

    def matmul(self, a: Array, b: Array) -> Array:
        """Products of activations: (..., M, K) with (..., K, N) -> (..., M, N), leading axes broadcast."""
        ...

    def moe(
        self,
        x: Array,
        experts: Array,
        weights: Array,
        gate_up: Sequence[Matrix],
        down: Matrix,
        activation: Callable[[Array, Array], Array],
    ) -> Array:
        """Mixture of gated experts: Σ_k weights[k] · down_e(activation(gate_e(x), up_e(x))), e = experts[k].

        x (B, T, C); experts int32 and weights float32 (B, T, K); `gate_up` is gate and up, (E, F, C) each, or one
        stack (E, 2F, C) with the rows of the gate first; down (E, C, F) -> (B, T, C).
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

    def sqrt(self, x: Array) -> Array:
        """The square root."""
        ...

    def tanh(self, x: Array) -> Array:
        """The hyperbolic tangent."""
        ...

    def clamp(self, x: Array, low: float | None, high: float | None) -> Array:
        """max(low, min(x, high)); None for no bound."""
        ...

    def gelu(self, x: Array) -> Array:
        """x · Φ(x) with the error function."""
        ...

    def gelu_tanh(self, x: Array) -> Array:
        """x / 2 · (1 + tanh(sqrt(2 / π) · (x + 0.044715 x³)))."""
        ...

    def softcap(self, x: Array, cap: float) -> Array:
        """cap · tanh(x / cap)."""
        ...

    def geglu(self, gate: Array, up: Array) -> Array:
        """gelu_tanh(gate) · up."""
        ...

    def swiglu(self, gate: Array, up: Array) -> Array:
        """silu(gate) · up."""
        ...

    # ------------------------------------------------------------------------------------------- over the last axis

    def rms_norm(self, x: Array, weight: Array | None, eps: float) -> Array:
        """x / sqrt(mean(x²) + eps) · weight (C,), without weight when None."""
        ...

    def layer_norm(self, x: Array, weight: Array | None, bias: Array | None, eps: float) -> Array:
        """(x - mean(x)) / sqrt(variance(x) + eps) · weight (C,) + bias (C,), without those that are None."""
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

    def top_k_mask(self, x: Array, k: int) -> Array:
        """0 where `top_k` would find the k largest values of the last axis, the first of equal ones, else -inf."""
        ...

    def sinkhorn(self, x: Array, iterations: int, eps: float) -> Array:
        """Matrices of logits (..., N, N), brought near to rows and columns that sum to 1.

        softmax of each row, + eps; columns divided by their sum + eps; then, `iterations` - 1 times, rows divided by
        their sum + eps, and columns.
        """
        ...

    def take_along(self, x: Array, index: Array) -> Array:
        """Values at `index` int32 (..., k) of the last axis of x (..., C) -> (..., k)."""
        ...

    # -------------------------------------------------------------------------------------------------- over tokens

    def rope(self, x: Array, cos: Array, sin: Array, *, pairs: bool = False) -> Array:
        """Rotary positions on the first 2·R of D dimensions: angle j rotates (j, j + R), with `pairs` (2j, 2j + 1).

        x (B, T, H, D); cos and sin (B, T, R), from `hf2q.backends.rope`. The other dimensions pass through.
        """
        ...

    def attention(
        self,
        q: Array,
        keys: Sequence[Array],
        values: Sequence[Array],
        scale: float,
        *,
        causal: bool = True,
        window: int = 0,
        sinks: Array | None = None,
        masks: Sequence[Array] | None = None,
    ) -> Array:
        """softmax(scale · q kᵀ) v; the T queries are the last T of the S positions.

        With neither `causal` nor `window` it does not matter where they are, and T may be larger than S.

        q (B, T, H, D); for each row keys (G, S, D) and values (G, S, Dv), S its own; H a multiple of G: query heads
        h·H/G and following use key head h. -> (B, T, H, Dv).

        causal  a query sees its own position and those before
        window  and of these only the last `window`, its own among them; 0 for all
        sinks   (H,) a logit for each head that takes part in the softmax and brings no value
        masks   for each row (T, S), added to the scores
        """
        ...

    def conv1d_causal(self, x: Array, weight: Array, states: Sequence[Array]) -> tuple[Array, list[Array]]:
        """Depthwise convolution: y_t = Σ_τ weight[:, τ] · x_(t - K + 1 + τ), where a state holds the inputs before x.

        x (B, T, C); weight (C, K); for each row a state (K - 1, C), which is taken over -> y (B, T, C) and the states
        after x.
        """
        ...

    def gated_delta(
        self, q: Array, k: Array, v: Array, decay: Array, beta: Array, states: Sequence[Array]
    ) -> tuple[Array, list[Array]]:
        """The gated delta rule, for each value head with a state matrix S, token by token:

            S ← e^decay S;   S ← S + k ⊗ beta (v - Sᵀk);   o = Sᵀq

        q and k (B, T, G, Dk); v (B, T, H, Dv); decay (≤ 0) and beta (B, T, H); for each row a state (H, Dk, Dv), which
        is taken over; H a multiple of G: value head h uses key head h mod G. -> o (B, T, H, Dv) and the states after
        the last token. Source: Yang et al., Gated Delta Networks, arXiv 2412.06464.
        """
        ...

    def delta_net(
        self,
        x: Array,
        conv: Array,
        a: Array,
        dt: Array,
        alpha: Array,
        beta: Array,
        states: Sequence[tuple[Array, ...]],
        eps: float,
    ) -> tuple[Array, list[tuple[Array, ...]]]:
        """A gated delta net's mixer, as one op because in decoding its parts cost more to start than to do.

        `conv1d_causal` of x (B, T, C) with `conv` (C, K), then `silu`, gives queries (G, Dk), keys (G, Dk) and values
        (H, Dv), one after the other. Both of the former get an `l2_norm` with eps, queries times Dk^-1/2 too. Then
        `gated_delta` with decay = a · softplus(alpha + dt) and sigmoid(beta); a and dt (H,), alpha and beta (B, T, H).
        For each row the states of both, (K - 1, C) and (H, Dk, Dv), which are taken over -> o (B, T, H, Dv) and states.
        Behind these two a backend may keep arrays of its own, which it wants back.
        `hf2q.backends.composed` has it in other ops.
        """
        ...

    def delta_layer(
        self, x: Array, weights: DeltaWeights, states: Sequence[tuple[Array, ...]]
    ) -> tuple[Array, list[tuple[Array, ...]]]:
        """A layer with a gated delta net: x (B, T, C) and to it what the net makes of its norm; states as `delta_net`.

        Of n = rms_norm(x) four products; `delta_net` of the first; `gated_rms_norm` of that, head by head, with the
        second; and the last product. `weights` is kept by whoever calls, as long as the model.
        """
        ...

    def attention_layer(
        self, x: Array, weights: AttentionWeights, rotation: tuple[Array, Array], parts: Sequence[KVCache]
    ) -> Array:
        """A layer with causal attention: x (B, T, C) and to it what attention makes of its norm; a cache for each row.

        Of n = rms_norm(x) three products. Queries and keys get an `rms_norm`, head by head, and `rope` with the cosines
        and sines (B, T, R) of `rotation`; keys and values go into the caches; `attention` to all that they hold, times
        sigmoid(gate) where there is one; and the last product. `weights` is kept by whoever calls, like those above.
        """
        ...

    def gated_rms_norm(self, x: Array, weight: Array, eps: float, gate: Array) -> Array:
        """rms_norm(x, weight, eps) · silu(gate), gate of the shape of x."""
        ...

    def gated_ffn(self, x: Array, norm: Array, eps: float, gate: Matrix, up: Matrix, down: Matrix) -> Array:
        """A feed-forward layer: x + down · swiglu(gate · n, up · n) with n = rms_norm(x, norm, eps). x (B, T, C)."""
        ...
