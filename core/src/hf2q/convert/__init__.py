"""From a checkpoint or a GGUF file to a GGUF file: plan from headers, then stream.

    names        what --quant may be called, and what to say of names that cannot be had
    source       a checkpoint directory and its config.json
    hub_source   a repository, whose files are taken first (origin: where they came from)
    describe     what a checkpoint is, for `hf2q info`
    quantized    what config.json says about weights that are quantized already
    scaled       weights in FP8 and FP4 as plain ones (scales: how they are multiplied)
    metadata     general.* keys from model card, generation config and names
    tensors      order, intermediate type and lazy rows of each output tensor
    automatic    the type before quantization, and --quant auto
    plan         everything about the output except the weights
    gguf_source  a GGUF file, or a set of them
    requantize   the plan of an output that is made from one
    importance   what is known about the importance of columns
    choices      from chosen types to sizes and offsets, for both kinds of plan
    layout       the plan of an output format with tensors of its own;  layout_gguf  the same from a GGUF file
    floats       the policy of the recipes f32, f16 and bf16
    prepare      which kind of source it is, and which options it can follow
    preflight    what is checked before a byte is written
    shards       one plan cut into several files
    pipeline     read → transform → encode → write, on several threads
    run          `convert`, which calls them in this order
    provenance   the keys hf2q.* that a file carries about its making;  making  what goes into them
    sidecars     files copied beside the output
    receipt      the record beside the output;  recording  its making, with `selected` files and chunk `bounds`
    verify       `verify`, which makes a file again: `recorded` and `remake` say how, `compare` and `examine` look

Families and storage types enter through plugins only.
"""

from hf2q.convert.run import Summary, convert

__all__ = ["Summary", "convert"]
