"""Weights that are repacked in the background: all there when something runs, bad numbers found, sources let go of."""

import mmap
from pathlib import Path

import numpy as np
import pytest

from hf2q.backends.cpu import loading as module
from hf2q.backends.cpu.linear import Linear
from hf2q.backends.cpu.loading import Loading
from hf2q.backends.cpu.matrix import Matrix
from hf2q.backends.cpu.ops import CpuOps
from hf2q.backends.cpu.team import Team
from hf2q.backends.weights import ArraySource, Weights
from hf2q.errors import LoadError
from hf2q.formats.finite import E8M0_SCALES, HALF_SCALES
from hf2q.formats.ggml_types import GGML_TYPES
from hf2q.plugins import Plugins

R = np.random.default_rng(3)
F16_SPECIAL = {"infinite": 0x7C00, "minus infinite": 0xFC00, "nan": 0x7E01}


@pytest.fixture(scope="module")
def codecs():
    return Plugins.load()


@pytest.fixture(params=[1, 2, 4])
def team(request):
    with Team(request.param) as team:
        yield team


def test_many_weights_at_once_are_all_there(codecs, team, monkeypatch):
    monkeypatch.setattr(module, "UNIT_BYTES", 1 << 12)
    codec = codecs.codec("F32")
    arrays = [R.standard_normal((rows, 64)).astype(np.float32) for rows in (1, 15, 16, 17, 300, 999)]
    for _ in range(5):
        matrices = [Matrix.load(team, codec, codec.encode(w), w.shape) for w in arrays]
        assert team.loading.busy
        x = np.eye(64, dtype=np.float32)
        for w, y in zip(arrays, Linear(team, exact=True).matmul(x, *matrices), strict=True):
            assert (y == w.T).all()
        assert not team.loading.busy


def load(team, codec, data, shape):
    Matrix.load(team, codec, data, shape)
    team.loading.finish()


def stored(qtype, values):
    """Floats as they lie in a file; codecs refuse what is not finite."""
    if qtype == "BF16":
        values = np.ascontiguousarray(values.view(np.uint16)[:, 1::2])
    elif qtype == "F16":
        values = values.astype(np.float16)
    return values.view(np.uint8)


def blocks_of(qtype, rows=40, row_bytes=None):
    size = GGML_TYPES[qtype].type_size
    data = R.integers(0, 128, (rows, row_bytes or 3 * size), dtype=np.uint8)  # no exponent of ones
    for at in HALF_SCALES.get(qtype, ()):
        data[:, at + 1 :: size] &= 0x3F
    return data


@pytest.mark.parametrize("qtype", ["Q4_0", "Q8_0", "Q4_K", "Q6_K", "TQ1_0", "MXFP4"])
@pytest.mark.parametrize("row", [0, 15, 16, 39])
def test_a_scale_that_is_not_finite_is_found(codecs, team, qtype, row):
    codec, size = codecs.codec(qtype), GGML_TYPES[qtype].type_size
    shape = 40, 3 * codec.block_size
    load(team, codec, blocks_of(qtype), shape)
    places = HALF_SCALES.get(qtype, ())
    for block in range(3):
        for at in places:
            for bits in F16_SPECIAL.values():
                data = blocks_of(qtype)
                data[row, block * size + at :][:2] = bits & 255, bits >> 8
                with pytest.raises(LoadError, match="infinite or NaN"):
                    load(team, codec, data, shape)
        if qtype in E8M0_SCALES:
            data = blocks_of(qtype)
            data[row, block * size + E8M0_SCALES[qtype]] = 255
            with pytest.raises(LoadError, match="infinite or NaN"):
                load(team, codec, data, shape)


@pytest.mark.parametrize("qtype", ["F16", "BF16", "F32"])
@pytest.mark.parametrize("columns", [1, 2, 31, 32, 47])
def test_a_number_that_is_not_finite_is_found(codecs, team, qtype, columns):
    codec = codecs.codec(qtype)
    values = R.standard_normal((20, columns)).astype(np.float32)
    for row, column in ((0, 0), (17, columns - 1), (19, columns // 2)):
        for value in (np.inf, -np.inf, np.nan):
            data = np.array(values)
            data[row, column] = value
            with pytest.raises(LoadError, match="infinite or NaN"):
                load(team, codec, stored(qtype, data), data.shape)
            data[row, column] = 1e4
            load(team, codec, stored(qtype, data), data.shape)


def test_the_error_names_tensor_row_and_place(codecs, monkeypatch):
    monkeypatch.setattr("hf2q.backends.cpu.matrix.PIECE", 1 << 12)
    values = R.standard_normal((200, 32)).astype(np.float32)
    values[150, 7] = np.nan
    ops = CpuOps(threads=2)
    weights = Weights(ArraySource({"good": values[:100], "blk.0.x": values}), codecs.codec, ops)
    weights.matrix("good")

    def all_of_it():
        weights.matrix("blk.0.x")
        weights.finish()

    with pytest.raises(LoadError, match=r"tensor 'blk.0.x' \(F32\) holds nan in row 150, column 7"):
        all_of_it()
    assert not ops.team.loading.busy
    good = weights.matrix("good")  # and it goes on
    assert np.allclose(ops.linear(np.eye(32, dtype=np.float32), good), values[:100].T, rtol=1e-5)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="asks Linux which pages are in memory")
def test_pages_of_a_mapped_file_are_let_go_of_and_those_of_an_array_are_not(codecs, tmp_path, team):
    codec, values = codecs.codec("F32"), R.standard_normal((4096, 256)).astype(np.float32)
    (tmp_path / "file").write_bytes(values.tobytes())
    with (tmp_path / "file").open("rb") as file:
        mapped = np.asarray(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))).reshape(4096, 1024)

    def resident():
        """KiB of the mapping in memory."""
        lines = Path("/proc/self/smaps").read_text().split(str(tmp_path / "file"), 1)[1].splitlines()
        return int(next(line for line in lines if line.startswith("Rss:")).split()[1])

    assert mapped.sum() > 0
    assert resident() == 4096
    matrix = Matrix.load(team, codec, mapped, values.shape, mapped=True)
    team.loading.finish()
    assert resident() < 64
    assert (Linear(team, exact=True).rows(np.arange(4096), matrix) == values).all()
    kept = values.copy()
    load(team, codec, kept.view(np.uint8), values.shape)
    assert (kept == values).all()


def test_a_team_may_close_while_weights_are_on_their_way(codecs):
    codec, values = codecs.codec("F32"), R.standard_normal((20000, 256)).astype(np.float32)
    for _ in range(20):
        with Team(3) as team:
            Matrix.load(team, codec, values.view(np.uint8), values.shape)
            assert team.loading.busy
        assert not team.loading.busy


def test_after_an_error_nothing_of_the_rest_is_read(codecs):
    read = Loading(2)
    fields = np.array([[4, 16]], np.int64)
    none = np.empty((0, 2), np.int64)
    source, target = np.ones((16, 64), np.uint8), np.zeros(1024, np.uint8)

    def bad():
        raise LoadError("on purpose")

    checks = np.array([[4, 0]], np.int64)
    damaged = np.full((16, 64), 255, np.uint8)

    def both():
        read.put(damaged, target, 64, fields, checks, bad)
        read.finish()

    with pytest.raises(LoadError, match="on purpose"):
        both()
    read.put(source, target, 64, fields, none, bad)
    read.finish()
    assert (target == 1).all()
    assert not read._threads
