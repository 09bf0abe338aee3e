"""Computing ahead on guesses changes nothing but the number of calls: for any guesses, any trimming, any choices."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf2q.backends.cache import Cache, KVCache, StateCache, advance
from hf2q.backends.reference import ReferenceOps
from hf2q.errors import RequestError, UsageError
from hf2q.serve.engine import Engine
from hf2q.serve.events import GenerateRequest
from hf2q.serve.generation import Generation
from hf2q.testing.scripted import History, scripted_model


class Guesser:
    """A draft head that sees the ids as states do, and guesses by a function of them."""

    def __init__(self, guess):
        self.guess = guess
        self.seen = []

    def new_cache(self):
        return Cache([History()])

    def hidden(self, states, ids, caches):
        (cache,) = caches
        assert states.shape[:2] == ids.shape
        part = cache.parts[0]
        known = []
        for token in ids[0].tolist():
            part.ids += (token,)
            known.append(part.ids)
        advance(caches, ids.shape[1])
        self.seen.append(part.ids)
        self.known = known
        return np.arange(len(known), dtype=np.float32).reshape(1, -1, 1)

    def head(self, hidden):
        logits = np.zeros((1, 1, 300), np.float32)
        logits[0, 0, self.guess(self.known[-1])] = 1
        return logits


def speaking(script, guess, *, trimmable=True, context_length=200):
    model = scripted_model(script=script, trimmable=trimmable, context_length=context_length)
    model.draft = Guesser(guess)
    return model


def events(model, prompt, **more):
    chunk = more.pop("chunk", 512)
    generation = Generation(model, GenerateRequest(prompt_ids=tuple(prompt), ignore_eos=True, **more), chunk=chunk)
    found = []
    while not generation.done:
        found += generation.step()
    return [(event.token, event.text, event.logprobs, event.finish_reason, event.usage) for event in found]


@settings(max_examples=60, deadline=None)
@given(
    trimmable=st.booleans(),
    prompt=st.lists(st.integers(0, 199), min_size=1, max_size=12),
    period=st.integers(1, 7),
    chunk=st.integers(1, 5),
    tokens=st.integers(1, 40),
)
def test_any_guesses_give_the_same_answer(trimmable, prompt, period, chunk, tokens):
    def script(ids):
        return (sum(ids) + len(ids)) % 200

    def guess(known):  # right, but for every so many positions; it does not know the first token
        whole = (prompt[0], *known)
        return (script(whole) + (len(whole) % period == 0)) % 200

    plain = scripted_model(script=script, context_length=200)
    wanted = events(plain, prompt, chunk=chunk, max_tokens=tokens, logprobs=2)
    model = speaking(script, guess, trimmable=trimmable)
    assert events(model, prompt, chunk=chunk, max_tokens=tokens, logprobs=2, speculative=True) == wanted
    # what the draft head is shown is the true sequence, with at most its own guesses behind
    whole = [*prompt, *(token for token, *_ in wanted if token is not None)]
    for seen in model.draft.seen:
        common = min(len(seen), len(whole) - 1)
        agree = next((i for i in range(common) if seen[i] != whole[i + 1]), common)
        assert len(seen) - agree <= 3


@pytest.mark.parametrize("trimmable", [True, False])
def test_right_guesses_save_calls_and_wrong_ones_cost_little(trimmable):
    def script(ids):
        return (ids[-1] + 1) % 200

    right = speaking(script, lambda known: script(known), trimmable=trimmable)
    events(right, [5, 6], max_tokens=41, speculative=True)
    assert right._graph.calls[0] == (1, 2)
    assert right._graph.calls[1:] == [(1, 4)] * 10  # each with three guesses, which give four tokens
    wrong = speaking(script, lambda known: 7, trimmable=trimmable)
    events(wrong, [50], max_tokens=41, speculative=True)
    assert len(wrong._graph.calls) == 41
    longest = max(tokens for _, tokens in wrong._graph.calls)
    assert longest == (4 if trimmable else 11), "what goes through a recurrent model again is bounded"


def test_guesses_and_what_came_of_them_are_counted():
    model = speaking(lambda ids: (ids[-1] + 1) % 200, lambda known: (known[-1] + 1 + (known[-1] % 4 == 2)) % 200)
    sequence = model.speculative()
    sequence.prefill([0])
    for token in range(1, 9):
        assert sequence.next_logits([token]).argmax() == token + 1
        assert sequence.position == token + 1
    assert (sequence.guessed, sequence.right) == (9, 5)


def test_several_tokens_may_be_fed_after_guesses():
    def script(ids):
        return sum(ids) % 200

    for trimmable in (True, False):
        sequence = speaking(script, lambda known: 1 + sum(known), trimmable=trimmable).speculative()
        assert sequence.next_logits([1]).argmax() == 1
        assert sequence.next_logits([1]).argmax() == 2
        assert sequence.next_logits([2, 3, 4]).argmax() == 11
        assert sequence.next_logits([11]).argmax() == 22
        assert sequence.next_logits([22]).argmax() == 44
        sequence.prefill([7])
        assert sequence.next_logits([8]).argmax() == 59
        assert sequence.position == 9


def test_nothing_is_guessed_beyond_the_context():
    model = speaking(lambda ids: (ids[-1] + 1) % 200, lambda known: (known[-1] + 1) % 200, context_length=8)
    assert len(events(model, [1, 2], speculative=True)) == 6 + 1
    assert sum(tokens for _, tokens in model._graph.calls) <= 8


def test_what_cannot_speculate_says_so():
    with pytest.raises(UsageError, match="loaded without its draft head"):
        scripted_model().generate([1], speculative=True)
    with pytest.raises(RequestError, match="not for images"):
        GenerateRequest(prompt_ids=(1,), images=(object(),), speculative=True)


def test_a_cache_comes_back_to_a_checkpoint():
    ops = ReferenceOps(threads=1)
    cache = Cache([KVCache(ops), KVCache(ops, window=2), StateCache(ops)])

    def feed(value, tokens):
        for part in cache.parts[:2]:
            part.append(*(np.full((tokens, 1, 2), value, np.float32),) * 2)
        cache.parts[2].states = (np.full(3, value, np.float32),)
        advance([cache], tokens)

    feed(1, 3)
    before = cache.save()
    kept = cache.checkpoint()
    assert kept.parts[0] is None, "keys and values are not copied"
    feed(2, 300)  # so many that the window drops what it had
    cache.roll_back(kept)
    after = cache.save()
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


# --------------------------------------------------------------------------------------------------------- in an engine


def script(ids):
    return (sum(ids) * 3 + len(ids)) % 199


def served(engine, *requests):
    """Tokens and cached tokens of each, asked for at once."""
    with engine._condition:
        handles = [engine.submit(request) for request in requests]
    found = []
    for handle in handles:
        taken = list(handle)
        found.append(([event.token for event in taken[:-1]], taken[-1].usage.cached_tokens))
    return found


@pytest.mark.parametrize("trimmable", [True, False])
def test_an_engine_speculates_alone_and_shares_what_it_computed(trimmable):
    def guess(known):
        return script((7, *known))

    prompt = tuple((n * 31) % 199 for n in range(40))
    asked = [GenerateRequest(prompt_ids=(7, *prompt), max_tokens=n, scope="a", ignore_eos=True) for n in (30, 20)]
    plain = scripted_model(script=script, trimmable=trimmable)
    with Engine(plain, warm_up=False, prefix_budget=0) as engine:
        (wanted,) = served(engine, asked[0])
    model = speaking(script, guess, trimmable=trimmable, context_length=4096)
    fast = msgspec.structs.replace(asked[0], speculative=True)
    with Engine(model, warm_up=False) as engine:
        assert served(engine, fast) == [wanted]
        assert len(model._graph.calls) < 20  # most guesses are right
        history = (7, *prompt, *wanted[0], 5)
        ((_, cached),) = served(engine, GenerateRequest(prompt_ids=history, max_tokens=2, scope="a"))
        assert cached == 40 + 30
    # others decode as well: it goes on without guesses, in their batches
    model = speaking(script, guess, trimmable=trimmable, context_length=4096)
    other = GenerateRequest(prompt_ids=(9, 9), max_tokens=40, ignore_eos=True)
    with Engine(model, warm_up=False) as engine:
        found = served(engine, fast, other)
    assert found[0] == wanted
    assert (2, 1) in model._graph.calls
