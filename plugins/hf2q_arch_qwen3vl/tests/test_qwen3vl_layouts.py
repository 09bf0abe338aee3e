"""Layouts in which checkpoints come: names, packed experts either way, both experts and tower read in pieces."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qwen3vl_checkpoints import PREFIXES, VARIANTS, write

from hf2q.convert import convert
from hf2q.errors import TensorMismatchError
from hf2q.plugins import Plugins
from hf2q.rows import from_array
from hf2q.testing.checkpoints import write_safetensors
from hf2q_arch_qwen3vl.transposed import transposed

OPTIONS = {"provenance": False, "sidecars": False, "receipt": False}


@pytest.fixture(scope="module")
def plugins():
    return Plugins.load()


def both(plugins, source, folder):
    """Bytes of text model and projector."""
    folder.mkdir()
    made = convert(source, "f16", folder / "x.gguf", mmproj=True, plugins=plugins, **OPTIONS)
    return Path(made.output).read_bytes(), Path(made.projector.output).read_bytes()


def rewrite(folder, change):
    """Change the arrays of a checkpoint: (name, array) -> pairs of those."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    arrays = {}
    for file in sorted(set(index["weight_map"].values())):
        for name, array in read(folder / file).items():
            arrays |= dict(change(name, array))
        (folder / file).unlink()
    (folder / "model.safetensors.index.json").unlink()
    write_safetensors(folder / "model.safetensors", dict(sorted(arrays.items())))


def read(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__")
    return {
        name: np.frombuffer(
            data, "<f4", (info["data_offsets"][1] - info["data_offsets"][0]) // 4, 8 + size + info["data_offsets"][0]
        ).reshape(info["shape"])
        for name, info in header.items()
    }


@pytest.mark.parametrize(
    "prefixes",
    [
        {**PREFIXES, "": "model."},
        {"": "language_model.model.", "visual.": "visual.", "lm_head.": "language_model.lm_head."},
        {"": "thinker.model.", "visual.": "thinker.visual.", "lm_head.": "thinker.lm_head."},
    ],
)
def test_prefixes_make_no_difference(plugins, tmp_path, prefixes):
    arch, config = VARIANTS["dense-untied"]
    for name, own in (("published", PREFIXES), ("other", prefixes)):
        write(tmp_path / name / "Tiny-VL", arch, config, prefixes=own)
    one = both(plugins, tmp_path / "published" / "Tiny-VL", tmp_path / "a")
    assert both(plugins, tmp_path / "other" / "Tiny-VL", tmp_path / "b") == one


def swapped(name, array):
    """Packed experts as transformers 5 saves them."""
    return [(name, np.ascontiguousarray(array.swapaxes(1, 2)) if ".experts." in name else array)]


def single(name, array):
    """Experts one by one."""
    if ".experts." not in name:
        return [(name, array)]
    made = {}
    stem, _, kind = name.rpartition(".")
    for e, matrix in enumerate(array.swapaxes(1, 2)):
        halves = zip(("gate", "up"), np.split(matrix, 2), strict=True) if kind == "gate_up_proj" else [("down", matrix)]
        made |= {f"{stem}.{e}.{part}_proj.weight": np.ascontiguousarray(half) for part, half in halves}
    return made.items()


@pytest.mark.parametrize("change", [swapped, single])
@pytest.mark.parametrize("square", ["neither", "gate and up", "down"])
def test_experts_come_packed_either_way_or_one_by_one(plugins, tmp_path, change, square):
    arch, config = VARIANTS["moe"]
    width = {"neither": 20, "gate and up": 24, "down": 48}[square]
    config = {**config, "text_config": {**config["text_config"], "moe_intermediate_size": width}}
    for name in ("published", "other"):
        write(tmp_path / name / "Tiny-VL", arch, config)
    rewrite(tmp_path / "published" / "Tiny-VL", lambda name, array: [(name, array)])
    rewrite(tmp_path / "other" / "Tiny-VL", change)
    one = both(plugins, tmp_path / "published" / "Tiny-VL", tmp_path / "a")
    assert both(plugins, tmp_path / "other" / "Tiny-VL", tmp_path / "b") == one


def test_a_mixture_of_both_forms_is_refused(plugins, tmp_path):
    arch, config = VARIANTS["moe"]
    source = write(tmp_path / "Tiny-VL", arch, config)
    rewrite(source, lambda name, array: swapped(name, array) if "layers.1" in name else [(name, array)])
    with pytest.raises(TensorMismatchError, match=r"ffn_\w+_exps"):
        convert(source, "f16", tmp_path / "x.gguf", plugins=plugins)


def test_a_clip_of_one_frame_is_refused(plugins, tmp_path):
    arch, config = VARIANTS["dense"]
    source = write(tmp_path / "Tiny-VL", arch, config)
    rewrite(source, lambda name, a: [(name, np.ascontiguousarray(a[:, :, :1]) if a.ndim == 5 else a)])
    with pytest.raises(TensorMismatchError, match=r"v\.patch_embd\.weight"):
        convert(source, "f16", tmp_path / "x.gguf", mmproj=True, plugins=plugins)


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.data())
@settings(max_examples=60, deadline=None)
def test_transposed_rows(count, height, width, data):
    array = np.arange(count * height * width, dtype=np.float32).reshape(count, height, width)
    first = data.draw(st.integers(0, width - 1))
    last = data.draw(st.integers(first + 1, width))
    view = transposed(from_array(array), first, last)
    whole = np.ascontiguousarray(array.swapaxes(1, 2)[:, first:last])
    assert view.shape == whole.shape
    flat = whole.reshape(-1, height)
    start = data.draw(st.integers(0, len(flat)))
    stop = data.draw(st.integers(start, len(flat)))
    assert np.array_equal(view.read(start, stop), flat[start:stop])


def test_transposed_rows_from_many_threads():
    array = np.random.RandomState(0).standard_normal((6, 40, 30)).astype(np.float32)
    view = transposed(from_array(array), 5, 25)
    whole = np.ascontiguousarray(array.swapaxes(1, 2)[:, 5:25]).reshape(-1, 40)
    places = [(start, min(start + 7, len(whole))) for start in range(0, len(whole), 3)]
    with ThreadPoolExecutor(8) as pool:
        for (start, stop), block in zip(places, pool.map(lambda place: view.read(*place), places), strict=True):
            assert np.array_equal(block, whole[start:stop])
