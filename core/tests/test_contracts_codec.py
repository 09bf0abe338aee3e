"""`CodecContract` lets an honest codec pass and catches faults put in by hand."""

import contextlib
import sys
import types

import numpy as np
import pytest

from hf2q.codec import QuantCodec, check_finite
from hf2q.errors import EncodeError
from hf2q.plugins import Plugins
from hf2q.testing.codec import CodecContract
from hf2q.testing.verdicts import failures

BLOCK, SIZE = 32, 34


def encode(x, out, importance):
    """ggml's Q8_0: a float16 scale and 32 signed bytes."""
    blocks = x.reshape(len(x), -1, BLOCK)
    scale = (np.abs(blocks).max(-1, keepdims=True) / np.float32(127)).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        codes = np.where(scale > 0, blocks / scale, 0)
        half = scale.astype(np.float16)
    view = out.reshape(len(x), -1, SIZE)
    view[..., :2] = half.view(np.uint8)
    view[..., 2:] = np.rint(codes).astype(np.int8).view(np.uint8)
    if np.isinf(half).any():
        raise EncodeError("Q8_0 cannot hold weights beyond 8.3 million")


def decode(data, out):
    view = data.reshape(len(data), -1, SIZE)
    scale = np.ascontiguousarray(view[..., :2]).view(np.float16).astype(np.float32)
    codes = np.ascontiguousarray(view[..., 2:]).view(np.int8).astype(np.float32)
    with np.errstate(all="ignore"):
        out[...] = (scale * codes).reshape(len(data), -1)


def affine(data):
    view = data.reshape(len(data), -1, SIZE)
    scale = np.ascontiguousarray(view[..., :2]).view(np.float16).astype(np.float32)[..., 0]
    return (view[..., 2:] ^ np.uint8(128)).reshape(len(data), -1), scale, -128 * scale, 8


def suite(monkeypatch, *, base=QuantCodec, kernels=None, attributes=None, **fields):
    """A suite over the honest codec with parts exchanged."""
    module = types.ModuleType("hf2q_fake_kernels")
    vars(module).update({"encode": encode, "decode": decode, "affine": affine, **(kernels or {})})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    values = {
        "name": "Q8_0",
        "ggml_type": 8,
        "block_size": BLOCK,
        "type_size": SIZE,
        "encoder": "hf2q_fake_kernels:encode",
        "decoder": "hf2q_fake_kernels:decode",
        "affine": "hf2q_fake_kernels:affine",
        "source": "ggml-common.h, block_q8_0",
        **fields,
    }
    made = base(**values)

    class Suite(CodecContract):
        plugin = "builtin"  # for the checks of the plugin as a whole
        name = made.name

        @classmethod
        def codec(cls):
            return made

        @classmethod
        def plugins(cls):
            return Plugins.load(only=["builtin"])

    for key, value in (attributes or {}).items():
        setattr(Suite, key, value)
    return Suite


def test_an_honest_codec_passes(monkeypatch, tmp_path):
    assert failures(suite(monkeypatch), tmp_path) == {}


def cannot_do_without(x, out, importance):
    encode(x, out, importance)
    assert importance.shape == (x.shape[1],)


def test_a_codec_that_needs_importance_gets_it(monkeypatch, tmp_path):
    kernels = {"encode": cannot_do_without}
    assert failures(suite(monkeypatch, kernels=kernels, needs_importance=True), tmp_path) == {}
    with pytest.raises(EncodeError, match=r"Q8_0 cannot be encoded without importance, .* for tensor 'blk.0.attn_q"):
        suite(monkeypatch, needs_importance=True).codec().encode(np.zeros((1, BLOCK), np.float32), name="blk.0.attn_q")


def test_a_codec_that_hides_that_it_needs_importance_fails(monkeypatch, tmp_path):
    assert failures(suite(monkeypatch, kernels={"encode": cannot_do_without}), tmp_path)


def whole_tensor_scale(x, out, importance):
    """One scale for all rows: depends on how rows are split."""
    encode(x, out, importance)
    if x.size:
        scale = np.float16(np.abs(x).max() / 127) or np.float16(1)
        view = out.reshape(len(x), -1, SIZE)
        view[..., :2] = np.broadcast_to(np.array([scale]).view(np.uint8), view[..., :2].shape)
        view[..., 2:] = np.rint(x.reshape(len(x), -1, BLOCK) / np.float32(scale)).astype(np.int8).view(np.uint8)


def first_row_differs(x, out, importance):
    encode(x, out, importance)
    out[:1, 2:3] ^= 1


def leaves_last_byte(x, out, importance):
    made = np.empty_like(out)
    encode(x, made, importance)
    out[:, :-1] = made[:, :-1]


def writes_beyond(x, out, importance):
    encode(x, out, importance)
    if out.base is not None and out.base.ndim == 2 and len(out.base) > len(out):
        out.base[-1, 0] ^= 0x55


def changes_its_input(x, out, importance):
    encode(x, out, importance)
    x *= np.float32(0.5)


def truncates(x, out, importance):
    """Rounds toward zero, which costs a bit."""
    blocks = x.reshape(len(x), -1, BLOCK)
    encode(x, out, importance)
    scale = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.where(scale > 0, np.trunc(blocks / scale), 0)
    out.reshape(len(x), -1, SIZE)[..., 2:] = codes.astype(np.int8).view(np.uint8)


def overflows_silently(x, out, importance):
    with contextlib.suppress(EncodeError):
        encode(x, out, importance)


def importance_leaks(x, out, importance):
    """Importance of one block changes all of them."""
    encode(x, out, importance)
    if importance is not None:
        out.reshape(len(x), -1, SIZE)[..., 2] ^= np.uint8(importance.std() > 0)


def random_rounding(x, out, importance):
    encode(x, out, importance)
    if out.size:
        out.reshape(-1)[2:SIZE] ^= np.random.default_rng().integers(0, 2, BLOCK, np.uint8)  # one choice may repeat


def another_formula(data, out):
    """scale * code computed in float16."""
    view = data.reshape(len(data), -1, SIZE)
    scale = np.ascontiguousarray(view[..., :2]).view(np.float16)
    with np.errstate(all="ignore"):
        out[...] = (scale * np.ascontiguousarray(view[..., 2:]).view(np.int8)).astype(np.float32).reshape(len(data), -1)


def unsigned_codes(data, out):
    decode(data, out)
    np.abs(out, out=out)


def biased_affine(data):
    codes, scales, biases, bits = affine(data)
    return codes, scales, biases * np.float32(127 / 128), bits


def narrow_affine(data):
    codes, scales, biases, _ = affine(data)
    return codes, scales, biases, 7


class AcceptsAnything(QuantCodec, frozen=True, kw_only=True):
    """A codec that replaces what it cannot encode by zero."""

    def encode(self, x, importance=None, **more):
        return super().encode(np.nan_to_num(x, posinf=0, neginf=0), importance, **more)


class Unchecked(QuantCodec, frozen=True, kw_only=True):
    """A codec that goes round the checks of core."""

    def encode(self, x, importance=None, **more):
        check_finite(x, self.name, f"tensor {more.get('name')!r}", more.get("first_row", 0))
        out = np.empty((len(x), self.row_bytes(x.shape[1])), np.uint8)
        sys.modules["hf2q_fake_kernels"].encode(np.ascontiguousarray(x), out, importance)
        return out


class PadsRows(QuantCodec, frozen=True, kw_only=True):
    """A codec with another size law: rows of any width are filled up."""

    def row_bytes(self, columns):
        return -(-columns // self.block_size) * self.type_size


FAULTS = [
    ({"kernels": {"encode": whole_tensor_scale}}, "test_any_split_of_rows_gives_the_same_bytes"),
    ({"kernels": {"encode": first_row_differs}}, "test_any_split_of_rows_gives_the_same_bytes"),
    ({"kernels": {"encode": leaves_last_byte}}, "test_every_byte_is_written_and_none_beyond"),
    ({"kernels": {"encode": writes_beyond}}, "test_every_byte_is_written_and_none_beyond"),
    ({"kernels": {"encode": changes_its_input}}, "test_inputs_are_left_alone"),
    ({"kernels": {"encode": random_rounding}}, "test_inputs_are_left_alone"),
    ({"kernels": {"encode": truncates}}, "test_the_error_is_that_of_as_many_bits"),
    (
        {"base": Unchecked, "kernels": {"encode": overflows_silently}},
        "test_what_the_type_cannot_hold_is_refused_or_held",
    ),
    ({"kernels": {"encode": importance_leaks}}, "test_importance_acts_where_it_may"),
    ({"kernels": {"decode": another_formula}}, "test_decoding_equals_an_independent_decoder"),
    ({"kernels": {"decode": unsigned_codes}}, "test_decoding_equals_an_independent_decoder"),
    ({"kernels": {"affine": biased_affine}}, "test_the_affine_form_is_lossless"),
    ({"kernels": {"affine": narrow_affine}}, "test_the_affine_form_is_lossless"),
    ({"base": AcceptsAnything}, "test_what_is_no_number_is_refused"),
    ({"base": PadsRows}, "test_a_bad_width_is_refused"),
    ({"source": ""}, "test_the_record_is_complete"),
    ({"encoder": "hf2q_fake_kernels:gone"}, "test_the_record_is_complete"),
    ({"name": "q8_0"}, "test_the_record_is_complete"),
    ({"name": "Q8_MINE"}, "test_sizes_are_those_ggml_has_for_the_type"),
    ({"type_size": 35}, "test_sizes_are_those_ggml_has_for_the_type"),
    ({"ggml_type": 9}, "test_sizes_are_those_ggml_has_for_the_type"),
]


@pytest.mark.parametrize(("fault", "check"), FAULTS)
def test_a_fault_is_caught(monkeypatch, tmp_path, fault, check):
    assert failures(suite(monkeypatch, **fault), tmp_path, only=[check])


@pytest.mark.parametrize("shape", [(3, 64), (1, 1 << 20)])
def test_core_itself_refuses_weights_whose_scale_overflows(monkeypatch, shape):
    """Whatever the kernel does, and when a single long row is cut for threads."""
    codec = suite(monkeypatch, kernels={"encode": overflows_silently}).codec()
    x = np.ones(shape, np.float32)
    x[-1, 40] = -1e30
    row = 100 + shape[0] - 1
    with pytest.raises(EncodeError, match=rf"'a.weight' holds -1e\+30 at row {row}, column 40; Q8_0 cannot hold that"):
        codec.encode(x, name="a.weight", first_row=100)
    x[-1, 40] = 70000.0
    assert codec.decode(codec.encode(x))[-1, 40] == pytest.approx(70000, rel=1e-2)


def golden(tmp_path, **changes):
    x = np.random.default_rng(1).standard_normal((2, 64)).astype(np.float32)
    out = np.empty((2, 68), np.uint8)
    encode(x, out, None)
    arrays = {"x_some": x, "bytes_some": out, **changes}
    np.savez(tmp_path / "golden.npz", **arrays)
    return tmp_path / "golden.npz"


def test_golden_blocks_are_compared(monkeypatch, tmp_path):
    check = suite(monkeypatch, attributes={"golden": golden(tmp_path)})
    check().test_golden_blocks()
    other = suite(monkeypatch, attributes={"golden": golden(tmp_path, bytes_some=np.zeros((2, 68), np.uint8))})
    with pytest.raises(AssertionError, match="some: other bytes than recorded"):
        other().test_golden_blocks()


def test_golden_blocks_without_any_array_do_not_pass(monkeypatch, tmp_path):
    np.savez(tmp_path / "empty.npz", other=np.zeros(3))
    with pytest.raises(AssertionError, match="no array named x_"):
        suite(monkeypatch, attributes={"golden": tmp_path / "empty.npz"})().test_golden_blocks()


def test_missing_data_is_not_checked_rather_than_passed(monkeypatch):
    unknown = suite(monkeypatch, ggml_type=199)()
    for check in (unknown.test_golden_blocks, unknown.test_decoding_equals_an_independent_decoder):
        with pytest.raises(pytest.skip.Exception, match="not checked"):
            check()


def test_an_own_decoder_is_compared_with(monkeypatch):
    module = types.ModuleType("hf2q_fake_oracle")
    module.decode = lambda data: np.zeros((len(data), data.shape[1] // SIZE * BLOCK), np.float32)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    wrong = suite(monkeypatch, ggml_type=199, attributes={"decoder": "hf2q_fake_oracle:decode"})
    with pytest.raises(AssertionError, match="row 0, column 0 is"):
        wrong().test_decoding_equals_an_independent_decoder()
