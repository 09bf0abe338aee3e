"""Every tensor of the vision tower and its mergers, which become the projector's file.

Sources: llama.cpp, conversion/qwen3vl.py, `Qwen3VLVisionModel`; conversion/base.py, `MmprojModel`;
gguf-py/gguf/tensor_mapping.py; tools/mtmd/models/qwen3vl.cpp.
"""

from __future__ import annotations

from hf2q.types import TensorCatalog, TensorRule
from hf2q_arch_qwen3vl.families import PLAIN, PROJECTOR, TAPS

MAP = "llama.cpp, gguf-py/gguf/tensor_mapping.py, TensorNameMap"
VISION = "llama.cpp, conversion/qwen3vl.py, Qwen3VLVisionModel.modify_tensors"
TEXT_MODEL = "text model: a file of its own"
IGNORE = (
    (r"(layers|embed_tokens|norm|lm_head)\.", TEXT_MODEL),
    (r"mtp\.", TEXT_MODEL),
    (r".*\binv_freq$", "computed from the config"),
)
BLOCKS = (PLAIN, *TAPS)


def projector_catalog() -> TensorCatalog:
    """Tensors of ``qwen3vl_merger``."""
    rules = (*_patches(), *_merger(), *_block(), *(rule for k in range(len(TAPS)) for rule in _tap(k)))
    return TensorCatalog(name=PROJECTOR, rules=rules, ignore=IGNORE, strip=("thinker.", "language_model.", "model."))


def _patches() -> tuple[TensorRule, ...]:
    """The patch embedding, one convolution for each of two frames, and the learned positions."""

    def frame(suffix: str, function: str) -> TensorRule:
        return TensorRule(
            name=f"v.patch_embd.weight{suffix}",
            hf=("visual.patch_embed.proj.weight",),
            shape=("n_embd", "n_channels", "patch", "patch"),
            transform=f"hf2q_arch_qwen3vl.transforms:{function}",
            source=VISION,
        )

    return (
        frame("", "first_frame"),
        frame(".1", "second_frame"),
        TensorRule(name="v.patch_embd.bias", hf=("visual.patch_embed.proj.bias",), shape=("n_embd",), source=VISION),
        TensorRule(
            name="v.position_embd.weight",
            hf=("visual.pos_embed.weight",),
            shape=("n_positions", "n_embd"),
            stored_as="F32",
            source=MAP,
        ),
    )


def _merger() -> tuple[TensorRule, ...]:
    """Norm and two layers, from four patches to one vector of the text model."""
    return (
        *_pair("v.post_ln", "visual.merger.norm", ("n_embd",)),
        *_pair("mm.0", "visual.merger.linear_fc1", ("n_merged", "n_merged")),
        *_pair("mm.2", "visual.merger.linear_fc2", ("n_text", "n_merged")),
    )


def _block() -> tuple[TensorRule, ...]:
    gguf, own = "v.blk.{i}.", "visual.blocks.{i}."
    return (
        *_pair(f"{gguf}ln1", f"{own}norm1", ("n_embd",), BLOCKS, MAP),
        *_pair(f"{gguf}ln2", f"{own}norm2", ("n_embd",), BLOCKS, MAP),
        *_pair(f"{gguf}attn_qkv", f"{own}attn.qkv", ("n_qkv", "n_embd"), BLOCKS, MAP),
        *_pair(f"{gguf}attn_out", f"{own}attn.proj", ("n_embd", "n_embd"), BLOCKS, MAP),
        *_pair(f"{gguf}ffn_up", f"{own}mlp.linear_fc1", ("n_ff", "n_embd"), BLOCKS, MAP),
        *_pair(f"{gguf}ffn_down", f"{own}mlp.linear_fc2", ("n_embd", "n_ff"), BLOCKS, MAP),
    )


def _tap(k: int) -> tuple[TensorRule, ...]:
    """The deepstack merger number `k` of the checkpoint; here the norm comes after four patches were joined."""
    gguf, own, layers = "v.deepstack.{i}.", f"visual.deepstack_merger_list.{k}.", (TAPS[k],)
    return (
        *_pair(f"{gguf}norm", f"{own}norm", ("n_merged",), layers),
        *_pair(f"{gguf}fc1", f"{own}linear_fc1", ("n_merged", "n_merged"), layers),
        *_pair(f"{gguf}fc2", f"{own}linear_fc2", ("n_text", "n_merged"), layers),
    )


def _pair(
    gguf: str, own: str, shape: tuple[str | int, ...], layers: tuple[str, ...] = (), source: str = VISION
) -> tuple[TensorRule, TensorRule]:
    """Weight and bias of a layer."""
    return (
        TensorRule(name=f"{gguf}.weight", hf=(f"{own}.weight",), shape=shape, layers=layers, source=source),
        TensorRule(name=f"{gguf}.bias", hf=(f"{own}.bias",), shape=shape[:1], layers=layers, source=source),
    )
