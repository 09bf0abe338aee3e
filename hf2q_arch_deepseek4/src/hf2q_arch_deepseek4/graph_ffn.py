"""The FFN of the family: routed experts and a shared one, bounded SwiGLU.

Experts are chosen by a table of token ids in the first blocks, by the highest scores in the others; a bias takes part
in choosing and never in weighing.

Source: transformers, models/deepseek_v4/modeling_deepseek_v4.py, `DeepseekV4TopKRouter`, `DeepseekV4HashRouter`,
`DeepseekV4MLP`, `DeepseekV4SparseMoeBlock`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hf2q.backends.ops import Array, Ops
from hf2q.backends.weights import Weights
from hf2q.errors import LoadError
from hf2q_arch_deepseek4.graph_step import Step
from hf2q_arch_deepseek4.hparams import DeepSeek4HParams

if TYPE_CHECKING:
    from numpy.typing import NDArray

TINY = 1e-20
"""Added to the sum of weights. Source: modeling_deepseek_v4.py, `DeepseekV4TopKRouter`."""


class MoE:
    """Routed experts and the shared expert of one block."""

    def __init__(self, h: DeepSeek4HParams, weights: Weights, ops: Ops, i: int) -> None:
        blk = f"blk.{i}"
        self.h, self.ops = h, ops
        self.ffn_gate_inp = weights.matrix(f"{blk}.ffn_gate_inp.weight")
        self.ffn_gate_exps = weights.matrix(f"{blk}.ffn_gate_exps.weight")
        self.ffn_up_exps = weights.matrix(f"{blk}.ffn_up_exps.weight")
        self.ffn_down_exps = weights.matrix(f"{blk}.ffn_down_exps.weight")
        self.ffn_gate_shexp = weights.matrix(f"{blk}.ffn_gate_shexp.weight")
        self.ffn_up_shexp = weights.matrix(f"{blk}.ffn_up_shexp.weight")
        self.ffn_down_shexp = weights.matrix(f"{blk}.ffn_down_shexp.weight")
        self.ffn_gate_tid2eid: NDArray[np.int32] | None = None  # on the host, as token ids are
        if i < h.n_hash:
            self.ffn_gate_tid2eid = routing_table(weights, ops, f"{blk}.ffn_gate_tid2eid.weight", h.n_expert)
        else:
            self.exp_probs_b = weights.array(f"{blk}.exp_probs_b.bias")

    def __call__(self, x: Array, step: Step) -> Array:
        """x (B, T, C) -> (B, T, C)."""
        ops, h = self.ops, self.h
        scores = ops.sqrt(ops.softplus(ops.linear(x, self.ffn_gate_inp)))  # (B,T,E)
        if self.ffn_gate_tid2eid is not None:
            experts = ops.asarray(self.ffn_gate_tid2eid[step.ids])  # (B,T,K)
        else:
            _, experts = ops.top_k(scores + self.exp_probs_b, h.n_expert_used)
        share = ops.take_along(scores, experts)
        if h.expert_norm:
            share = share / (ops.sum(share) + TINY)
        gate_up = (self.ffn_gate_exps, self.ffn_up_exps)
        routed = ops.moe(x, experts, share * h.expert_scale, gate_up, self.ffn_down_exps, self._activation)
        hidden = self._activation(*ops.linears(x, (self.ffn_gate_shexp, self.ffn_up_shexp)))
        return routed + ops.linear(hidden, self.ffn_down_shexp)

    def _activation(self, gate: Array, up: Array) -> Array:
        """SwiGLU with an upper bound for the gate, and both bounds for what it lets through."""
        ops, limit = self.ops, self.h.swiglu_limit
        return ops.swiglu(ops.clamp(gate, None, limit), ops.clamp(up, -limit, limit))


def routing_table(weights: Weights, ops: Ops, name: str, n_expert: int) -> NDArray[np.int32]:
    """Experts of each token id (V, K). Errors: LoadError for a number that is no expert's."""
    table = ops.to_numpy(weights.array(name))
    wrong = ~((table >= 0) & (table < n_expert) & (table == np.floor(table)))
    if wrong.any():
        token, slot = (int(place) for place in np.argwhere(wrong)[0])
        raise LoadError(
            f"{name}: token {token} is sent to expert {table[token, slot]:g}, expected 0 to {n_expert - 1}",
            hint="the file is damaged",
        )
    return table.astype(np.int32)
