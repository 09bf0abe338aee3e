"""From ``config.json``, or from GGUF metadata, to the fields of `Gemma4TowerHParams`.

Sources: transformers 5.17, models/gemma4/configuration_gemma4.py, `Gemma4VisionConfig` (defaults); llama.cpp,
conversion/base.py `MmprojModel` (what is read); tools/mtmd/clip.cpp, PROJECTOR_TYPE_GEMMA4V (what readers take for
granted).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from hf2q.config import HARMLESS, MAX_LAYERS, Config, overlaid
from hf2q.errors import ConfigError, LoadError, TensorMismatchError
from hf2q_arch_gemma4.families import PROJECTOR, UNIFIED, UNIFIED_TYPES
from hf2q_arch_gemma4.projector import BOUNDS, MATRICES

log = logging.getLogger(__name__)

IMAGE_SIZE = 224
"""Written for readers that want one; images of any shape are cut into patches."""

NORM_EPS = 1e-6
"""Epsilon of the norms."""

N_POSITIONS = 10240
"""Rows of a table of positions, unless the config says otherwise."""

POOLING = 3
"""Patches per side that are averaged into one; readers take it for granted."""

IGNORED: Mapping[str, str] = {
    **HARMLESS,
    "default_output_length": "how many vectors an image becomes by default; readers have limits of their own",
    "max_position_embeddings": "the tables of positions have a size of their own",
}
"""Config keys that change no weight and no GGUF key, with the reason."""


def read_config(config: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The fields; see `Gemma4TowerHParams.from_config`."""
    text = overlaid(config)
    classes = text.get("architectures") or config.get("architectures") or ()
    for name in (*classes, text.get("model_type"), config.get("model_type")):
        if name in UNIFIED or name in UNIFIED_TYPES:
            raise ConfigError(
                f"config.json: {name} has no vision tower, and what it has in its place is not converted",
                hint="leave --mmproj out: the text model alone is converted",
            )
    c = Config(config).section("vision_config")
    if c is None:
        raise ConfigError("config.json: vision_config is missing or null, expected an object")
    n_embd, n_head = c.size("hidden_size", 768), c.size("num_attention_heads", 12)
    if n_embd % n_head:
        raise ConfigError(f"config.json: vision_config: {n_head} heads do not divide hidden_size, {n_embd}")
    _check_direction(Config(text))
    if any("audio_tower." in name for name in names):
        log.warning("the checkpoint has an audio tower, which is left out of the projector: it will see and not hear")
    n_layer = c.size("num_hidden_layers", 16, most=MAX_LAYERS)
    _check_fixed(c, n_head, n_embd // n_head)
    _check_tensors(c, names, n_layer)
    fields = {
        "n_layer": n_layer,
        "n_embd": n_embd,
        "n_ff": c.size("intermediate_size", 3072),
        "n_head": n_head,
        "n_text": Config(text).size("hidden_size", 2304),
        "patch_size": c.size("patch_size", 16),
        "n_positions": c.size("position_embedding_size", N_POSITIONS),
        **_colours(config),
    }
    c.done(IGNORED)
    return fields


def _check_direction(text: Config) -> None:
    """Warn where a reader takes images otherwise than the config has it: GGUF has no key for it."""
    direction, n_ple = text.raw("use_bidirectional_attention"), text.raw("hidden_size_per_layer_input", 256)
    if (direction == "vision") == bool(n_ple):
        log.warning(
            "use_bidirectional_attention is %s, which GGUF cannot say: readers let the tokens of an image %s in a "
            "model %s per-layer inputs",
            json.dumps(direction),
            "see earlier ones only" if n_ple else "see each other",
            "with" if n_ple else "without",
        )


def _check_fixed(c: Config, n_head: int, head_dim: int) -> None:
    """What readers know of the tower without being told: other values cannot be written."""
    c.expect("attention_bias", (False,), "the tower's matrices have no biases")
    c.expect("hidden_activation", ("gelu_pytorch_tanh",), "the tower's FFN is gated by the tanh form of GELU")
    c.expect("rms_norm_eps", (NORM_EPS,), "the converter writes no other epsilon")
    c.expect("layer_norm_eps", (NORM_EPS,), "the converter writes no other epsilon")
    c.expect("pooling_kernel_size", (POOLING,), "readers average over 3 by 3 patches")
    for key, only in (("num_key_value_heads", n_head), ("head_dim", head_dim)):
        default = 12 if key == "num_key_value_heads" else 64
        if c.size(key, default) != only:
            raise ConfigError(
                f"config.json: vision_config: {key} is {c.raw(key, default)}, expected {only}: GGUF tells the heads of "
                "keys and values from those of queries"
            )
    rope = c.section("rope_parameters")
    if rope is not None:
        rope.expect("rope_type", ("default", "axial"), "no other rotation is known for the tower")
        rope.expect("rope_theta", (100, 100.0), "readers rotate with base 100")
        rope.done({})


def _check_tensors(c: Config, names: Sequence[str], n_layer: int) -> None:
    """Optional tensors must be there when the config says so, all of them, and only then."""
    bounds = tuple(f".{bound}" for bound in BOUNDS)
    expected = (
        ("use_clipped_linears", c.flag("use_clipped_linears", False), bounds, len(MATRICES) * len(BOUNDS) * n_layer),
        ("standardize", c.flag("standardize", False), (".std_bias", ".std_scale"), 2),
    )
    mine = [name for name in names if "vision_tower." in name]
    if not any(".self_attn." in name for name in mine):
        return
    for key, given, endings, count in expected:
        wanted = count if given else 0
        found = sum(name.endswith(endings) for name in mine)
        if found != wanted:
            raise TensorMismatchError(
                f"config.json: vision_config: {key} is {str(given).lower()}, which means {wanted} tensors called "
                f"{' or '.join(ending[1:] for ending in endings)}; the checkpoint has {found}",
                hint="config.json and the weights do not belong together, or the checkpoint is incomplete",
            )


def _colours(config: Mapping[str, Any]) -> dict[str, Any]:
    preprocessor = config.get("preprocessor_config")
    found = {}
    for key in ("image_mean", "image_std"):
        value = preprocessor.get(key) if isinstance(preprocessor, Mapping) else None
        if not isinstance(value, list) or len(value) != 3 or not all(_number(item) for item in value):
            raise ConfigError(
                f"processor_config.json: {key} of the image processor is {value!r:.60}, expected three numbers",
                hint="the checkpoint lacks processor_config.json, which belongs to its vision tower",
            )
        found[key] = tuple(float(item) for item in value)
    return found


def read_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a file states; see `Gemma4TowerHParams.from_metadata`."""
    for key, expected in (
        ("general.architecture", "clip"),
        ("clip.vision.projector_type", PROJECTOR),
        ("clip.has_vision_encoder", True),
    ):
        if metadata.get(key) != expected:
            raise LoadError(f"{key} is {metadata.get(key)!r:.60}, expected {expected!r}")
    if metadata.get("clip.has_audio_encoder", False) is not False:
        raise LoadError(
            "the projector holds an audio tower (clip.has_audio_encoder), which hf2q cannot run",
            hint="hf2q convert --mmproj writes the vision tower alone",
        )
    fields: dict[str, Any] = {}
    for field, key in (
        ("n_layer", "block_count"),
        ("n_embd", "embedding_length"),
        ("n_ff", "feed_forward_length"),
        ("n_head", "attention.head_count"),
        ("n_text", "projection_dim"),
        ("patch_size", "patch_size"),
    ):
        value = metadata.get(f"clip.vision.{key}")
        most = MAX_LAYERS if field == "n_layer" else (1 << 32) - 1
        if type(value) is not int or not 0 < value <= most:
            raise LoadError(f"clip.vision.{key} is {value!r:.60}, expected a whole number from 1 to {most}")
        fields[field] = value
    if fields["n_embd"] % fields["n_head"]:
        raise LoadError("clip.vision.attention.head_count does not divide clip.vision.embedding_length")
    for field in ("image_mean", "image_std"):
        value = metadata.get(f"clip.vision.{field}")
        if not isinstance(value, list | tuple) or len(value) != 3 or not all(_number(item) for item in value):
            raise LoadError(f"clip.vision.{field} is {value!r:.60}, expected three numbers")
        fields[field] = tuple(float(item) for item in value)
    if 0 in fields["image_std"]:
        raise LoadError(f"clip.vision.image_std is {fields['image_std']}, expected numbers that can be divided by")
    return {**fields, **_optional(metadata)}


def _optional(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a file may state beyond what a converter writes, or otherwise than it."""
    fields: dict[str, Any] = {}
    key = "clip.vision.attention.layer_norm_epsilon"
    eps: Any = metadata.get(key)
    if not _number(eps) or eps <= 0:
        raise LoadError(f"{key} is {eps!r:.60}, expected a positive number")
    fields["norm_eps"] = float(eps)
    key = "clip.vision.projector.scale_factor"
    if metadata.get(key, POOLING) != POOLING:
        raise LoadError(f"{key} is {metadata[key]!r:.60}, expected {POOLING}: patches are averaged 3 by 3")
    if "clip.vision.image_min_pixels" in metadata:
        raise LoadError(
            "clip.vision.image_min_pixels is given; images of this family have no least size, for each is brought near "
            "to the largest one, clip.vision.image_max_pixels"
        )
    key = "clip.vision.image_max_pixels"
    if key in metadata:
        value = metadata[key]
        if type(value) is not int or not 0 < value < 1 << 32:
            raise LoadError(f"{key} is {value!r:.60}, expected a positive whole number")
        fields["max_pixels"] = value
    return fields


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
