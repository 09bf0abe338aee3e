"""Log probabilities with the tokens, from generations and from the engine: the model's own, whatever the sampling."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf2q.errors import RequestError
from hf2q.serve.engine import Engine
from hf2q.serve.events import GenerateRequest
from hf2q.serve.sampling import SamplingParams, likeliest, log_probabilities
from hf2q.testing.scripted import MARGIN, scripted_model


def counting():
    return scripted_model(script=lambda ids: (ids[-1] + 1) % 200)


def test_each_token_comes_with_its_own_and_the_likeliest():
    model = counting()
    *events, last = model.generate([5], max_tokens=3, logprobs=2)
    others = math.log(math.exp(MARGIN) + model.n_vocab - 1)
    assert [event.token for event in events] == [6, 7, 8]
    for event in events:
        assert event.logprobs.logprob == pytest.approx(MARGIN - others, abs=1e-12)
        assert event.logprobs.top == (
            (event.token, event.logprobs.logprob),
            (0, pytest.approx(-others)),
        )
    assert last.logprobs is None


def test_sampling_does_not_change_them():
    model = counting()
    sampling = SamplingParams(logit_bias={9: 100.0}, temperature=0.5, seed=1, top_k=1)
    event = next(model.generate([5], logprobs=1, sampling=sampling))
    assert event.token == 9
    assert event.logprobs.logprob == pytest.approx(-MARGIN, abs=1e-3)
    assert event.logprobs.top[0][0] == 6


def test_none_unless_asked_for_and_none_of_the_likeliest_for_0():
    model = counting()
    assert all(event.logprobs is None for event in model.generate([5], max_tokens=2))
    first = next(model.generate([5], max_tokens=2, logprobs=0))
    assert first.logprobs.top == ()
    assert first.logprobs.logprob < 0 or first.logprobs.logprob == 0


def test_the_token_that_ends_an_answer_has_one_too():
    model = scripted_model("")
    first, last = model.generate("<|im_start|>assistant\n", logprobs=1)
    assert first.logprobs.top[0][0] == first.token
    assert last.finish_reason == "stop"


def test_the_engine_hands_them_on():
    with Engine(counting()) as engine:
        events = list(engine.submit(GenerateRequest(prompt_ids=(5,), max_tokens=2, logprobs=3)))
    assert [len(event.logprobs.top) for event in events[:-1]] == [3, 3]


@pytest.mark.parametrize("wrong", [-1, 21, 1.5, True, "2"])
def test_wrong_numbers_are_refused(wrong):
    with pytest.raises(RequestError, match=r"logprobs is .* expected a whole number from 0 to 20") as caught:
        counting().generate([5], logprobs=wrong)
    assert caught.value.param == "logprobs"


@given(st.lists(st.floats(-1000, 1000, width=32), min_size=1, max_size=30), st.integers(0, 40))
def test_they_are_logarithms_of_probabilities(values, k):
    logits = np.array(values, np.float32)
    found = log_probabilities(logits)
    assert found.dtype == np.float64
    assert abs(math.fsum(np.exp(found)) - 1) < 1e-9
    assert np.allclose(np.diff(found), np.diff(logits.astype(np.float64)), atol=1e-9)
    assert likeliest(logits, k) == sorted(range(len(values)), key=lambda i: (-logits[i], i))[:k]
