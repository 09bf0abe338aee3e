"""The contract suites with this family's own data, for its tests and for ``hf2q plugins check``.

``reference/`` holds states that transformers computed from the same weights; its PROVENANCE.md says how.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf2q.testing import ArchContract, EncoderContract
from hf2q.types import HParams

REFERENCE = Path(__file__).parent / "reference"
BERT: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": 272,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
}
NOMIC: dict[str, Any] = {
    "architectures": ["NomicBertModel"],
    "model_type": "nomic_bert",
    "vocab_size": 272,
    "n_embd": 48,
    "n_inner": 80,
    "n_layer": 3,
    "n_head": 6,
    "n_positions": 8192,
    "max_trained_positions": 2048,
    "type_vocab_size": 2,
    "layer_norm_epsilon": 1e-12,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "activation_function": "swiglu",
    "causal": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
}
NO_HEAD = ("cls.output.weight", "cls.output.bias")
KEY_BIAS = {r"blk\.\d+\.attn_k\.bias": "adds the same to a query's scores of all keys, which softmax takes out"}


def fused(parts: Mapping[str, Any], hparams: HParams) -> Any:
    """Nomic's own fused projection, which stays as it is; separate ones are taken apart in the tests."""
    return parts["blk.{i}.attn_qkv.weight"]


class TestBertArch(ArchContract):
    """BERT without a classification head."""

    plugin, arch, config = "bert", "bert", BERT
    leave_out = NO_HEAD


class TestNomicArch(ArchContract):
    """Nomic-BERT in its own keys and names."""

    plugin, arch, config = "bert", "nomic-bert", NOMIC
    inverses = {"encoder.layers.{i}.attn.Wqkv.weight": fused}  # noqa: RUF012 - a constant of the suite


class TestBertEncoder(EncoderContract):
    """The forward pass of `TestBertArch`."""

    plugin, arch, config = "bert", "bert", BERT
    leave_out, reference, idle = NO_HEAD, REFERENCE / "bert.npz", KEY_BIAS


class TestNomicEncoder(EncoderContract):
    """The forward pass of `TestNomicArch`."""

    plugin, arch, config = "bert", "nomic-bert", NOMIC
    reference = REFERENCE / "nomic.npz"
