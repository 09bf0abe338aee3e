"""The FFN of Gemma 4: gated by the tanh form of GELU, alone or beside a mixture of experts.

Sources: transformers, models/gemma4/modeling_gemma4.py, `Gemma4TextMLP`, `Gemma4TextRouter`, `Gemma4TextExperts` and
`Gemma4TextDecoderLayer`; llama.cpp, src/models/gemma4.cpp.
"""

from __future__ import annotations

from hf2q.backends.ops import Array, Ops
from hf2q.backends.weights import Weights
from hf2q_arch_gemma4.hparams import Gemma4HParams


class DenseFFN:
    """GeGLU behind a norm."""

    def __init__(self, h: Gemma4HParams, weights: Weights, ops: Ops, blk: str) -> None:
        self.h, self.ops = h, ops
        self.ffn_norm = weights.array(f"{blk}.ffn_norm.weight")
        self.ffn_gate = weights.matrix(f"{blk}.ffn_gate.weight")
        self.ffn_up = weights.matrix(f"{blk}.ffn_up.weight")
        self.ffn_down = weights.matrix(f"{blk}.ffn_down.weight")

    def __call__(self, x: Array) -> Array:
        """The residual stream (B, T, C) -> (B, T, C)."""
        ops = self.ops
        normed = ops.rms_norm(x, self.ffn_norm, self.h.rms_eps)
        return ops.linear(ops.geglu(*ops.linears(normed, (self.ffn_gate, self.ffn_up))), self.ffn_down)


class MoEFFN:
    """The best k of E experts, weighted, added to the dense FFN; each of both between norms of its own."""

    def __init__(self, h: Gemma4HParams, weights: Weights, ops: Ops, blk: str) -> None:
        self.h, self.ops = h, ops
        self.dense = DenseFFN(h, weights, ops, blk)
        self.post_ffw_norm_1 = weights.array(f"{blk}.post_ffw_norm_1.weight")
        self.pre_ffw_norm_2 = weights.array(f"{blk}.pre_ffw_norm_2.weight")
        self.post_ffw_norm_2 = weights.array(f"{blk}.post_ffw_norm_2.weight")
        self.ffn_gate_inp = weights.matrix(f"{blk}.ffn_gate_inp.weight")
        self.ffn_gate_inp_scale = weights.array(f"{blk}.ffn_gate_inp.scale") * h.n_embd**-0.5  # (C,)
        self.ffn_gate_up_exps = weights.matrix(f"{blk}.ffn_gate_up_exps.weight")
        self.ffn_down_exps = weights.matrix(f"{blk}.ffn_down_exps.weight")
        self.ffn_down_exps_scale = weights.array(f"{blk}.ffn_down_exps.scale")  # (E,)
        ops.eval(self.ffn_gate_inp_scale)

    def __call__(self, x: Array) -> Array:
        """The residual stream (B, T, C) -> (B, T, C)."""
        ops, eps = self.ops, self.h.rms_eps
        dense = ops.rms_norm(self.dense(x), self.post_ffw_norm_1, eps)
        # the router sees the stream under a norm of its own, whose weights are its scale
        scores = ops.linear(ops.rms_norm(x, self.ffn_gate_inp_scale, eps), self.ffn_gate_inp)  # (B,T,E)
        shares = ops.softmax(scores)
        chosen, experts = ops.top_k(shares, self.h.n_expert_used)  # (B,T,K)
        # the chosen ones scaled to a sum of 1, then each by its expert's factor: k of E hold at least k/E of the sum
        scaled = ops.take_along(shares * self.ffn_down_exps_scale, experts) / ops.sum(chosen)
        normed = ops.rms_norm(x, self.pre_ffw_norm_2, eps)
        routed = ops.moe(normed, experts, scaled, (self.ffn_gate_up_exps,), self.ffn_down_exps, ops.geglu)
        return dense + ops.rms_norm(routed, self.post_ffw_norm_2, eps)
