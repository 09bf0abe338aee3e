"""Every tensor of the vision tower and its projection, which become the projector's file.

Sources: llama.cpp, conversion/gemma.py, `Gemma4VisionAudioModel`; conversion/base.py, `MmprojModel`;
gguf-py/gguf/tensor_mapping.py; tools/mtmd/clip.cpp, PROJECTOR_TYPE_GEMMA4V.
"""

from __future__ import annotations

from hf2q.types import TensorCatalog, TensorRule
from hf2q_arch_gemma4.catalog import STRIP
from hf2q_arch_gemma4.families import PROJECTOR

MAP = "llama.cpp, gguf-py/gguf/tensor_mapping.py, TensorNameMap"
VISION = "llama.cpp, conversion/gemma.py, Gemma4VisionAudioModel.modify_tensors"
TEXT_MODEL = "text model: a file of its own"
IGNORE = (
    (r"(layers|embed_tokens|embed_tokens_per_layer|norm|lm_head)\.", TEXT_MODEL),
    (r"per_layer_(model_projection|projection_norm)\.", TEXT_MODEL),
    (r"(audio_tower|embed_audio)\.", "audio: a projector of its own kind (gemma4a), which is not written"),
    (r".*inv_freq$", "computed from the config"),
)
BLOCK, OWN = ("vision",), "vision_tower.encoder.layers.{i}."
MATRICES = (
    ("attn_q", "self_attn.q_proj", ("n_embd", "n_embd")),
    ("attn_k", "self_attn.k_proj", ("n_embd", "n_embd")),
    ("attn_v", "self_attn.v_proj", ("n_embd", "n_embd")),
    ("attn_out", "self_attn.o_proj", ("n_embd", "n_embd")),
    ("ffn_gate", "mlp.gate_proj", ("n_ff", "n_embd")),
    ("ffn_up", "mlp.up_proj", ("n_ff", "n_embd")),
    ("ffn_down", "mlp.down_proj", ("n_embd", "n_ff")),
)
NORMS = (
    ("ln1", "input_layernorm", "n_embd"),
    ("attn_post_norm", "post_attention_layernorm", "n_embd"),
    ("ln2", "pre_feedforward_layernorm", "n_embd"),
    ("ffn_post_norm", "post_feedforward_layernorm", "n_embd"),
    ("attn_q_norm", "self_attn.q_norm", "head_dim"),
    ("attn_k_norm", "self_attn.k_norm", "head_dim"),
)
BOUNDS = ("input_min", "input_max", "output_min", "output_max")


def projector_catalog() -> TensorCatalog:
    """Tensors of ``gemma4v``."""
    rules = (*_outside(), *_norms(), *_matrices())
    return TensorCatalog(name=PROJECTOR, rules=rules, ignore=IGNORE, strip=STRIP)


def _outside() -> tuple[TensorRule, ...]:
    own = "vision_tower."
    return (
        TensorRule(
            name="v.patch_embd.weight",
            hf=(f"{own}patch_embedder.input_proj.weight",),
            shape=("n_embd", 3, "patch", "patch"),
            transform="hf2q_arch_gemma4.transforms:patches",
            source=VISION,
        ),
        TensorRule(
            name="v.position_embd.weight",
            hf=(f"{own}patch_embedder.position_embedding_table",),
            shape=(2, "n_positions", "n_embd"),
            unstated=("n_positions",),
            stored_as="F32",
            source=VISION,
        ),
        *(
            TensorRule(name=f"v.std_{part}", hf=(f"{own}std_{part}",), shape=("n_embd",), optional=True, source=MAP)
            for part in ("bias", "scale")
        ),
        TensorRule(
            name="mm.input_projection.weight",
            hf=("embed_vision.embedding_projection.weight",),
            shape=("n_text", "n_embd"),
            source=MAP,
        ),
    )


def _norms() -> tuple[TensorRule, ...]:
    return tuple(
        TensorRule(
            name=f"v.blk.{{i}}.{name}.weight",
            hf=(f"{OWN}{hf}.weight",),
            shape=(size,),
            layers=BLOCK,
            stored_as="F32",
            source=MAP,
        )
        for name, hf, size in NORMS
    )


def _matrices() -> tuple[TensorRule, ...]:
    """Matrices, each with the bounds of what goes in and comes out where there are such, which the hparams check."""
    rules = []
    for name, hf, shape in MATRICES:
        rules.append(
            TensorRule(
                name=f"v.blk.{{i}}.{name}.weight",
                hf=(f"{OWN}{hf}.linear.weight", f"{OWN}{hf}.weight"),
                shape=shape,
                layers=BLOCK,
                source=VISION,
            )
        )
        rules += [
            TensorRule(
                name=f"v.blk.{{i}}.{name}.{bound}",
                hf=(f"{OWN}{hf}.{bound}",),
                shape=(1,),
                layers=BLOCK,
                transform="hf2q_arch_gemma4.transforms:vector_of_one",
                stored_as="F32",
                optional=True,
                source=VISION,
            )
            for bound in BOUNDS
        ]
    return tuple(rules)
