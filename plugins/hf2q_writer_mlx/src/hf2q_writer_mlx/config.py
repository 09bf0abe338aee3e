"""config.json of an MLX directory, and the text files that are copied beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from hf2q.errors import MissingFileError
from hf2q.types import MetadataField, Recipe, TensorPlan
from hf2q_writer_mlx.codec import affine_codec
from hf2q_writer_mlx.recipes import ROUTERS, bits_and_group

CONFIG = "config.json"
NEEDED = ("tokenizer.json",)
COPIED = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
"""Files that the tokenizer is read from, and those that mlx-lm looks at: mlx_lm/utils.py, `load_config`, `save`."""
DROPPED = ("_name_or_path", "vision_config", "quantization", "quantization_config")
"""Source: mlx_lm/utils.py, `save_config`: what the directory has no weights for."""


def text_files(
    config: Mapping[str, Any],
    keys: Mapping[str, Any],
    quantization: Mapping[str, Any] | None,
    text: Callable[[str], str | None],
) -> Iterator[MetadataField]:
    """Every text file of the directory by its name; `text` gives those of the source, None for what it lacks.

    Errors: MissingFileError for a file that mlx-lm cannot do without.
    """
    made = {key: value for key, value in config.items() if key not in DROPPED} | dict(keys)
    if quantization is not None:  # twice, as mlx-lm writes it
        made |= {"quantization": quantization, "quantization_config": quantization}
    told = json.dumps(dict(sorted(made.items())), indent=4, allow_nan=False, ensure_ascii=False)
    yield MetadataField.string(CONFIG, told)
    for name in (*NEEDED, *COPIED):
        found = text(name)
        if found is not None:
            yield MetadataField.string(name, found)
        elif name in NEEDED:
            raise MissingFileError(f"the source has no {name}, without which mlx-lm loads no model")


def quantization_of(recipe: Recipe, tensors: Iterable[TensorPlan]) -> dict[str, Any]:
    """What modules have that nothing is said about, and by name what others have.

    Source: mlx_lm/utils.py, `quantize_model`; the routers' entries name no mode there either.
    """
    bits, group = bits_and_group(recipe)
    told: dict[str, Any] = {"group_size": group, "bits": bits, "mode": "affine"}
    mixed = recipe.name.startswith("mixed")
    for tensor in tensors:
        codec = affine_codec(tensor.qtype)
        path = tensor.name.removesuffix(".weight")
        if codec is None:
            continue
        if mixed:
            told[path] = {"group_size": codec.group, "bits": codec.bits, "mode": "affine"}
        elif path.endswith(ROUTERS):
            told[path] = {"group_size": codec.group, "bits": codec.bits}
    return told
