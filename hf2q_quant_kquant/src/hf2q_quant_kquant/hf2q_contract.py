"""What `hf2q plugins check` cannot know about these types by itself; nothing else imports this.

Ternary types are for weights that have three values. Of normal ones, all below half the largest become zero.
"""

from __future__ import annotations

from hf2q.testing import CodecContract


class TQ1_0(CodecContract):
    """256 weights in 54 bytes."""

    plugin = "hf2q-quant-kquant"
    name = "TQ1_0"
    max_error = 1.0


class TQ2_0(CodecContract):
    """256 weights in 66 bytes."""

    plugin = "hf2q-quant-kquant"
    name = "TQ2_0"
    max_error = 1.0
