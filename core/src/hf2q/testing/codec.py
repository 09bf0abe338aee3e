"""`CodecContract`: what every codec must keep, and the checks that catch it when it does not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from hf2q.codec import PARALLEL_FROM, QuantCodec
from hf2q.errors import EncodeError, FormatError
from hf2q.testing.contract import Contract, normal, not_checked
from hf2q.types import resolve

if TYPE_CHECKING:
    from hf2q.types import Bytes, Float32


class CodecContract(Contract):
    """Subclass it, set `plugin` and `name`, and pytest runs the checks.

    name       the qtype (``Q4_K``)
    golden     an .npz with pairs ``x_NAME`` float32 (rows, columns) and ``bytes_NAME`` uint8 (rows, bytes), and where
               there is one ``importance_NAME``: blocks whose bytes are known from elsewhere. Old ones stay for ever
    decoder    ``"module:function"`` of an independent decoder, uint8 (rows, bytes) -> float32 (rows, columns);
               without it gguf-py decodes, where it knows the type
    max_error  bound on the relative root-mean-square error of standard normal weights; by default what uniform
               quantization with as many bits reaches
    """

    name: ClassVar[str] = ""
    golden: ClassVar[Path | str | None] = None
    decoder: ClassVar[str] = ""
    max_error: ClassVar[float | None] = None

    @classmethod
    def codec(cls) -> QuantCodec:
        """The codec under test."""
        return cls.plugins().codec(cls.name)

    @classmethod
    def samples(cls) -> dict[str, Float32]:
        """Rows of every kind that a checkpoint may hold, 3 blocks wide."""
        columns = 3 * cls.codec().block_size
        spread = normal(1, 7, columns) * np.exp(3 * normal(2, 7, columns))
        ramp = np.linspace(-1, 1, columns, dtype=np.float32)
        lonely = np.zeros(columns, np.float32)
        lonely[columns // 2] = -3.5
        made = {
            "normal": normal(3, 9, columns),
            "heavy tails": np.clip(spread, -6e4, 6e4).astype(np.float32),
            "tiny": normal(4, 3, columns) * np.float32(1e-4),
            "large": normal(5, 3, columns) * np.float32(1e3),
            "zero": np.zeros((2, columns), np.float32),
            "negative zero": np.full((1, columns), -0.0, np.float32),
            "constant": np.repeat(np.array([[0.7], [-0.7], [1e-3], [1.0]], np.float32), columns, 1),
            "positive": np.abs(normal(6, 3, columns)),
            "ramp": np.stack([ramp, ramp[::-1], np.abs(ramp)]),
            "one weight": lonely[None],
            "subnormal": normal(7, 2, columns) * np.float32(1e-40),
        }
        return {kind: cls.held(x) for kind, x in made.items()}

    @classmethod
    def held(cls, x: Float32) -> Float32:
        """`x`, or for a codec of whole numbers those next to it, spread a little."""
        return np.rint(x * np.float32(16)) if cls.codec().integers else x

    @classmethod
    def weights(cls, seed: int, *shape: int) -> Float32:
        """Standard normal weights, as far as the codec is for such."""
        return cls.held(normal(seed, *shape))

    @classmethod
    def importance(cls, columns: int) -> Float32 | None:
        """What checks encode with that are not about importance: none, or where it is needed the same everywhere."""
        return np.ones(columns, np.float32) if cls.codec().needs_importance else None

    @classmethod
    def encode(cls, x: Float32, *, threads: int | None = None, name: str = "", first_row: int = 0) -> Bytes:
        """Encode x (rows, columns) with `importance`."""
        weights = cls.importance(x.shape[1])
        return cls.codec().encode(x, weights, threads=threads, name=name, first_row=first_row)

    # ------------------------------------------------------------------------------------------------ the record

    def test_the_record_is_complete(self) -> None:
        """Kernels can be imported, the layout's source is cited, the name is ggml's."""
        codec = self.codec()
        assert callable(resolve(codec.encoder))
        assert callable(resolve(codec.decoder))
        assert codec.source, "QuantCodec.source must say where the layout is defined"
        assert codec.name == codec.name.upper(), "codecs have ggml's name, in capitals"
        assert codec.block_size >= 1
        assert codec.type_size >= 1

    def test_sizes_are_those_ggml_has_for_the_type(self) -> None:
        """A number that ggml knows means its name, its block and its bytes, to every reader."""
        from hf2q.formats.ggml_types import ggml_type

        codec = self.codec()
        try:
            known = ggml_type(codec.ggml_type)
        except FormatError:
            not_checked(f"ggml has no type with the number {codec.ggml_type}")
        found = (codec.name, codec.block_size, codec.type_size)
        assert found == (known.name, known.block_size, known.type_size)

    # ------------------------------------------------------------------------------------------------- the sizes

    def test_the_size_law(self) -> None:
        """Bytes follow from the shape alone."""
        codec = self.codec()
        for rows, blocks in [(0, 1), (1, 1), (2, 3), (5, 2)]:
            encoded = self.encode(self.weights(rows, rows, blocks * codec.block_size))
            assert encoded.dtype == np.uint8
            assert encoded.shape == (rows, blocks * codec.type_size)
            assert encoded.shape[1] == codec.row_bytes(blocks * codec.block_size)
            decoded = codec.decode(encoded)
            assert decoded.dtype == np.float32
            assert decoded.shape == (rows, blocks * codec.block_size)

    def test_every_byte_is_written_and_none_beyond(self) -> None:
        """The kernels get memory that holds anything, inside memory that is not theirs."""
        codec = self.codec()
        encoder, decoder = resolve(codec.encoder), resolve(codec.decoder)
        for kind, x in self.samples().items():
            encoded = []
            for fill in (0x00, 0xFF):
                memory = np.full((len(x) + 2, codec.row_bytes(x.shape[1])), fill, np.uint8)
                encoder(x, memory[1:-1], self.importance(x.shape[1]))
                assert (memory[0] == fill).all(), f"{kind}: the encoder writes before its output"
                assert (memory[-1] == fill).all(), f"{kind}: the encoder writes after its output"
                encoded.append(memory[1:-1].copy())
            assert np.array_equal(encoded[0], encoded[1]), f"{kind}: the encoder leaves bytes unwritten"
            decoded = []
            for value in (7.0, -7.0):
                rows = np.full((len(x) + 2, x.shape[1]), value, np.float32)
                decoder(encoded[0], rows[1:-1])
                assert (rows[0] == value).all(), f"{kind}: the decoder writes before its output"
                assert (rows[-1] == value).all(), f"{kind}: the decoder writes after its output"
                decoded.append(rows[1:-1].copy())
            assert same(decoded[0], decoded[1]), f"{kind}: the decoder leaves weights unwritten"

    def test_a_bad_width_is_refused(self) -> None:
        """A row that is no whole number of blocks is an error that names the block."""
        codec = self.codec()
        if codec.block_size > 1:
            for columns in (1, codec.block_size - 1, codec.block_size + 1):
                with pytest.raises(EncodeError, match=str(codec.block_size)):
                    self.encode(np.zeros((2, columns), np.float32))
        if codec.type_size > 1:
            with pytest.raises(FormatError, match=str(codec.type_size)):
                codec.decode(np.zeros((2, codec.type_size + 1), np.uint8))

    def test_what_is_no_number_is_refused(self) -> None:
        """NaN and infinity are errors that say where, never a silent zero."""
        codec = self.codec()
        for bad in (np.nan, np.inf, -np.inf):
            x = self.weights(8, 4, 2 * codec.block_size)
            x[2, codec.block_size] = bad
            with pytest.raises(EncodeError, match=rf"row 102, column {codec.block_size}"):
                self.encode(x, name="blk.0.attn_q.weight", first_row=100)

    def test_what_the_type_cannot_hold_is_refused_or_held(self) -> None:
        """Values near the end of float32 are encoded as such or refused; they do not become NaN or infinity."""
        codec = self.codec()
        x = self.weights(9, 2, 2 * codec.block_size) * np.float32(1e37)
        try:
            encoded = self.encode(x)
        except EncodeError:
            return
        assert np.isfinite(codec.decode(encoded)).all(), "huge weights are encoded as NaN or infinity, without an error"

    # ------------------------------------------------------------------------------------------------ the values

    def test_any_split_of_rows_gives_the_same_bytes(self) -> None:
        """Rows are encoded and decoded alone, whatever their neighbours and however many threads."""
        codec = self.codec()
        for kind, x in self.samples().items():
            whole = self.encode(x)
            for step in (1, 2, 5):
                parts = [self.encode(x[at : at + step]) for at in range(0, len(x), step)]
                assert np.array_equal(np.concatenate(parts), whole), f"{kind}: encoded {step} rows at a time"
                rows = [codec.decode(whole[at : at + step]) for at in range(0, len(x), step)]
                assert same(np.concatenate(rows), codec.decode(whole)), f"{kind}: decoded {step} rows at a time"
            assert np.array_equal(self.encode(x[::-1])[::-1], whole), f"{kind}: encoded in another order"

    def test_threads_do_not_change_bytes(self) -> None:
        """Large enough for threads: several rows, and one long row that is cut into blocks."""
        codec = self.codec()
        columns = 4 * codec.block_size
        rows = 2 * PARALLEL_FROM // columns + 3
        x = self.weights(10, rows, columns)
        whole = self.encode(x, threads=1)
        assert np.array_equal(self.encode(x, threads=3), whole)
        assert same(codec.decode(whole, threads=3), codec.decode(whole, threads=1))
        if not codec.needs_importance:  # with importance a row is not cut
            assert np.array_equal(self.encode(x.reshape(1, -1), threads=3), whole.reshape(1, -1))

    def test_inputs_are_left_alone(self) -> None:
        """Encoding and decoding change neither their input nor, the second time, their result."""
        codec = self.codec()
        x = self.weights(11, 5, 2 * codec.block_size)
        kept = x.copy()
        encoded = self.encode(x)
        assert np.array_equal(x, kept), "encoding changed the weights"
        bytes_kept = encoded.copy()
        codec.decode(encoded)
        assert np.array_equal(encoded, bytes_kept), "decoding changed the bytes"
        assert np.array_equal(self.encode(x), encoded), "encoding twice gives different bytes"

    def test_rows_that_need_no_rounding_are_exact(self) -> None:
        """Zeros stay zeros."""
        codec = self.codec()
        for kind in ("zero", "negative zero"):
            assert (codec.decode(self.encode(self.samples()[kind])) == 0).all(), f"{kind}: zeros are not kept"

    def test_the_error_is_that_of_as_many_bits(self) -> None:
        """On normal, scaled and constant rows the relative error stays below the bound."""
        codec = self.codec()
        bits = 8 * codec.type_size / codec.block_size
        bound = self.max_error or max(1.5 * 2 ** (1 - bits), 2**-8 if bits >= 16 else 0)
        samples = self.samples()
        wide = self.weights(12, 64, 4 * codec.block_size)
        for kind, x in {"wide": wide, **{k: samples[k] for k in ("normal", "large", "positive", "constant")}}.items():
            off = codec.decode(self.encode(x)).astype(np.float64) - x
            error = float(np.sqrt((off**2).sum() / (x.astype(np.float64) ** 2).sum()))
            assert error <= bound, f"{kind}: relative error {error:.5f}, expected at most {bound:.5f}"

    def test_decoding_equals_an_independent_decoder(self) -> None:
        """Bit for bit, on encoded rows and on arbitrary bytes."""
        codec = self.codec()
        decode = self.independent_decoder()
        samples = {kind: self.encode(x) for kind, x in self.samples().items()}
        random = np.random.RandomState(13).randint(0, 256, (64, 2 * codec.type_size))
        samples["arbitrary bytes"] = random.astype(np.uint8)
        for kind, data in samples.items():
            with np.errstate(all="ignore"):  # arbitrary bytes hold infinite scales
                expected = np.asarray(decode(data))
            found = codec.decode(data)
            assert expected.shape == found.shape
            assert same(found, expected), f"{kind}: {first_difference(found, expected)}"

    @classmethod
    def independent_decoder(cls) -> Any:
        """The function that decoding is compared with; ends the test when there is none."""
        if cls.decoder:
            return resolve(cls.decoder)
        import gguf

        codec = cls.codec()
        try:
            number = gguf.GGMLQuantizationType(codec.ggml_type)
            gguf.dequantize(np.zeros((1, codec.type_size), np.uint8), number)
        except (ValueError, NotImplementedError):
            not_checked(f"gguf-py cannot decode type {codec.ggml_type}; set `decoder`")
        return lambda data: gguf.dequantize(data, number)

    def test_golden_blocks(self) -> None:
        """Bytes recorded from elsewhere come out again, and decode."""
        if self.golden is None:
            not_checked("no golden blocks; set `golden`")
        codec = self.codec()
        with np.load(self.golden) as recorded:
            arrays = dict(recorded)
        names = [key.removeprefix("x_") for key in arrays if key.startswith("x_")]
        assert names, f"{self.golden} holds no array named x_…"
        for name in names:
            found = codec.encode(arrays[f"x_{name}"], arrays.get(f"importance_{name}"))
            assert np.array_equal(found, arrays[f"bytes_{name}"]), f"{name}: other bytes than recorded"

    def test_importance_acts_where_it_may(self) -> None:
        """The importance of some columns changes the bytes of their own blocks at most; a codec may refuse it."""
        codec = self.codec()
        columns = 3 * codec.block_size
        x = self.weights(14, 6, columns)
        even = np.ones(columns, np.float32)
        try:
            before = codec.encode(x, even)
        except EncodeError:
            with pytest.raises(EncodeError, match="importance"):  # a refusal says what it refuses
                codec.encode(x, even)
            return
        changed = even.copy()
        changed[codec.block_size : 2 * codec.block_size] = np.abs(normal(15, codec.block_size)) + np.float32(0.01)
        after = codec.encode(x, changed)
        size = codec.type_size
        assert np.array_equal(after[:, :size], before[:, :size]), "importance changes bytes of an earlier block"
        assert np.array_equal(after[:, 2 * size :], before[:, 2 * size :]), "importance changes bytes of a later block"
        for start in range(len(x)):
            assert np.array_equal(codec.encode(x[start : start + 1], changed)[0], after[start]), "rows are not alone"
        assert np.isfinite(codec.decode(codec.encode(x, np.zeros(columns, np.float32)))).all()

    def test_importance_that_is_needed_is_asked_for(self) -> None:
        """A codec that needs importance says so."""
        codec = self.codec()
        if codec.needs_importance:
            with pytest.raises(EncodeError, match="importance"):
                codec.encode(self.weights(16, 1, codec.block_size))

    def test_the_affine_form_is_lossless(self) -> None:
        """scale * code + bias in groups of 32, where the codec offers it, is what decoding gives."""
        codec = self.codec()
        if not codec.affine:
            return
        for kind, x in self.samples().items():
            data = self.encode(np.tile(x, (1, 32 // codec.block_size or 1)))
            codes, scales, biases, bits = resolve(codec.affine)(data)
            assert codes.dtype == np.uint8
            assert int(codes.max(initial=0)) < 1 << bits, f"{kind}: codes do not fit {bits} bits"
            groups = codes.reshape(len(data), -1, 32).astype(np.float32)
            values = (scales[..., None] * groups + biases[..., None]).reshape(len(data), -1)
            assert np.array_equal(values, codec.decode(data)), f"{kind}: the affine form has other values"


def same(found: Float32, expected: Float32) -> bool:
    """Equal bit for bit, except that any NaN equals any NaN."""
    nan = np.isnan(found)
    return bool(
        np.array_equal(nan, np.isnan(expected))
        and np.array_equal(found[~nan].view(np.uint32), np.ascontiguousarray(expected[~nan]).view(np.uint32))
    )


def first_difference(found: Float32, expected: Float32) -> str:
    """Where two arrays differ first, for a message."""
    with np.errstate(invalid="ignore"):
        where = np.argwhere(~((found == expected) | (np.isnan(found) & np.isnan(expected))))
    if not len(where):
        return "zeros of different signs"
    row, column = where[0]
    return f"row {row}, column {column} is {found[row, column]!r}, expected {expected[row, column]!r}"
