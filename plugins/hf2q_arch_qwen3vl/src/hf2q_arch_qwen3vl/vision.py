"""`TowerHParams`: the sizes of one vision tower, from ``config.json`` or from GGUF metadata.

Source of the keys and their order: llama.cpp, conversion/base.py `MmprojModel.set_gguf_parameters` and
conversion/qwen3vl.py `Qwen3VLVisionModel.set_gguf_parameters`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hf2q.types import MetadataField, Record, TensorInfo, ValueType
from hf2q_arch_qwen3vl.families import PLAIN, PROJECTOR, TAPS
from hf2q_arch_qwen3vl.tower import read_config, read_metadata


class TowerHParams(Record, frozen=True, kw_only=True):
    """Sizes of one tower.

    n_text      width of the text model, which the merged patches get
    merge       patches per side that are merged into one
    image_size  side of the square image, in pixels, for which there are learned positions
    taps        blocks after which a deepstack merger taps, in the order of the checkpoint's mergers
    norm_eps    written as the text model's epsilon; transformers computes with 1e-6 whatever it is
    image_mean, image_std   of the three colours, by which pixels from 0 to 1 are normalised
    min_pixels, max_pixels  bounds of an image's area, 0 where the file does not say; conversion never does
    """

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_text: int
    patch_size: int
    merge: int
    image_size: int
    taps: tuple[int, ...]
    norm_eps: float
    image_mean: tuple[float, float, float]
    image_std: tuple[float, float, float]
    min_pixels: int = 0
    max_pixels: int = 0

    @classmethod
    def from_config(cls, config: Mapping[str, Any], tensors: Iterable[TensorInfo], *, mtp: bool = True) -> TowerHParams:
        """From ``config.json`` with the image processor's config under ``preprocessor_config``.

        Errors: ConfigError for what the tower does not know, and for what is missing.
        """
        return cls(**read_config(config))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> TowerHParams:
        """From GGUF metadata. Errors: LoadError naming the key that is missing, of the wrong kind, or contradictory."""
        return cls(**read_metadata(metadata))

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        """For each block: `PLAIN`, or the kind that says which merger taps after it."""
        tap_of = {block: TAPS[k] for k, block in enumerate(self.taps)}
        return tuple(tap_of.get(i, PLAIN) for i in range(self.n_layer))

    @property
    def symbols(self) -> Mapping[str, int]:
        """Sizes by the symbols of the catalog's shapes."""
        return {
            "n_embd": self.n_embd,
            "n_ff": self.n_ff,
            "n_qkv": 3 * self.n_embd,
            "n_text": self.n_text,
            "n_merged": self.merge * self.merge * self.n_embd,
            "n_channels": 3,
            "n_positions": (self.image_size // self.patch_size) ** 2,
            "patch": self.patch_size,
        }

    def metadata(self) -> tuple[MetadataField, ...]:
        """The ``clip.*`` keys in the order of llama.cpp's converter, ``general.file_type`` among them as 0."""
        u32, array = MetadataField.u32, MetadataField.array
        return (
            u32("general.file_type", 0),
            MetadataField.boolean("clip.has_vision_encoder", True),
            u32("clip.vision.projection_dim", self.n_text),
            u32("clip.vision.image_size", self.image_size),
            u32("clip.vision.patch_size", self.patch_size),
            u32("clip.vision.embedding_length", self.n_embd),
            u32("clip.vision.feed_forward_length", self.n_ff),
            u32("clip.vision.block_count", self.n_layer),
            u32("clip.vision.attention.head_count", self.n_head),
            array("clip.vision.image_mean", ValueType.FLOAT32, self.image_mean),
            array("clip.vision.image_std", ValueType.FLOAT32, self.image_std),
            MetadataField.string("clip.projector_type", PROJECTOR),
            MetadataField.boolean("clip.use_gelu", True),
            u32("clip.vision.spatial_merge_size", self.merge),
            MetadataField.f32("clip.vision.attention.layer_norm_epsilon", self.norm_eps),
            array(
                "clip.vision.is_deepstack_layers",
                ValueType.BOOL,
                [i in self.taps for i in range(self.n_layer)],
            ),
        )
