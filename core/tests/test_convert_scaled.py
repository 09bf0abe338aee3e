"""Checkpoints whose weights are stored in FP8 or FP4 beside their scales."""

import importlib.util
import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf2q import rows
from hf2q.convert.quantized import Stated
from hf2q.convert.scaled import ScaledCheckpoint, as_stored, expand_scales, is_scaled, left_out_scales
from hf2q.convert.scales import grid_of, mxfp4_blocks
from hf2q.convert.source import open_source
from hf2q.errors import EncodeError, FormatError, TensorMismatchError
from hf2q.formats.safetensors import Checkpoint, open_checkpoint
from hf2q.formats.small_floats import e2m1, e4m3, e8m0

spec = importlib.util.spec_from_file_location("raw_safetensors", Path(__file__).parent / "data" / "raw_safetensors.py")
raw = importlib.util.module_from_spec(spec)
spec.loader.exec_module(raw)

FINE = [code for code in range(256) if code & 0x7F != 0x7F]


def random_codes(seed, *shape):
    return np.random.RandomState(seed).choice(FINE, shape).astype(np.uint8)


def powers(seed, *shape):
    return np.random.RandomState(seed).randint(100, 140, shape).astype(np.uint8)


def view(folder, tensors, block=None):
    folder.mkdir(exist_ok=True)
    raw.write(folder / "model.safetensors", tensors)
    return expand_scales(open_checkpoint(folder), Stated(method="fp8", block=block))


def whole(found):
    return found.read(0, rows.n_rows(found)).reshape(found.shape)


def repeated(scale, block, shape):
    """As llama.cpp does it: each scale repeated over its block, and what is too much cut off."""
    wide = np.repeat(np.repeat(scale, block[0], axis=-2), block[1], axis=-1)
    return wide[..., : shape[-2], : shape[-1]]


@pytest.mark.parametrize("shape", [(128, 256), (200, 300), (130, 5), (1, 128)])
@pytest.mark.parametrize("kind", ["F32", "BF16", "F8_E8M0", "U8"])
def test_blocks_of_fp8_with_ragged_edges(tmp_path, shape, kind):
    codes, grid = random_codes(1, *shape), (-(-shape[0] // 128), -(-shape[1] // 128))
    if kind in ("F8_E8M0", "U8"):
        own = powers(2, *grid)
        stored, scale = raw.codes(kind, own), e8m0()[own]
    else:
        scale = np.round(np.random.RandomState(2).uniform(1, 127, grid)).astype(np.float32) / 128
        stored = raw.f32(scale) if kind == "F32" else raw.bf16(scale)
    found = view(tmp_path, {"w.weight": raw.codes("F8_E4M3", codes), "w.weight_scale_inv": stored}, (128, 128))
    assert list(found.tensors) == ["w.weight"]
    assert (found.tensors["w.weight"].shape, found.tensors["w.weight"].dtype) == (shape, "F8_E4M3")
    made = found.rows("w.weight")
    expected = e4m3()[codes] * repeated(scale, (128, 128), shape)
    assert (made.shape, made.dtype) == (shape, "F8_E4M3")
    assert np.array_equal(whole(made), expected)
    for start, stop in ((0, 0), (0, 1), (shape[0] // 2, shape[0]), (shape[0] - 1, shape[0])):
        assert np.array_equal(made.read(start, stop), expected[start:stop])


def test_a_product_that_is_not_exact_is_rounded_once(tmp_path):
    codes, scale = random_codes(3, 4, 6), np.float32([[0.1]])
    found = view(tmp_path, {"w": raw.codes("F8_E4M3", codes), "w_scale_inv": raw.f32(scale)})
    assert np.array_equal(whole(found.rows("w")), e4m3()[codes] * np.float32(0.1))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_scale_for_all(tmp_path, shape):
    codes = random_codes(4, 6, 10)
    scale = raw.f32(np.full(shape, 0.25))
    found = view(tmp_path, {"w.weight": raw.codes("F8_E4M3", codes), "w.weight_scale": scale})
    assert np.array_equal(whole(found.rows("w.weight")), e4m3()[codes] / 4)


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_one_scale_for_each_row(tmp_path, shape):
    codes, scale = random_codes(5, 6, 10), np.arange(1, 7, dtype=np.float32)
    tensors = {"w.weight": raw.codes("F8_E4M3", codes), "w.weight_scale": raw.f32(scale.reshape(shape))}
    made = view(tmp_path, tensors).rows("w.weight")
    expected = e4m3()[codes] * scale[:, None]
    assert np.array_equal(whole(made), expected)
    assert np.array_equal(made.read(3, 5), expected[3:5])


def test_packed_experts_have_a_grid_for_each(tmp_path):
    codes, scale = random_codes(6, 3, 70, 40), np.random.RandomState(7).rand(3, 3, 2).astype(np.float32)
    tensors = {"experts.up": raw.codes("F8_E4M3", codes), "experts.up_scale_inv": raw.f32(scale)}
    made = view(tmp_path, tensors, (32, 32)).rows("experts.up")
    expected = e4m3()[codes] * repeated(scale, (32, 32), codes.shape)
    assert np.array_equal(whole(made), expected)
    assert np.array_equal(made.read(69, 143), expected.reshape(-1, 40)[69:143])
    one_each = {"experts.up": raw.codes("F8_E4M3", codes), "experts.up_scale_inv": raw.f32(scale[:, 0, 0])}
    found = view(tmp_path, one_each).rows("experts.up")
    assert np.array_equal(whole(found), e4m3()[codes] * scale[:, :1, :1])


def test_which_blocks_a_grid_means():
    def blocks(weight, scale, stated=None):
        grid = grid_of(weight, scale, stated)
        return grid and (grid.height, grid.width)

    assert blocks((256, 256), (2, 2)) == (128, 128)
    assert blocks((64, 64), (2, 2)) == (32, 32)  # nothing is stated: even division
    assert blocks((64, 64), (2, 2), (128, 128)) == (32, 32)  # what is stated does not give this grid
    assert blocks((192, 128), (2, 1), (128, 128)) == (128, 128)  # it does, with the last block cut off
    assert blocks((192, 128), (2, 1)) == (96, 128)
    assert blocks((130, 128), (2, 1)) == (65, 128)
    assert blocks((131, 128), (2, 1)) == (128, 128)
    assert blocks((131, 128), (3, 1)) is None
    assert blocks((4, 4), (4, 4, 4)) is None
    assert blocks((2, 4, 4), (3, 1, 1)) is None
    assert blocks((8,), (1,)) == (1, 8)
    assert blocks((8,), (8,)) is None


def test_a_grid_that_fits_nothing_is_refused(tmp_path):
    tensors = {"w": raw.codes("F8_E4M3", random_codes(8, 131, 4)), "w_scale_inv": raw.f32(np.ones((3, 1)))}
    with pytest.raises(TensorMismatchError, match=r"'w_scale_inv' has the shape \(3, 1\)") as refusal:
        view(tmp_path, tensors).rows("w")
    assert "(131, 4)" in refusal.value.message


@pytest.mark.parametrize("dtype", ["I8", "U8"])
def test_fp4_values_and_blocks(tmp_path, dtype):
    packed, scale = np.random.RandomState(9).randint(0, 256, (5, 48)).astype(np.uint8), powers(10, 5, 3)
    tensors = {"w.weight": raw.codes(dtype, packed), "w.scale": raw.codes("F8_E8M0", scale)}
    found = view(tmp_path, tensors)
    assert (found.tensors["w.weight"].shape, found.tensors["w.weight"].dtype) == ((5, 96), "F4_E2M1")
    made = found.rows("w.weight")
    values = np.stack([e2m1()[packed & 15], e2m1()[packed >> 4]], axis=-1).reshape(5, 96)
    expected = values * np.repeat(e8m0()[scale], 32, axis=1)
    assert np.array_equal(whole(made), expected)
    assert np.array_equal(made.read(2, 4), expected[2:4])
    assert rows.packed_as(made) == "MXFP4"
    blocks = made.stored(1, 5)
    assert blocks.shape == (4, 3 * 17)
    assert np.array_equal(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.MXFP4), expected[1:])


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 1000))
def test_repacking_loses_nothing(count, groups, seed):
    random = np.random.RandomState(seed)
    codes = random.randint(0, 256, (count, groups * 16)).astype(np.uint8)
    scale = random.randint(0, 255, (count, groups)).astype(np.uint8)
    blocks = mxfp4_blocks(codes, scale).reshape(count, groups, 17)
    assert np.array_equal(blocks[:, :, 0], scale)
    back = np.concatenate([blocks[:, :, 1:] & 15, blocks[:, :, 1:] >> 4], axis=2)  # values 0 to 15, then 16 to 31
    assert np.array_equal(back[:, :, 0::2] | back[:, :, 1::2] << 4, codes.reshape(count, groups, 16))


def test_stacks_of_fp4_pass_their_blocks_on(tmp_path):
    made, blocks = {}, []
    for e in range(3):
        packed, scale = np.random.RandomState(e).randint(0, 256, (4, 16)).astype(np.uint8), powers(e, 4, 1)
        made |= {f"{e}.weight": raw.codes("I8", packed), f"{e}.scale": raw.codes("F8_E8M0", scale)}
        blocks.append(mxfp4_blocks(packed, scale))
    found = view(tmp_path, made)
    stack = rows.stack([found.rows(f"{e}.weight") for e in range(3)])
    assert rows.packed_as(stack) == "MXFP4"
    assert np.array_equal(stack.stored(2, 11), np.concatenate(blocks)[2:11])
    assert rows.packed_as(rows.elementwise(stack, lambda x: x)) == ""


def test_codes_that_are_no_numbers_are_named(tmp_path):
    codes = random_codes(11, 4, 40)
    codes[2, 7] = 0xFF
    made = view(tmp_path, {"w.weight": raw.codes("F8_E4M3", codes), "w.scale": raw.f32([[1.0]])}).rows("w.weight")
    assert made.read(0, 2).shape == (2, 40)
    with pytest.raises(FormatError, match=r"'w\.weight' holds the code 0xff, NaN in E4M3, at row 2, column 7"):
        made.read(1, 4)
    packed, scale = np.zeros((4, 32), np.uint8), powers(12, 4, 2)
    scale[3, 1] = 255
    made = view(tmp_path, {"w.weight": raw.codes("I8", packed), "w.scale": raw.codes("F8_E8M0", scale)}).rows(
        "w.weight"
    )
    for read in (made.read, made.stored):
        assert len(read(0, 3)) == 3
        with pytest.raises(FormatError, match=r"'w\.scale' holds nan at row 3, column 1"):
            read(2, 4)


def test_values_beyond_float32_are_not_passed_on_as_blocks(tmp_path):
    packed = np.full((2, 16), 0x11, np.uint8)
    packed[1, 3] = 0x17  # 6 and 0.5
    tensors = {"w.weight": raw.codes("I8", packed), "w.scale": raw.codes("F8_E8M0", [[254], [254]])}
    made = view(tmp_path, tensors).rows("w.weight")
    assert made.stored(0, 1).shape == (1, 17)
    with pytest.raises(EncodeError, match="inf at row 1, column 6"):
        made.stored(0, 2)


FP8, ONE = raw.codes("F8_E4M3", [[1, 2]]), raw.f32([[1.0]])


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a.weight": FP8, "b.weight": FP8}, r"2 tensors of small floats have no scales: a\.weight \(F8_E4M3\), b"),
        ({"a.weight": raw.codes("F8_E5M2", [[1]])}, r"no scales: a\.weight \(F8_E5M2\)"),
        (
            {"a.weight": raw.codes("F8_E5M2", [[1]]), "a.weight_scale": ONE},
            r"a form that is not known: a\.weight \(F8_E5M2 with a scale of F32\)",
        ),
        ({"a.weight_scale_inv": ONE}, r"1 scales have no weight that they belong to: a\.weight_scale_inv"),
        ({"a.weight": ONE, "a.weight_scale": ONE}, r"no weight that they belong to: a\.weight_scale"),
        ({"a.scale": raw.codes("F8_E8M0", [[1]])}, r"no weight that they belong to: a\.scale"),
        ({"a.weight": FP8, "a.scale": ONE, "a.weight_scale": ONE}, r"more than one scale: a\.weight: a\.scale and a"),
        (
            {"a.weight": raw.codes("I8", [[1] * 16]), "a.scale": ONE},
            r"a form that is not known: a\.weight \(I8 with a scale of F32\)",
        ),
    ],
)
def test_what_does_not_belong_together_is_listed(tmp_path, tensors, message):
    with pytest.raises(TensorMismatchError, match=message):
        view(tmp_path, tensors)


def test_fp4_with_scales_of_another_shape_is_refused(tmp_path):
    tensors = {"w.weight": raw.codes("I8", np.zeros((4, 16))), "w.scale": raw.codes("F8_E8M0", np.zeros((4, 2)))}
    with pytest.raises(TensorMismatchError, match=r"\(4, 2\)"):
        view(tmp_path, tensors).rows("w.weight")


def test_scales_of_activations_are_left_out_with_a_reason(tmp_path):
    tensors = {"w.weight": FP8, "w.weight_scale": ONE, "w.input_scale": ONE, "router.scale": ONE, "router.weight": ONE}
    found = view(tmp_path, tensors)
    assert set(found.tensors) == {"w.weight", "router.scale", "router.weight"}
    assert [name for name, _ in left_out_scales(found)] == ["w.input_scale"]
    assert np.array_equal(whole(found.rows("router.scale")), [[1.0]])
    assert [info.name for info in as_stored(found, ["w.weight", "router.weight"])] == [
        "w.weight",
        "w.weight_scale",
        "router.weight",
    ]


def test_a_plain_checkpoint_is_returned_as_it_is(tmp_path):
    found = view(tmp_path, {"a.weight": ONE, "a.scale": ONE})
    assert isinstance(found, Checkpoint)
    assert not is_scaled(found)
    assert left_out_scales(found) == ()


def test_open_source_sees_scaled_weights(tmp_path):
    raw.write(tmp_path / "model.safetensors", {"a.weight": FP8, "a.weight_scale_inv": ONE})
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    source = open_source(str(tmp_path))
    assert isinstance(source.checkpoint, ScaledCheckpoint)
    assert is_scaled(source.checkpoint)
    assert source.checkpoint.tensors["a.weight"].dtype == "F8_E4M3"
    assert [file.name for file in source.checkpoint.files] == ["model.safetensors"]
