"""Each transform of the catalog, undone again."""

import numpy as np
import pytest

from hf2q import rows
from hf2q.errors import TensorMismatchError
from hf2q.types import TensorRule, TensorSpec
from hf2q_arch_deepseek4.mix import auto_type
from hf2q_arch_deepseek4.transforms import down_experts, gate_experts, routing_table, up_experts


class Sizes:
    symbols = {"n_expert": 3}  # noqa: RUF012 (read only)


def spec(*shape):
    return TensorSpec(name="t", shape=shape, inputs=(), rule=TensorRule(name="t", hf=(), shape=()))


def whole(found):
    return found.read(0, rows.n_rows(found)).reshape(found.shape)


def random(seed, *shape):
    return np.random.RandomState(seed).standard_normal(shape).astype(np.float32)


def test_single_experts_can_be_taken_from_the_stack():
    parts = [random(e, 4, 6) for e in range(3)]
    for transform in (gate_experts, down_experts, up_experts):
        stack = whole(transform([rows.from_array(part) for part in parts], spec(3, 4, 6), Sizes()))
        assert all(np.array_equal(own, part) for own, part in zip(stack, parts, strict=True))


def test_packed_experts_can_be_joined_again():
    packed = random(5, 3, 8, 6)
    gate, up = (whole(f([rows.from_array(packed)], spec(3, 4, 6), Sizes())) for f in (gate_experts, up_experts))
    assert np.array_equal(np.concatenate([gate, up], axis=1), packed)
    down = random(6, 3, 6, 4)
    assert np.array_equal(whole(down_experts([rows.from_array(down)], spec(3, 6, 4), Sizes())), down)
    with pytest.raises(TensorMismatchError, match=r"shape \(3, 8, 6\), expected \(3, 10, 6\)"):
        gate_experts([rows.from_array(packed)], spec(3, 5, 6), Sizes())


def test_routing_tables_pass_unchanged():
    table = np.float32([[0, 2], [1, 1], [2, 0]])
    made = routing_table([rows.from_array(table)], spec(3, 2), Sizes())
    assert np.array_equal(whole(made), table)
    assert np.array_equal(made.read(1, 2), table[1:2])
    for wrong in (3, -1, np.nan):
        table[1, 1] = wrong
        made = routing_table([rows.from_array(table.copy())], spec(3, 2), Sizes())
        with pytest.raises(TensorMismatchError, match="token 1 is sent to expert"):
            made.read(1, 3)


def test_types_of_published_layouts():
    assert [auto_type(spec(4, 64), dtype) for dtype in ("F4_E2M1", "F8_E4M3", "BF16", "F32", "F16")] == [
        "MXFP4",
        "Q8_0",
        "BF16",
        "F32",
        "",
    ]
    assert auto_type(spec(4, 48), "F8_E4M3") == "F16"
