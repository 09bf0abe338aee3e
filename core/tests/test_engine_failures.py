"""What goes wrong ends whom it concerns, once: bad rows, bad constraints, stuck calls, broken devices."""

import threading
import time

import numpy as np
import pytest

from hf2q.errors import Hf2qError, OverloadedError, RequestError
from hf2q.serve.engine import Engine
from hf2q.serve.events import GenerateRequest
from hf2q.serve.masks import Later, MaskPool
from hf2q.serve.sampling import Sampler, SamplingParams
from hf2q.testing.scripted import scripted_model, scripted_tokenizer

SECONDS = 20
END = scripted_tokenizer().id_of("<|im_end|>")


def counting(**more):
    return scripted_model(script=lambda ids: (ids[-1] + 1) % 200, **more)


def request(*ids, **more):
    return GenerateRequest(prompt_ids=ids or (1, 2, 3), **{"max_tokens": 6, **more})


def tokens(events):
    return [event.token for event in events if event.token is not None]


def outcome(handle):
    """All events and errors of two rounds of reading."""
    events, errors = [], []
    for _ in range(2):
        try:
            for event in handle:
                events.append(event)
        except Hf2qError as error:
            errors.append(error)
    return events, errors


def all_at_once(engine, requests):
    with engine._condition:
        return [engine.submit(one) for one in requests]


class BadRow:
    """A graph whose logits are NaN where the sequence holds the token 13."""

    def __init__(self, graph):
        self.graph = graph

    def __getattr__(self, name):
        return getattr(self.graph, name)

    def hidden(self, ids, caches):
        self.bad = [13 in cache.parts[0].ids for cache in caches]
        found = self.graph.hidden(ids, caches)
        self.bad = np.array([13 in cache.parts[0].ids for cache in caches])
        return found

    def head(self, hidden):
        logits = self.graph.head(hidden)
        logits[self.bad] = np.nan
        return logits


def test_a_row_of_a_batch_that_is_no_numbers_ends_alone():
    made = counting()
    made._graph = BadRow(made._graph)
    with Engine(made, warm_up=False) as engine:
        good, bad, other = map(outcome, all_at_once(engine, [request(1), request(10), request(50)]))
        assert tokens(bad[0]) == [11, 12, 13]
        assert ["logits hold nan" in error.message for error in bad[1]] == [True]
        assert (tokens(good[0]), tokens(other[0])) == ([*range(2, 8)], [*range(51, 57)])
        assert good[1] == other[1] == []
        assert engine.ready
    assert max(rows for rows, _ in made._graph.calls) == 3


def test_a_batch_that_is_refused_ends_the_one_at_fault_alone():
    """Nobody knows who it was, and all states are lost: each computes its own again."""

    def script(ids):
        if 13 in ids:
            raise RequestError("bad luck")
        return (ids[-1] + 1) % 200

    made = scripted_model(script=script)
    with Engine(made, warm_up=False) as engine:
        good, bad, other = map(outcome, all_at_once(engine, [request(1), request(10), request(50)]))
        assert tokens(bad[0]) == [11, 12, 13]
        assert [error.message for error in bad[1]] == ["bad luck"]
        assert (tokens(good[0]), tokens(other[0])) == ([*range(2, 8)], [*range(51, 57)])
        assert good[1] == other[1] == []
        assert engine.ready


def test_a_broken_device_ends_all_in_every_state_once():
    gate = threading.Event()
    calls = []

    def before(rows, count):
        calls.append(rows)
        assert gate.wait(SECONDS)
        if len(calls) == 6:
            raise RuntimeError("device lost")

    class Seen:
        def __init__(self):
            self.failed = []

        def on(self, event):
            if event.kind in ("failed", "finished", "cancelled"):
                self.failed.append((event.kind, event.request_id))

    seen = Seen()
    engine = Engine(counting(before=before), warm_up=False, slots=3, prefill_chunk=8, observer=seen)
    handles = all_at_once(engine, [request(1, max_tokens=900, id="0"), request(*[2] * 90, id="1"), request(3, id="2")])
    handles += [engine.submit(request(4, id="3"))]
    gate.set()
    for handle in handles:
        _, errors = outcome(handle)
        assert [error.message for error in errors] == ["the engine failed: RuntimeError: device lost"]
    assert engine.close(timeout=SECONDS)
    assert sorted(seen.failed) == [("failed", str(n)) for n in range(4)]
    stats = engine.stats()
    assert (stats.active, stats.queued, stats.failed) == (0, 0, 4)
    assert stats.failure == "the engine failed: RuntimeError: device lost"
    with pytest.raises(OverloadedError, match="has failed"):
        engine.submit(request())


# ----------------------------------------------------------------------------------------------------------- watchdog


def test_a_call_that_never_returns_fails_all_who_wait():
    stuck, back = threading.Event(), threading.Event()

    def before(rows, count):
        if count == 3:
            stuck.set()
            back.wait(SECONDS)

    made = counting(before=before)
    engine = Engine(made, warm_up=False, deadline=0.5, slots=2)
    first = engine.submit(request(9, max_tokens=4000))
    second = engine.submit(request(1, 2, 3))
    assert stuck.wait(SECONDS)
    third = [engine.submit(request(1)) for _ in range(2)]
    for handle in (first, second, *third):
        _, (error,) = outcome(handle)
        assert "the engine is stuck: a piece of a prompt of 3 tokens has taken " in error.message
        assert error.hint == "restart it"
    assert not engine.ready
    with pytest.raises(OverloadedError, match="has failed"):
        engine.submit(request())
    started = time.monotonic()
    assert not engine.close()  # does not wait for it
    assert time.monotonic() - started < SECONDS / 2
    calls = len(made._graph.calls)
    back.set()
    engine._worker.join(SECONDS)
    assert engine.close()
    assert len(made._graph.calls) == calls  # when it comes back nothing more is done
    assert "stuck" in engine.failure.message


def test_work_that_is_slow_but_comes_back_in_time_is_well():
    with Engine(counting(before=lambda rows, count: time.sleep(0.03)), warm_up=False, deadline=1) as engine:
        assert len(tokens(engine.submit(request(max_tokens=10)))) == 10
        assert engine.ready


def test_a_stuck_warm_up_is_a_failure():
    back = threading.Event()
    engine = Engine(counting(before=lambda rows, count: back.wait(SECONDS)), deadline=0.05)
    assert not engine.wait_ready(SECONDS)
    assert "stuck: the warm-up" in engine.failure.message
    back.set()
    engine._worker.join(SECONDS)


# --------------------------------------------------------------------------------------------------------- constraints


class Only:
    """Allows at each place the given tokens; complete after the last."""

    def __init__(self, *places, n_vocab=None):
        self.places = [set(place) if place is not None else None for place in places]
        self.words = -(-(n_vocab or counting().n_vocab) // 32)
        self.said = []

    def allowed(self):
        place = self.places[len(self.said)]
        if place is None:
            return None
        bits = np.zeros(self.words, np.uint32)
        for token in place:
            bits[token // 32] |= np.uint32(1) << np.uint32(token % 32)
        return bits

    def accept(self, token):
        place = self.places[len(self.said)]
        assert place is None or token in place
        self.said.append(token)

    @property
    def complete(self):
        return len(self.said) == len(self.places)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_constraint_chooses_and_ends(temperature):
    only = Only({9, 70}, None, {31, 32, 64}, {END})
    sampling = SamplingParams(temperature=temperature, seed=1, logit_bias={70: 3.0, 9: -3.0})
    with Engine(counting(), warm_up=False) as engine:
        events = list(engine.submit(request(8, constraint=only, sampling=sampling, max_tokens=50, logprobs=1)))
    assert only.said == tokens(events)
    assert only.said[0] in ({9} if temperature == 0 else {9, 70})  # the model's own by far, whatever the bias
    assert only.said[1] == only.said[0] + 1
    assert only.said[3] == END
    assert events[-1].finish_reason == "stop"
    # what the model thought of it, not what was allowed
    assert events[0].logprobs.top == ((9, pytest.approx(0)),)
    assert events[2].logprobs.logprob == pytest.approx(-50, abs=0.1)


def test_complete_ends_without_an_end_token_and_with_its_text():
    with Engine(counting(), warm_up=False) as engine:
        events = list(engine.submit(request(64, constraint=Only({65}, {90}))))
        assert ("".join(event.text for event in events), events[-1].finish_reason) == ("AZ", "stop")
        events = list(engine.submit(request(64, constraint=Only())))  # complete from the start
        assert [(event.token, event.finish_reason) for event in events] == [(None, "stop")]
        assert events[-1].usage.completion_tokens == 0


class Broken(Only):
    def __init__(self, method, error):
        super().__init__(*[None] * 50)
        self.method, self.error = method, error

    def failing(self, method):
        if method == self.method and (len(self.said) >= 2 or method == "accept"):
            raise self.error

    def allowed(self):
        self.failing("allowed")
        return super().allowed()

    def accept(self, token):
        self.failing("accept")
        super().accept(token)

    @property
    def complete(self):
        self.failing("complete")
        return super().complete


@pytest.mark.parametrize("method", ["allowed", "accept", "complete"])
@pytest.mark.parametrize("error", [KeyError("oops"), Hf2qError("no such rule")])
def test_a_constraint_that_fails_ends_its_request_alone(method, error):
    with Engine(counting(), warm_up=False) as engine:
        bad, good = all_at_once(engine, [request(1, constraint=Broken(method, error)), request(50)])
        _, errors = outcome(bad)
        told = (
            "no such rule" if isinstance(error, Hf2qError) else f"the constraint failed in {method}: KeyError: 'oops'"
        )
        assert [error.message for error in errors] == [told]
        assert tokens(good) == [*range(51, 57)]
        assert engine.ready


def test_nothing_allowed_is_said_so():
    with Engine(counting(), warm_up=False) as engine:
        _, (error,) = outcome(engine.submit(request(1, constraint=Only({5}, set(), {5}))))
        assert "no token is allowed to come next" in error.message
        _, (error,) = outcome(engine.submit(request(1, constraint=Only({5}, n_vocab=9999))))
        assert "the constraint's mask is uint32 (313,), expected uint32 (9,)" in error.message


class Slow(Only):
    """Waits for `go` before it says what is allowed at the place `at`."""

    def __init__(self, *places, at=0):
        super().__init__(*places)
        self.go, self.at = threading.Event(), at

    def allowed(self):
        if len(self.said) == self.at:
            assert self.go.wait(SECONDS)
        return super().allowed()


@pytest.mark.parametrize("at", [0, 1])
def test_a_constraint_that_is_slow_holds_up_its_own_request_alone(at):
    slow = Slow({5}, {6}, {7}, at=at)
    with Engine(counting(), warm_up=False, deadline=0.3) as engine:
        handle = engine.submit(request(1, constraint=slow))
        for _ in range(3):
            assert tokens(engine.submit(request(50))) == [*range(51, 57)]
        assert not handle.ended
        assert engine.stats().slots[0].phase == "decode"
        time.sleep(0.5)
        slow.go.set()
        assert tokens(handle) == [5, 6, 7]
        assert engine.ready


def test_a_constraint_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr("hf2q.serve.worker.MASK_DEADLINE", 0.05)
    with Engine(counting(), warm_up=False) as engine:
        stuck = [Slow({5}) for _ in range(5)]
        for one in stuck:
            _, (error,) = outcome(engine.submit(request(1, constraint=one)))
            assert error.message == "the constraint did not say within 0.05 s what may come next"
        cancelled = engine.submit(request(1, constraint=Slow({5})))
        cancelled.cancel()
        assert tokens(cancelled) == []
        assert tokens(engine.submit(request(8, constraint=Only({5}, {6})))) == [5, 6]
        assert engine.ready
    for one in stuck:
        one.go.set()


@pytest.mark.parametrize("method", ["allowed", "accept", "complete"])
def test_a_constraint_that_never_returns_where_nobody_can_go_on_is_a_stuck_engine(method):
    """Masks are worked out elsewhere, as a rule; the worker itself tells of tokens, and asks for the end."""
    back = threading.Event()

    class Stuck(Only):
        def holds(self, asked):
            if asked == method and threading.current_thread().name == "hf2q-engine":
                back.wait(3)
                back.set()

        def allowed(self):
            self.holds("allowed")
            return super().allowed()

        def accept(self, token):
            self.holds("accept")
            super().accept(token)

        @property
        def complete(self):
            self.holds("complete")
            return super().complete

    engine = Engine(counting(), warm_up=False, deadline=0.3)
    if method == "allowed":
        engine._masks.submit = Here
    stuck, other = all_at_once(engine, [request(1, constraint=Stuck(*[None] * 50)), request(50, max_tokens=4000)])
    for handle in (stuck, other):
        _, (error,) = outcome(handle)
        assert "the engine is stuck: the " in error.message
    assert not engine.ready
    back.set()
    engine._worker.join(SECONDS)
    assert engine.close()


class Here(Later):
    """Is worked out where the value is wanted."""

    def __init__(self, work):
        super().__init__(work)
        self.run()


def test_who_waits_for_a_mask_chooses_by_its_own_logits():
    """A backend may write those of the next step over them."""
    made = counting()
    kept = np.zeros(4 * made.n_vocab, np.float32)

    def same_place(rows):
        place = kept[: rows.size].reshape(rows.shape)
        place[...] = rows
        return place

    made._ops.to_numpy = same_place
    slow = Slow({2, *range(50, 60)}, {3, *range(50, 60)})
    with Engine(made, warm_up=False) as engine:
        handle = engine.submit(request(1, constraint=slow))
        assert tokens(engine.submit(request(50))) == [*range(51, 57)]
        slow.go.set()
        assert tokens(handle) == [2, 3]


def test_a_greedy_choice_without_a_copy_is_the_one_with_it():
    rng = np.random.default_rng(0)
    for _ in range(200):
        logits = rng.integers(0, 4, 40).astype(np.float32)  # many equals
        allowed = rng.random(40) < 0.3
        suppressed = set(rng.integers(0, 40, 3).tolist())
        allowed[7] = True
        suppressed.discard(7)
        plain = [n for n in range(40) if n not in suppressed]
        sampler = Sampler(SamplingParams(), (), 40, suppressed)
        assert sampler.sample(logits) == max(plain, key=lambda n: (logits[n], -n))
        kept = [n for n in plain if allowed[n]]
        assert sampler.sample(logits, allowed) == max(kept, key=lambda n: (logits[n], -n))


def test_a_graph_that_refuses_batches_is_asked_once():
    made = counting()
    hidden = made._graph.hidden

    def single(ids, caches):
        if len(caches) > 1:
            raise Hf2qError("one at a time")
        return hidden(ids, caches)

    made._graph.hidden = single
    with Engine(made, warm_up=False) as engine:
        found = [tokens(handle) for handle in all_at_once(engine, [request(n, max_tokens=20) for n in (1, 30, 60)])]
    assert found == [[*range(n + 1, n + 21)] for n in (1, 30, 60)]
    fed = sum(count for _, count in made._graph.calls)
    assert fed < 3 * 20 + 30  # what was lost was computed again once, not with each token


def test_a_step_that_comes_back_too_late_is_followed_by_nothing():
    stuck, back = threading.Event(), threading.Event()
    calls = []

    def before(rows, count):
        calls.append(count)
        if len(calls) == 4:  # a step, after which a piece of the prompt would have its turn
            stuck.set()
            back.wait(SECONDS)

    engine = Engine(counting(before=before), warm_up=False, deadline=0.5, prefill_chunk=4)
    handles = all_at_once(engine, [request(1, max_tokens=50), request(*[2] * 50)])
    assert stuck.wait(SECONDS)
    for handle in handles:
        outcome(handle)
    back.set()
    engine._worker.join(SECONDS)
    assert calls == [1, 1, 4, 1]


def test_giving_up_masks_at_any_moment_loses_no_thread():
    pool = MaskPool()
    rng = np.random.default_rng(0)
    for n in range(600):
        later = pool.submit(lambda: None)
        if n % 3:
            time.sleep(float(rng.random()) * 1e-4)
            pool.give_up(later)
        else:
            assert later.wait(SECONDS)
    assert pool.submit(lambda: 7).result() == 7
    pool.close()
