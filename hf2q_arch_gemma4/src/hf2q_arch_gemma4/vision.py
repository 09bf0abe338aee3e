"""`Gemma4TowerHParams`: the sizes of a vision tower, from ``config.json`` or from GGUF metadata.

Source of the keys and their order: llama.cpp, conversion/base.py `MmprojModel.set_gguf_parameters` and
conversion/gemma.py `Gemma4VisionAudioModel.set_gguf_parameters`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hf2q.types import MetadataField, Record, TensorInfo, ValueType
from hf2q_arch_gemma4.families import PROJECTOR
from hf2q_arch_gemma4.tower import IMAGE_SIZE, N_POSITIONS, NORM_EPS, read_config, read_metadata

BLOCK = "vision"
"""The one kind of block."""


class Gemma4TowerHParams(Record, frozen=True, kw_only=True):
    """Sizes of one tower.

    n_text        width of the text model, which the pooled patches get
    n_positions   rows of each of the two tables of positions; a file does not state it, so that reading one gives the
                  number of all published towers, whatever it has
    image_mean, image_std   of the three colours, by which pixels from 0 to 1 are normalised
    norm_eps      epsilon of the norms, which conversion takes no other of
    max_pixels    area that an image is brought to at most, 0 where the file does not say; conversion never does
    """

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_text: int
    patch_size: int
    image_mean: tuple[float, ...]
    image_std: tuple[float, ...]
    n_positions: int = N_POSITIONS
    norm_eps: float = NORM_EPS
    max_pixels: int = 0

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], tensors: Iterable[TensorInfo], *, mtp: bool = True
    ) -> Gemma4TowerHParams:
        """From ``config.json`` with the image processor's config under ``preprocessor_config``.

        Errors: ConfigError for what the tower does not know, and for what is missing; TensorMismatchError when config
        and tensors disagree about bounds of matrices, or about a standardized output.
        """
        return cls(**read_config(config, [tensor.name for tensor in tensors]))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Gemma4TowerHParams:
        """From GGUF metadata, which leaves open what the tensors tell. Errors: LoadError naming the key."""
        return cls(**read_metadata(metadata))

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        """All blocks are alike."""
        return (BLOCK,) * self.n_layer

    @property
    def symbols(self) -> Mapping[str, int]:
        """Sizes by the symbols of the catalog's shapes."""
        return {
            "n_embd": self.n_embd,
            "n_ff": self.n_ff,
            "head_dim": self.n_embd // self.n_head,
            "n_text": self.n_text,
            "n_positions": self.n_positions,
            "patch": self.patch_size,
        }

    def metadata(self) -> tuple[MetadataField, ...]:
        """The ``clip.*`` keys in the order of llama.cpp's converter, ``general.file_type`` among them as 0."""
        u32, array = MetadataField.u32, MetadataField.array
        return (
            u32("general.file_type", 0),
            MetadataField.boolean("clip.has_vision_encoder", True),
            u32("clip.vision.projection_dim", self.n_text),
            u32("clip.vision.image_size", IMAGE_SIZE),
            u32("clip.vision.patch_size", self.patch_size),
            u32("clip.vision.embedding_length", self.n_embd),
            u32("clip.vision.feed_forward_length", self.n_ff),
            u32("clip.vision.block_count", self.n_layer),
            u32("clip.vision.attention.head_count", self.n_head),
            array("clip.vision.image_mean", ValueType.FLOAT32, self.image_mean),
            array("clip.vision.image_std", ValueType.FLOAT32, self.image_std),
            MetadataField.string("clip.vision.projector_type", PROJECTOR),
            MetadataField.f32("clip.vision.attention.layer_norm_epsilon", self.norm_eps),
        )
