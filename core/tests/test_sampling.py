"""Sampling: bounds, each filter alone, their order, and draws that depend on seed and step alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf2q.errors import Hf2qError, RequestError
from hf2q.serve.sampling import Sampler, SamplingParams, uniform

P = [0.5, 0.25, 0.15, 0.1]
LOGITS = np.log(np.array(P, np.float32))


def draws(logits=LOGITS, steps=400, **params):
    """How often each token comes."""
    counts = np.zeros(len(logits), int)
    for seed in range(steps):
        counts[Sampler(SamplingParams(seed=seed, **params), (), len(logits)).sample(np.asarray(logits))] += 1
    return counts


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 1.1),
        ("top_p", -0.1),
        ("typical_p", 1.5),
        ("typical_p", "x"),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1),
        ("frequency_penalty", 2.5),
        ("presence_penalty", -3),
        ("logit_bias", {5: 101}),
        # finite as a number, but no longer as float32
        ("repetition_penalty", 1e-50),
        ("repetition_penalty", 1e39),
        # wrong types: found here, not in the middle of an answer
        ("temperature", "hot"),
        ("temperature", None),
        ("temperature", True),
        ("top_k", 1.5),
        ("top_k", "5"),
        ("top_k", True),
        ("seed", 1.5),
        ("seed", "x"),
        ("seed", True),
        ("logit_bias", [5]),
        ("logit_bias", {"5": 1.0}),
        ("logit_bias", {5: "x"}),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(name, value):
    with pytest.raises(RequestError, match=name) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


def test_a_bias_outside_the_vocabulary_is_refused():
    with pytest.raises(RequestError, match="token 4; the vocabulary has 4") as caught:
        Sampler(SamplingParams(logit_bias={4: 1.0}), (), 4)
    assert caught.value.param == "logit_bias"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_an_error_and_not_a_token(bad):
    for params in (SamplingParams(), SamplingParams(temperature=1.0, seed=1)):
        with pytest.raises(Hf2qError, match="expected finite numbers"):
            Sampler(params, (), 3).sample(np.array([0.0, bad, 1.0], np.float32))
    with pytest.raises(Hf2qError, match="expected finite numbers"):
        Sampler(SamplingParams(), (), 2).sample(np.full(2, -np.inf, np.float32))


def test_greedy_is_the_default_and_takes_the_lowest_id_among_equals():
    assert SamplingParams().greedy
    assert Sampler(SamplingParams(), (), 4).sample(np.array([1.0, 3.0, 3.0, 2.0], np.float32)) == 1
    assert Sampler(SamplingParams(temperature=1e-6, seed=3), (), 2).sample(np.array([0.0, 1e-3], np.float32)) == 1


def test_forbidden_tokens_never_come():
    assert draws([0.0, -np.inf, 0.0], temperature=5.0)[1] == 0
    assert draws([-np.inf, 1.0, -np.inf], temperature=5.0, top_p=0.9, steps=20).tolist() == [0, 20, 0]


def test_draws_follow_the_probabilities():
    counts = draws(temperature=1.0, steps=4000)
    assert np.abs(counts / 4000 - P).max() < 0.03
    hot = draws(temperature=2.0, steps=4000)
    expected = np.sqrt(P) / np.sqrt(P).sum()
    assert np.abs(hot / 4000 - expected).max() < 0.03


def test_top_k_keeps_the_best():
    assert (draws(temperature=1.0, top_k=2) > 0).tolist() == [True, True, False, False]
    assert (draws(temperature=1.0, top_k=99) > 0).all()


def test_top_k_cuts_equals_at_the_lowest_ids():
    counts = draws([1.0, 2.0, 1.0, 1.0], temperature=3.0, top_k=2)
    assert (counts > 0).tolist() == [True, True, False, False]


@pytest.mark.parametrize(("p", "kept"), [(0.0, 1), (0.49, 1), (0.6, 2), (0.76, 3), (0.9001, 4)])
def test_top_p_keeps_the_fewest_that_reach_it(p, kept):
    assert (draws(temperature=1.0, top_p=p) > 0).tolist() == [True] * kept + [False] * (4 - kept)


@pytest.mark.parametrize(
    ("p", "kept"),
    # the mean information of P is 1.21 nats; those of its tokens are off by 0.51, 0.18, 0.69 and 1.10
    [(0.0, [1]), (0.2, [1]), (0.3, [0, 1]), (0.76, [0, 1, 2]), (0.91, [0, 1, 2, 3])],
)
def test_typical_p_keeps_what_is_nearest_to_the_mean_information(p, kept):
    assert np.flatnonzero(draws(temperature=1.0, typical_p=p)).tolist() == kept


def test_typical_p_goes_between_top_k_and_top_p():
    # of the two best, 2/3 and 1/3, the mean information is 0.64: the likelier is nearest
    assert (draws(temperature=1.0, top_k=2, typical_p=0.5) > 0).tolist() == [True, False, False, False]
    # of what is typical, {0, 1}, top_p takes the first, though the second is more typical
    assert (draws(temperature=1.0, typical_p=0.3, top_p=0.6) > 0).tolist() == [True, False, False, False]


@given(st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40), st.floats(0, 0.999), st.integers(0, 45))
def test_typical_p_agrees_with_its_definition(values, typical_p, top_k):
    logits = np.array(values, np.float32)
    sampler = Sampler(SamplingParams(temperature=1.0, typical_p=typical_p, top_k=top_k, seed=1), (), len(values))
    order = sorted(range(len(values)), key=lambda i: (-logits[i], i))[: top_k or None]
    p = np.exp(logits[order].astype(np.float64) - logits.max())
    p /= p.sum()
    off = np.abs(-np.log(p) + (p * np.log(p)).sum())
    total, kept = 0.0, set()
    for index in sorted(range(len(order)), key=lambda i: (off[i], i)):
        kept.add(order[index])
        total += p[index]
        if total > typical_p + 1e-9:
            break
    assert sampler.sample(logits) in kept


@pytest.mark.parametrize(("p", "kept"), [(1.0, 1), (0.51, 1), (0.49, 2), (0.29, 3), (0.1, 4)])
def test_min_p_is_relative_to_the_best(p, kept):
    assert (draws(temperature=1.0, min_p=p) > 0).tolist() == [True] * kept + [False] * (4 - kept)


def test_filters_judge_before_temperature():
    # at temperature 100 all four are nearly equally likely; the filters still see 0.5, 0.25, 0.15, 0.1
    assert (draws(temperature=100.0, top_p=0.6) > 0).tolist() == [True, True, False, False]
    assert (draws(temperature=100.0, min_p=0.29) > 0).tolist() == [True, True, True, False]


def test_top_k_goes_before_top_p():
    # of the two best, the first alone has 2/3; of all, it has 1/2
    assert (draws(temperature=1.0, top_k=2, top_p=0.6) > 0).tolist() == [True, False, False, False]


def test_repetition_penalty_counts_a_token_once_and_covers_the_prompt():
    sampler = Sampler(SamplingParams(repetition_penalty=2.0), [0, 0, 1], 4)
    assert sampler.sample(np.array([3.0, -1.0, 1.6, -5.0], np.float32)) == 2  # 1.5, -2, 1.6, -5
    assert sampler.sample(np.array([3.0, -1.0, 1.6, -5.0], np.float32)) == 0  # 1.5, -2, 0.8, -5


def test_frequency_and_presence_penalties_cover_the_answer_only():
    logits = np.array([2.0, 1.5, 0.4], np.float32)
    sampler = Sampler(SamplingParams(frequency_penalty=0.6), [0, 0, 0], 3)
    assert [sampler.sample(logits) for _ in range(5)] == [0, 1, 0, 1, 0]
    sampler = Sampler(SamplingParams(presence_penalty=0.8), [0], 3)
    assert [sampler.sample(logits) for _ in range(5)] == [0, 1, 0, 0, 0]


def test_bias_goes_before_everything():
    assert Sampler(SamplingParams(logit_bias={3: 5.0}), (), 4).sample(LOGITS) == 3
    assert draws(temperature=1.0, logit_bias={0: -100.0})[0] == 0
    logits = LOGITS.copy()
    Sampler(SamplingParams(logit_bias={3: 5.0}), (), 4).sample(logits)
    assert np.array_equal(logits, LOGITS)


def test_the_strongest_penalties_leave_numbers():
    logits = np.array([3e4, -3e4, 0.0], np.float32)
    for penalty in (0.01, 100.0):
        params = SamplingParams(repetition_penalty=penalty, temperature=1.0, seed=1)
        assert Sampler(params, [0, 1, 2], 3).sample(logits) in range(3)


# -------------------------------------------------------------------------------------------------------- the draws


def test_the_random_numbers_are_splitmix64():
    # the reference generator's first outputs for seed 1234567 (Vigna, splitmix64.c)
    wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [uniform(1234567, step) for step in range(3)] == [(w >> 11) * 2.0**-53 for w in wanted]


@given(st.integers(-(2**70), 2**70), st.integers(0, 10**6))
def test_random_numbers_are_in_the_half_open_unit_interval(seed, step):
    assert 0 <= uniform(seed, step) < 1


def test_a_seed_repeats_and_seeds_differ():
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((20, 50)).astype(np.float32)

    def tokens(seed):
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed, top_p=0.95), (), 50)
        return [sampler.sample(row) for row in logits]

    assert tokens(7) == tokens(7) == tokens(np.int64(7))
    assert tokens(7) != tokens(8)
    assert tokens(None) != tokens(None)


def test_a_draw_depends_on_its_step_and_not_on_what_came_before():
    a, b = (Sampler(SamplingParams(temperature=1.0, seed=5), (), 4) for _ in range(2))
    for _ in range(6):
        a.sample(LOGITS)
        b.sample(LOGITS[::-1].copy())
    assert a.sample(LOGITS) == b.sample(LOGITS)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40),
    st.integers(0, 45),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(0, 1000),
)
def test_filters_agree_with_their_definition(values, top_k, top_p, min_p, seed):
    """Sort everything, cut by the book: the draw falls on a token that survives, and has positive probability."""
    logits = np.array(values, np.float32)
    params = SamplingParams(temperature=0.7, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    token = Sampler(params, (), len(logits)).sample(logits)
    order = sorted(range(len(values)), key=lambda i: (-logits[i], i))[: top_k or None]
    p = np.exp(logits[order].astype(np.float64) - logits.max())
    p /= p.sum()
    before = np.concatenate([[0], np.cumsum(p)[:-1]])
    kept = [t for t, b in zip(order, before, strict=True) if b < top_p + 1e-9 or t == order[0]]
    floor = logits.max() + np.log(min_p) if min_p > 0 else -np.inf
    assert token in kept
    assert logits[token] >= floor - 1e-5


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 4}, {"logit_bias": {0: 100}}]
)
def test_suppressed_tokens_never_come_whatever_is_asked_for(params):
    chosen = set()
    for seed in range(50):
        chosen.add(Sampler(SamplingParams(seed=seed, **params), (), 4, {0, 2}).sample(LOGITS))
    assert chosen <= {1, 3}
    np.testing.assert_array_equal(LOGITS, np.log(np.array(P, np.float32)))


def test_nothing_left_to_choose_is_an_error():
    with pytest.raises(Hf2qError, match="expected finite numbers"):
        Sampler(SamplingParams(), (), 4, range(4)).sample(LOGITS)
