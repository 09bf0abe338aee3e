"""From ``config.json``, and from GGUF metadata, to the fields of `TowerHParams`.

Sources: transformers 5.17, models/qwen3_vl{,_moe}/configuration_*.py and models/qwen3_5{,_moe}/configuration_*.py
(defaults of ``vision_config``); llama.cpp, conversion/base.py `MmprojModel` and conversion/qwen3vl.py
`Qwen3VLVisionModel` (what is read), tools/mtmd/clip.cpp, `clip_model_loader` (what is loaded).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import isqrt
from typing import Any

from hf2q.config import HARMLESS, MAX_LAYERS, Config, overlaid
from hf2q.errors import ConfigError, LoadError
from hf2q_arch_qwen3vl.families import MAX_TAPS, PROJECTOR, taps_by_default
from hf2q_arch_qwen3vl.keys import Keys, is_list

log = logging.getLogger(__name__)

NORM_EPS = 1e-6
"""Of every norm of the tower: transformers, models/qwen3_vl/modeling_qwen3_vl.py. Not in any config."""


def read_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `TowerHParams`; see its `from_config`."""
    vision = Config(config, "config.json").section("vision_config")
    if vision is None:
        raise ConfigError("config.json has no vision_config", hint="the checkpoint has no vision tower")
    text = Config(overlaid(config))
    n_text = text.size("hidden_size")
    depth = vision.size("depth", 27, most=MAX_LAYERS)
    patch, merge = vision.size("patch_size", 16), vision.size("spatial_merge_size", 2)
    fields = {
        "n_layer": depth,
        "n_embd": vision.size("hidden_size", 1152),
        "n_ff": vision.size("intermediate_size", 4304),
        "n_head": vision.size("num_heads", 16),
        "n_text": n_text,
        "patch_size": patch,
        "merge": merge,
        "image_size": _image_size(vision, patch),
        "taps": _taps(vision, depth, config.get("model_type")),
        "norm_eps": _norm_eps(config),
        **_processor(config, patch, merge),
    }
    if fields["n_embd"] % fields["n_head"]:
        raise vision.wrong("num_heads", f"a divisor of hidden_size, which is {fields['n_embd']}")
    _check_fixed(vision, n_text)
    vision.done(HARMLESS)
    return fields


def _image_size(vision: Config, patch: int) -> int:
    positions = vision.size("num_position_embeddings", 2304)
    side = isqrt(positions)
    if side * side != positions:
        raise vision.wrong("num_position_embeddings", "a square number")
    vision.expect("image_size", (side * patch,), "the learned positions cover a square image of that size")
    return side * patch


def _taps(vision: Config, depth: int, model_type: object) -> tuple[int, ...]:
    default = taps_by_default(model_type)
    taps = vision.raw("deepstack_visual_indexes", list(default))
    if not isinstance(taps, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in taps):
        raise vision.wrong("deepstack_visual_indexes", "a list of block numbers")
    if len(taps) > MAX_TAPS or len(set(taps)) != len(taps) or not all(0 <= i < depth for i in taps):
        raise ConfigError(
            f"config.json: vision_config: deepstack_visual_indexes is {taps}, expected at most {MAX_TAPS} different "
            f"blocks of {depth}"
        )
    return tuple(taps)


def _norm_eps(config: Mapping[str, Any]) -> float:
    """The text model's epsilon, which the converter writes; the root's own key does not count."""
    text = Config(config, "config.json").section("text_config")
    eps = text.number("rms_norm_eps", NORM_EPS) if text is not None else NORM_EPS
    if eps != NORM_EPS:
        log.warning(
            "the projector says that its norms have the epsilon %g of the text model, as llama.cpp's converter writes "
            "it; transformers computes them with %g",
            eps,
            NORM_EPS,
        )
    return eps


def _processor(config: Mapping[str, Any], patch: int, merge: int) -> dict[str, Any]:
    found = config.get("preprocessor_config")
    images = Config(found if isinstance(found, Mapping) else {}, "preprocessor_config.json")
    for key, own in (("patch_size", patch), ("merge_size", merge)):
        other = images.raw(key)
        if other is not None and other != own:
            log.warning("preprocessor_config.json: %s is %r, but the tower's own is %d, which counts", key, other, own)
    return {key: _colours(images, key) for key in ("image_mean", "image_std")}


def _colours(images: Config, key: str) -> tuple[float, ...]:
    values = images.raw(key)
    if values is None:
        raise ConfigError(
            f"preprocessor_config.json and processor_config.json give no {key}, by which the tower's images are "
            "normalised",
            hint="get preprocessor_config.json of the checkpoint that this one was made from",
        )
    if not is_list(values, int | float) or len(values) != 3 or not all(0 <= v < 1e6 for v in values):
        raise images.wrong(key, "3 numbers, one for each colour")
    if key == "image_std" and 0 in values:
        raise images.wrong(key, "3 numbers that can be divided by")
    return tuple(float(value) for value in values)


def _check_fixed(vision: Config, n_text: int) -> None:
    """What the tower computes in one way only (transformers, modeling_qwen3_vl.py): other values are not understood."""
    why = "the tower's output must be as wide as the text model, which is what GGUF says it is"
    if vision.size("out_hidden_size", 3584) != n_text:
        raise vision.wrong("out_hidden_size", f"{n_text}, text_config's hidden_size: {why}")
    vision.expect("hidden_act", ("gelu_pytorch_tanh",), "GGUF can only say that the tower has a GELU")
    vision.expect("in_channels", (3,), "images have three colours")
    vision.expect("temporal_patch_size", (2,), "llama.cpp knows pairs of frames only")
    rope = vision.section("rope_parameters")
    if rope is not None:
        rope.expect("rope_type", ("axial", "default"), "the tower's RoPE is two-dimensional")
        rope.expect("rope_theta", (10000, 10000.0), "GGUF has no key for another base")
        rope.expect("partial_rotary_factor", (1, 1.0, 0.5), "GGUF has no key for it")
        rope.done({})


def read_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `TowerHParams`; see its `from_metadata`."""
    kind = metadata.get("clip.projector_type")
    if metadata.get("general.architecture") != "clip" or kind != PROJECTOR:
        raise LoadError(f"clip.projector_type is {kind!r}, expected {PROJECTOR!r} in a file of the arch clip")
    for key in ("clip.has_vision_encoder", "clip.use_gelu"):  # without the second llama.cpp computes another activation
        if metadata.get(key) is not True:
            raise LoadError(f"{key} is {metadata.get(key)!r:.60}, expected True")
    keys = Keys(metadata, "clip.vision")
    n_layer, image, patch = keys.size("block_count", most=MAX_LAYERS), keys.size("image_size"), keys.size("patch_size")
    if image % patch:
        raise LoadError(
            f"clip.vision.image_size is {image}, expected a multiple of clip.vision.patch_size, which is {patch}"
        )
    return {
        "n_layer": n_layer,
        "n_embd": keys.size("embedding_length"),
        "n_ff": keys.size("feed_forward_length"),
        "n_head": keys.size("attention.head_count"),
        "n_text": keys.size("projection_dim"),
        "patch_size": patch,
        "merge": keys.size("spatial_merge_size", 2),
        "image_size": image,
        "taps": _tapped(metadata, n_layer),
        "norm_eps": keys.number("attention.layer_norm_epsilon"),
        "image_mean": keys.colours("image_mean"),
        "image_std": _deviations(keys),
        "min_pixels": keys.size("image_min_pixels", 0),
        "max_pixels": keys.size("image_max_pixels", 0),
    }


def _deviations(keys: Keys) -> tuple[float, ...]:
    found = keys.colours("image_std")
    if 0 in found:
        raise LoadError(f"clip.vision.image_std is {found}, expected 3 numbers that can be divided by")
    return found


def _tapped(metadata: Mapping[str, Any], n_layer: int) -> tuple[int, ...]:
    flags: Sequence[bool] = metadata.get("clip.vision.is_deepstack_layers", ())
    if not is_list(flags, bool) or len(flags) not in (0, n_layer) or sum(flags) > MAX_TAPS:
        raise LoadError(
            f"clip.vision.is_deepstack_layers is no list of {n_layer} truth values with at most {MAX_TAPS} true ones"
        )
    return tuple(i for i, tapped in enumerate(flags) if tapped)
