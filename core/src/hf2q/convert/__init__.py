"""From a checkpoint to a file: plan from headers, then stream.

    names      what --quant may be called, and what to say of names that cannot be had
    source     a checkpoint directory and its config.json
    metadata   general.* keys from model card, generation config and names
    tensors    order, intermediate type and lazy rows of each output tensor
    plan       everything about the output except the weights
    floats     the policy of the recipes f32, f16 and bf16
    preflight  what is checked before a byte is written
    pipeline   read → transform → encode → write, on several threads
    run        `convert`, which calls them in this order

Families and storage types enter through plugins only.
"""

from hf2q.convert.run import Summary, convert

__all__ = ["Summary", "convert"]
