"""Layers with attention on the cpu backend: one chain of kernels does what the ops one by one do, bit for bit."""

import numpy as np
import pytest

pytest.importorskip("numba")

from cpu_toys import matrix, normal

from hf2q.backends import composed, rope
from hf2q.backends.cache import KVCache
from hf2q.backends.cpu.ops import CpuOps
from hf2q.backends.ops import AttentionWeights
from hf2q.backends.reference import ReferenceOps

REF = ReferenceOps(threads=1)
COLUMNS = 48


@pytest.fixture(scope="module", params=[1, 3])
def cpu(request):
    ops = CpuOps(threads=request.param)
    yield ops
    ops.team.close()


def weights_of(ops, *, heads=4, groups=2, size=32, gated=True):
    def weight(rows, columns, seed):
        return matrix(ops, 0.3 * normal(rows, columns, seed=seed))

    return AttentionWeights(
        norm=ops.asarray(normal(COLUMNS, seed=1)),
        q=weight(heads * size * (2 if gated else 1), COLUMNS, 2),
        k=weight(groups * size, COLUMNS, 3),
        v=weight(groups * size, COLUMNS, 4),
        q_norm=ops.asarray(normal(size, seed=5)),
        k_norm=ops.asarray(normal(size, seed=6)),
        out=weight(COLUMNS, heads * size, 7),
        heads=heads,
        kv_heads=groups,
        head_dim=size,
        gated=gated,
        scale=size**-0.5,
        eps=1e-6,
    )


def rotation(parts, tokens, turned):
    positions = np.array([[part.length + t for t in range(tokens)] for part in parts])
    return rope.table(positions, rope.frequencies(2 * turned, 1e4))


def fed(ops, weights, pieces, turned, layer):
    """What `layer` gives for pieces of 2 sequences, of which the second is 3 tokens ahead; and the caches."""
    parts = [KVCache(ops), KVCache(ops)]
    outs = [layer(normal(1, 3, COLUMNS, seed=99), weights, rotation(parts[1:], 3, turned), parts[1:])]
    for seed, tokens in enumerate(pieces):
        x = normal(2, tokens, COLUMNS, seed=seed)
        outs.append(layer(x, weights, rotation(parts, tokens, turned), parts))
    return outs, [part.save() for part in parts]


@pytest.mark.parametrize("sizes", [(4, 2, 32), (2, 2, 16), (6, 1, 64)])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("turned", [8, 3])
def test_a_chain_is_its_parts(cpu, sizes, gated, turned):
    """Also across a room that grows (of 256 tokens), and where there are too many tokens for a chain."""
    pieces = [1, 1, 5, 16, 1, 40, 200, 1, 64, 1, 2]
    names = dict(zip(("heads", "groups", "size"), sizes, strict=True))
    weights = weights_of(cpu, gated=gated, **names)

    def plain(*arguments):
        return composed.attention_layer(cpu, *arguments)

    outs, caches = fed(cpu, weights, pieces, turned, cpu.attention_layer)
    wanted, expected = fed(cpu, weights, pieces, turned, plain)
    for found, right in zip(outs, wanted, strict=True):
        assert np.array_equal(found, right)
    for found, right in zip(caches, expected, strict=True):
        assert found.keys() == right.keys()
        assert all(np.array_equal(found[name], right[name]) for name in found)
    reference, _ = fed(REF, weights_of(REF, gated=gated, **names), pieces, turned, REF.attention_layer)
    for found, right in zip(outs, reference, strict=True):
        np.testing.assert_allclose(found, right, rtol=2e-4, atol=2e-4)


def test_a_row_is_the_same_alone(cpu):
    weights = weights_of(cpu)
    together, apart = [KVCache(cpu) for _ in range(5)], [KVCache(cpu) for _ in range(5)]
    for t in range(7):
        x = normal(5, 1, COLUMNS, seed=t)
        out = cpu.attention_layer(x, weights, rotation(together, 1, 8), together)
        for row, part in enumerate(apart):
            alone = cpu.attention_layer(x[row : row + 1], weights, rotation([part], 1, 8), [part])
            assert np.array_equal(alone, out[row : row + 1])


def test_tokens_may_be_taken_back_and_restored(cpu):
    weights, part = weights_of(cpu), KVCache(cpu)

    def step(part, seed):
        return cpu.attention_layer(normal(1, 1, COLUMNS, seed=seed), weights, rotation([part], 1, 8), [part])

    outs = [step(part, seed) for seed in range(5)]
    part.trim(2)
    copy, restored = part.copy(), KVCache(cpu)
    restored.restore(part.save())
    for again in (part, copy, restored):
        assert [np.array_equal(step(again, seed), outs[seed]) for seed in (2, 3, 4)] == [True] * 3


def test_what_the_chain_has_no_room_for_goes_op_by_op(cpu):
    weights = weights_of(cpu, size=24)  # no whole vectors
    outs, _ = fed(cpu, weights, [1, 4], 4, cpu.attention_layer)
    wanted, _ = fed(REF, weights_of(REF, size=24), [1, 4], 4, REF.attention_layer)
    for found, right in zip(outs, wanted, strict=True):
        np.testing.assert_allclose(found, right, rtol=2e-4, atol=2e-4)
