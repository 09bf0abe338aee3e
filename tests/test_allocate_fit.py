"""What a loss counts in each tensor, from divergences of groups of them."""

import pytest

from hf2q.quality.allocate.fit import BANDS, FLOOR, Trial, fitted, grouped


def trial(name, loss, weight=0.1, *, drafting=False, parameters=1000):
    return Trial(name=name, qtype="Q4_K", loss=loss, weight=weight, drafting=drafting, parameters=parameters)


def measured(groups, truth):
    return {name: sum(truth[one.name] * one.loss for one in group) for name, group in groups.items()}


def test_what_counts_in_each_block_of_each_kind_is_found():
    tensors = [trial("token_embd.weight", 0.02, 2.0)]
    truth = {"token_embd.weight": 1.5}
    for block in range(4):
        for kind, counts in (("ffn_up", 0.3), ("ffn_down", 0.02)):
            tensors.append(trial(f"blk.{block}.{kind}.weight", 0.01 * (block + 1)))
            truth[tensors[-1].name] = counts * ((block * 7) % 5 + 1)
    drafts = trial("blk.4.ffn_up.weight", 0.01, 0.01, drafting=True)
    groups = grouped([*tensors, drafts])
    assert sorted(groups) == sorted(truth)
    found = fitted([*tensors, drafts], groups, measured(groups, truth))
    for name, counts in truth.items():
        assert found[name] == pytest.approx(counts), name
    kind = [one for one in tensors if "ffn_up" in one.name]
    mean, plain = sum(truth[one.name] * one.loss for one in kind), sum(one.weight * one.loss for one in kind)
    assert found[drafts.name] == pytest.approx(drafts.weight * mean / plain)


def test_tensors_of_one_band_keep_their_proportion():
    tensors = [trial(f"blk.{block}.a.weight", 0.01, 0.1 * (block + 1)) for block in range(2 * BANDS)]
    groups = grouped(tensors)
    found = fitted(tensors, groups, {"blk.*.a.weight, blocks 2 to 3": 0.014})
    assert found["blk.2.a.weight"] == pytest.approx(0.6)
    assert found["blk.3.a.weight"] == pytest.approx(0.8)
    assert found["blk.4.a.weight"] == 0.5, "its group was not measured"


def test_noise_leaves_a_weight():
    tensors = [trial("blk.0.a.weight", 0.01), trial("blk.0.b.weight", 0.01), trial("blk.0.c.weight", 0.0)]
    found = fitted(tensors, grouped(tensors), {"blk.0.a.weight": -1e-9, "blk.0.b.weight": 0.004})
    assert found["blk.0.a.weight"] == pytest.approx(FLOOR * 0.1)
    assert found["blk.0.b.weight"] == pytest.approx(0.4)
    assert found["blk.0.c.weight"] == 0.1, "what loses nothing was not measured"


def test_many_blocks_share_bands_and_small_kinds_are_tried_at_once():
    large = [trial(f"blk.{block}.a.weight", 0.1) for block in range(20)]
    small = [trial(f"blk.{block}.b.weight", 0.1, parameters=1) for block in range(20)]
    groups = grouped([*large, *small])
    assert len(groups) == BANDS + 1
    assert next(iter(groups)) == "blk.*.a.weight, blocks 0 to 2"
    assert sorted(len(group) for group in groups.values()) == [2, 2, 2, 2, 3, 3, 3, 3, 20]
    assert groups["blk.*.b.weight"] == small


def test_what_nothing_reads_is_not_tried():
    tensors = [trial("blk.0.a.weight", 0.1), trial("blk.1.a.weight", 0.1, 0.0)]
    groups = grouped(tensors)
    assert list(groups) == ["blk.0.a.weight"]
    found = fitted(tensors, groups, {"blk.0.a.weight": 0.02})
    assert found == {"blk.0.a.weight": pytest.approx(0.2), "blk.1.a.weight": 0.0}
