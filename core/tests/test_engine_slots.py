"""Several requests at once: batches, turns, cancellation in every state, slow readers, what observers see."""

import asyncio
import gc
import random
import threading
import time

import pytest

from hf2q.errors import Hf2qError, UsageError
from hf2q.serve import handle as handles
from hf2q.serve.engine import Engine
from hf2q.serve.events import GenerateRequest
from hf2q.serve.generation import Generation
from hf2q.serve.job import Job
from hf2q.serve.observe import EngineStats
from hf2q.serve.sampling import SamplingParams
from hf2q.testing.scripted import scripted_model

SECONDS = 20


def script(ids):
    return (sum(ids) * 7 + len(ids)) % 199


def model(**more):
    return scripted_model(script=script, **more)


def request(*ids, **more):
    return GenerateRequest(prompt_ids=ids or (1, 2, 3), **{"max_tokens": 5, **more})


def tokens(events):
    return [event.token for event in events if event.token is not None]


class Gate:
    """Lets the graph make so many calls; `entered` tells that it waits."""

    def __init__(self):
        self.steps = threading.Semaphore(0)
        self.waiting = threading.Semaphore(0)

    def __call__(self, rows, count):
        self.waiting.release()
        assert self.steps.acquire(timeout=SECONDS)

    def step(self, count=1):
        """Let the call that waits go on, `count` times, until the next one waits."""
        for _ in range(count):
            self.steps.release()
            assert self.waiting.acquire(timeout=SECONDS)

    def open(self):
        self.steps.release(10**6)

    def entered(self):
        assert self.waiting.acquire(timeout=SECONDS)


def gated(**more):
    gate = Gate()
    made = model(before=gate, **more.pop("model", {}))
    return gate, made, Engine(made, warm_up=False, **more)


def all_at_once(engine, requests):
    with engine._condition:  # the worker looks when all are there
        return [engine.submit(one) for one in requests]


def test_rows_of_a_batch_give_what_each_gives_alone():
    made = model()
    asked = [
        request(
            *range(n, 3 * n + 1), max_tokens=3 + 4 * n, sampling=SamplingParams(temperature=n % 3, seed=n), logprobs=2
        )
        for n in range(9)
    ]
    alone = []
    with Engine(made, slots=1) as engine:
        for one in asked:
            alone.append([(event.token, event.text, event.logprobs) for event in engine.submit(one)])
    made._graph.calls.clear()
    with Engine(made, slots=4, warm_up=False) as engine:
        found = [
            [(event.token, event.text, event.logprobs) for event in handle] for handle in all_at_once(engine, asked)
        ]
        stats = engine.stats()
    assert found == alone
    assert max(rows for rows, _ in made._graph.calls) == 4
    assert stats.decode_rows / stats.decode_steps > 2
    assert stats.generated_tokens == sum(len(one) - 1 for one in alone)


def test_long_prompts_do_not_hold_up_those_who_decode():
    made = model()
    with Engine(made, slots=3, prefill_chunk=10, warm_up=False) as engine:
        found = all_at_once(engine, [request(1, 2, max_tokens=8), request(*[3] * 35), request(*[4] * 25)])
        for handle in found:
            list(handle)
    # a prompt of 2; then a step of the first before each piece of the others, which take turns: 10 10 10 10 10 5 5
    first = [
        (1, 2),
        (1, 1),
        (1, 10),
        (1, 1),
        (1, 10),
        (1, 1),
        (1, 10),
        (1, 1),
        (1, 10),
        (1, 1),
        (1, 10),
        (1, 1),
        (1, 5),
    ]
    assert made._graph.calls[:13] == first
    assert made._graph.calls[13:15] == [(2, 1), (1, 5)]


def test_cancelled_in_every_state_within_a_step():
    gate, made, engine = gated(slots=3, prefill_chunk=10)
    decoding = engine.submit(request(1, max_tokens=1000, scope="a"))
    gate.entered()
    filling = engine.submit(request(*[3] * 1000, scope="a"))
    other = engine.submit(request(*[4] * 1000))
    queued = engine.submit(request(5))
    gate.step(4)
    assert [slot.phase for slot in engine.stats().slots] == ["decode", "prefill", "prefill"]
    assert engine.stats().queued == 1
    for handle in (queued, filling, decoding):
        handle.cancel()
    calls = len(made._graph.calls)
    gate.step()
    assert [list(handle)[-1].finish_reason for handle in (queued, filling, decoding)] == ["cancelled"] * 3
    assert len(made._graph.calls) <= calls + 2  # the call that was running, and one that waits
    stats = engine.stats()
    assert [slot.phase for slot in stats.slots] == ["idle", "idle", "prefill"]
    assert (stats.queued, stats.cancelled) == (0, 3)
    again = engine.submit(request(7, max_tokens=1))
    gate.open()
    assert tokens(again) == [script((7,))]
    other.cancel()
    assert engine.close(timeout=SECONDS)
    assert engine.stats().active == 0


def test_nothing_is_left_of_requests_that_share_nothing():
    with Engine(model(bytes_per_token=50), warm_up=False) as engine:
        for handle in [engine.submit(request(n, max_tokens=20)) for n in range(8)]:
            if handle.request.prompt_ids[0] % 2:
                handle.cancel()
            list(handle)
        stats = engine.stats()
        assert (stats.kv_bytes, stats.prefix_entries, stats.active) == (0, 0, 0)
        assert stats.accepted == stats.finished + stats.cancelled == 8


def test_a_reader_that_is_too_slow_ends_its_own_request(monkeypatch):
    monkeypatch.setattr(handles, "MOST_EVENTS", 10)
    made = model()
    with Engine(made, warm_up=False) as engine:
        slow, other = all_at_once(engine, [request(1, max_tokens=500), request(2, max_tokens=8)])
        assert len(tokens(other)) == 8
        while not slow.ended:
            time.sleep(0.001)
        assert len(made._graph.calls) < 20
        got, errors = [], []
        for _ in range(2):
            try:
                got += list_until(slow, errors)
            except Hf2qError as error:
                errors.append(error)
        assert len(errors[0]) == 10
        assert "read too slowly: 10 pieces" in errors[1].message
        assert (engine.stats().active, engine.stats().failed) == (0, 1)
        assert engine.ready


def list_until(handle, found):
    """What comes before the error, noted in `found`."""
    got = []
    try:
        for event in handle:
            got.append(event)
    finally:
        if got:
            found.append(got)
    return got


def test_text_that_waits_is_bounded_too(monkeypatch):
    monkeypatch.setattr(handles, "MOST_TEXT", 5)
    with Engine(scripted_model(script=lambda ids: 65), warm_up=False) as engine:
        handle = engine.submit(request(max_tokens=50))
        while not handle.ended:
            time.sleep(0.001)
        found = []
        with pytest.raises(Hf2qError, match=r"5 pieces of it \(5 characters\)"):
            list_until(handle, found)
        assert "".join(event.text for event in found[0]) == "AAAAA"


def test_several_are_accepted_together_or_not_at_all():
    gate, _, engine = gated(slots=1, queue_capacity=2)
    first = engine.submit(request(1, max_tokens=1))
    gate.entered()
    with pytest.raises(Hf2qError, match="the queue is full"):
        engine.submit_many([request(n) for n in range(3)])
    two = engine.submit_many([request(n, max_tokens=1) for n in range(2)])
    assert (engine.stats().refused, engine.stats().accepted, engine.waiting) == (3, 3, 2)
    gate.open()
    assert [tokens(handle) for handle in (first, *two)] == [[script((n,))] for n in (1, 0, 1)]
    assert engine.close(timeout=SECONDS)


@pytest.mark.parametrize(
    "wrong",
    [{"slots": 0}, {"slots": 65}, {"queue_capacity": -1}, {"prefill_chunk": 0}, {"deadline": 0}, {"kv_budget": -1}],
)
def test_settings_that_make_no_sense(wrong):
    with pytest.raises(UsageError, match=f"{next(iter(wrong))} is .* expected"):
        Engine(model(), **wrong)


# ---------------------------------------------------------------------------------------------------------- observers


class Seen:
    """An observer."""

    def __init__(self):
        self.events = []

    def on(self, event):
        self.events.append(event)

    def kinds(self, request_id):
        return [event.kind for event in self.events if event.request_id == request_id]


def test_an_observer_sees_the_life_of_every_request():
    seen = Seen()
    with Engine(model(), warm_up=False, prefill_chunk=10, observer=seen) as engine:
        list(engine.submit(request(*[1] * 25, id="a", scope="x")))
        list(engine.submit(request(*[1] * 25, 2, 3, id="b", scope="x", max_tokens=1)))
        engine.submit(request(9, max_tokens=4000, id="c")).cancel()
    assert seen.kinds("a") == ["queued", "started", *["prefill"] * 3, "first_token", "finished"]
    assert seen.kinds("b") == ["queued", "started", "prefill", "first_token", "finished"]
    assert seen.kinds("c")[-1] == "cancelled"
    first = [event for event in seen.events if event.request_id == "a"]
    assert [event.slot for event in first] == [None, 0, 0, 0, 0, 0, 0]
    assert [event.done_tokens for event in first] == [0, 0, 10, 20, 25, 25, 25]
    assert first[3].eta_seconds == pytest.approx(5 / first[3].rate, rel=0.2)
    assert first[-1].finish_reason == "length"
    assert (first[-1].generated, first[-1].prompt_tokens) == (5, 25)
    assert first[-1].first_token_seconds > 0
    hit = [event for event in seen.events if event.request_id == "b"][-1]
    assert (hit.cached_tokens, hit.new_tokens) == (25, 2)


def test_a_long_answer_is_told_of_a_few_times_a_second(monkeypatch):
    monkeypatch.setattr("hf2q.serve.reporting.DECODING_EVERY", 0.0)
    seen = Seen()
    with Engine(model(), warm_up=False, observer=seen) as engine:
        list(engine.submit(request(1, max_tokens=4, id="a")))
    assert seen.kinds("a")[2:] == ["prefill", "first_token", "decoding", "decoding", "decoding", "finished"]
    assert [event.generated for event in seen.events][4:7] == [2, 3, 4]


def test_an_observer_that_fails_harms_nobody(caplog):
    class Bad:
        def on(self, event):
            raise KeyError(event.kind)

    with Engine(model(), warm_up=False, observer=Bad()) as engine:
        assert len(tokens(engine.submit(request()))) == 5
        assert engine.ready
    assert "the observer failed on a queued event" in caplog.text
    assert "the observer failed on a finished event" in caplog.text


def test_the_snapshot_tells_of_slots_and_totals():
    gate, _, engine = gated(slots=2, prefill_chunk=10, kv_budget=10**6, model={"bytes_per_token": 100})
    handle = engine.submit(request(*[1] * 25, id="a", max_tokens=2))
    gate.entered()
    gate.step(2)
    stats = engine.stats()
    assert isinstance(stats, EngineStats)
    busy, idle = stats.slots
    assert (busy.request_id, busy.phase, busy.prompt_tokens, busy.done_tokens) == ("a", "prefill", 25, 20)
    assert busy.rate > 0
    assert busy.eta_seconds > 0
    assert busy.kv_bytes == stats.kv_bytes == 2500  # with the piece that it is about to feed
    assert (idle.phase, idle.request_id) == ("idle", "")
    assert stats.kv_budget == 10**6
    assert stats.active == 1
    gate.open()
    list(handle)
    assert engine.close(timeout=SECONDS)
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.generated_tokens, stats.finished) == (25, 2, 1)
    assert not stats.ready


# --------------------------------------------------------------------------------------------------------------- load


def requests_alive():
    gc.collect()
    return [found for found in gc.get_objects() if isinstance(found, Job | Generation | handles.Handle)]


def test_many_streams_with_cancels_leave_nothing_and_mix_nothing():
    """Every request has a marker of its own, which is all that it may ever get."""
    made = scripted_model(script=lambda ids: ids[0], bytes_per_token=10)
    rng = random.Random(0)
    asked = [
        (n % 190, rng.choice([1, 5, 40, 300]), rng.randint(1, 60), rng.choice([None, None, 0, 1, 7]), rng.choice("ab"))
        for n in range(400)
    ]
    wrong, ended = [], []
    others = requests_alive()  # of other tests

    async def one(engine, marker, length, answer, cancel, scope):
        handle = engine.submit(request(marker, *[1] * length, max_tokens=answer, ignore_eos=True, scope=scope))
        got = []
        async for event in handle:
            got.append(event)
            if cancel is not None and len(got) > cancel:
                handle.cancel()
        if not set(tokens(got)) <= {marker}:
            wrong.append((marker, got))
        ended.append(got[-1].finish_reason)

    async def all_of_them(engine):
        for start in range(0, len(asked), 80):
            await asyncio.gather(*(one(engine, *fields) for fields in asked[start : start + 80]))

    with Engine(made, slots=64, prefill_chunk=64, kv_budget=60_000, prefix_budget=20_000, warm_up=False) as engine:
        asyncio.run(asyncio.wait_for(all_of_them(engine), 60))
        stats = engine.stats()
        assert stats.active == stats.queued == stats.failed == 0
        assert stats.kv_bytes == stats.prefix_bytes <= 20_000
        assert stats.accepted == stats.finished + stats.cancelled == len(asked)
        for _ in range(200):  # the worker is a moment behind the readers
            left = [found for found in requests_alive() if not any(found is one for one in others)]
            if not left:
                break
            time.sleep(0.01)
        assert left == []
    assert wrong == []
    assert set(ended) == {"length", "cancelled"}
    assert max(rows for rows, _ in made._graph.calls) > 8
