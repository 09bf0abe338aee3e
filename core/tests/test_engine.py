"""The engine: order, cancellation, refusal, failure, shutdown; from threads and from asyncio. No weights involved."""

import asyncio
import gc
import threading
import weakref

import pytest

from hf2q.errors import ContextLengthError, Hf2qError, OverloadedError, RequestError
from hf2q.serve.engine import Engine
from hf2q.serve.events import GenerateRequest
from hf2q.serve.sampling import SamplingParams
from hf2q.testing.scripted import scripted_model

SECONDS = 20


def request(*ids, **more):
    return GenerateRequest(prompt_ids=ids or (1, 2, 3), **more)


def counting(**more):
    """The next token is the last plus one, below 200: byte tokens, no end."""
    return scripted_model(script=lambda ids: (ids[-1] + 1) % 200, **more)


def tokens(events):
    return [event.token for event in events if event.token is not None]


class Gate:
    """Holds the graph before each call after the warm-up until `open`; `entered` tells that it is held."""

    def __init__(self):
        self.entered, self.open = threading.Event(), threading.Event()

    def __call__(self, rows, count):
        self.entered.set()
        assert self.open.wait(SECONDS)


def gated(*, slots=1, **more):
    gate = Gate()
    model = counting(before=gate)
    return gate, Engine(model, warm_up=False, slots=slots, **more)


def test_events_are_those_of_generate():
    model = counting()
    alone = list(model.generate([5], max_tokens=4, stop="\x08"))
    with Engine(model) as engine:
        served = list(engine.submit(request(5, max_tokens=4, stop=("\x08",))))
    plain = [(event.text, event.token, event.finish_reason, event.usage) for event in served]
    assert plain == [(event.text, event.token, event.finish_reason, event.usage) for event in alone]
    assert tokens(served) == [6, 7, 8]
    assert served[-1].finish_reason == "stop"


def test_the_last_event_accounts_for_everything():
    with Engine(counting()) as engine:
        events = list(engine.submit(request(*range(7), max_tokens=5)))
    last = events[-1]
    assert [event.finish_reason for event in events] == [None] * 5 + ["length"]
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (7, 5, 12)
    timings = last.timings
    assert (timings.prefill_tokens, timings.decode_tokens) == (7, 4)
    assert timings.prefill_seconds > 0
    assert timings.prefill_rate == 7 / timings.prefill_seconds
    assert timings.decode_rate == 4 / timings.decode_seconds
    assert timings.queue_seconds >= 0
    assert all(event.usage is None and event.timings is None for event in events[:-1])


@pytest.mark.parametrize(("slots", "wanted"), [(1, [0, 0, 1, 1, 2, 2, 3, 3]), (2, [0, 0, 1, 1, 2, 2, 3, 3])])
def test_requests_are_served_in_order_of_arrival(slots, wanted):
    served = []

    def script(ids):
        served.append(ids[0])
        return 100

    engine = Engine(scripted_model(script=script), warm_up=False, slots=slots)
    with engine._condition:  # all are queued before the worker looks
        handles = [engine.submit(request(n, max_tokens=2)) for n in range(4)]
    assert engine.close(timeout=SECONDS)
    assert served == wanted
    assert [tokens(handle) for handle in reversed(handles)] == [[100, 100]] * 4


def test_from_asyncio_many_at_once():
    async def ask(engine, n):
        return tokens([event async for event in engine.submit(request(n, max_tokens=3))])

    async def main():
        with Engine(counting()) as engine:
            return await asyncio.wait_for(asyncio.gather(*(ask(engine, n) for n in range(10))), SECONDS)

    assert asyncio.run(main()) == [[n + 1, n + 2, n + 3] for n in range(10)]


def test_asyncio_is_woken_while_the_worker_is_slow():
    gate, engine = gated()

    async def main():
        handle = engine.submit(request(max_tokens=1))
        asyncio.get_running_loop().call_later(0.05, gate.open.set)
        return [event async for event in handle]

    assert tokens(asyncio.run(asyncio.wait_for(main(), SECONDS))) == [4]
    assert engine.close(timeout=SECONDS)


def test_a_reader_whose_loop_is_gone_harms_nobody():
    gate, engine = gated()

    async def leave(handle):
        waiting = asyncio.ensure_future(anext(aiter(handle)))
        await asyncio.sleep(0)
        waiting.cancel()

    handle = engine.submit(request(max_tokens=2))
    asyncio.run(leave(handle))
    gate.open.set()
    assert tokens(engine.submit(request(max_tokens=1))) == [4]
    assert handle.ended
    assert engine.ready
    assert engine.close(timeout=SECONDS)


# ----------------------------------------------------------------------------------------------------- cancellation


def test_cancelling_ends_within_one_step():
    gate, engine = gated()
    handle = engine.submit(request(max_tokens=1000))
    assert gate.entered.wait(SECONDS)
    handle.cancel()
    gate.open.set()
    events = list(handle)
    assert events[-1].finish_reason == "cancelled"
    assert len(tokens(events)) == 1  # of the step that was running
    assert events[-1].usage.completion_tokens == 1
    assert list(engine.submit(request(max_tokens=1)))[-1].finish_reason == "length"
    assert engine.close(timeout=SECONDS)


def test_a_long_prompt_is_cut_into_chunks_and_cancelled_between_them():
    model = counting()
    calls, handles = [], []

    def before(rows, count):
        calls.append(count)
        if len(calls) == 2:
            handles[0].cancel()

    model._graph.before = before
    with Engine(model, prefill_chunk=16, warm_up=False) as engine:
        with engine._condition:  # the worker starts once the handle is known
            handles.append(engine.submit(request(*[1] * 100)))
        events = list(handles[0])
    assert calls == [16, 16]
    assert events[-1].finish_reason == "cancelled"
    assert tokens(events) == []
    assert events[-1].timings.prefill_tokens == 32


def test_prefill_in_chunks_changes_nothing():
    ids = [7, 3, 9, 1, 4] * 9
    model = scripted_model(script=lambda ids: sum(ids) % 199)
    with Engine(model, prefill_chunk=8) as engine:
        assert tokens(engine.submit(request(*ids, max_tokens=6))) == tokens(model.generate(ids, max_tokens=6))


def test_cancelled_requests_take_up_no_room_in_the_queue():
    gate, engine = gated(queue_capacity=1)
    first = engine.submit(request(max_tokens=100))
    assert gate.entered.wait(SECONDS)
    waiting = engine.submit(request())
    waiting.cancel()
    gate.open.set()
    assert [event.finish_reason for event in waiting] == ["cancelled"]
    assert not first.ended or list(first)[-1].finish_reason == "length"
    first.cancel()
    assert engine.close(timeout=SECONDS)


# ---------------------------------------------------------------------------------------------------------- refusal


def test_a_full_queue_is_refused_at_once():
    gate, engine = gated(queue_capacity=2)
    accepted = [engine.submit(request(max_tokens=1))]
    assert gate.entered.wait(SECONDS)
    accepted += [engine.submit(request(max_tokens=1)) for _ in range(2)]
    assert engine.active
    assert engine.waiting == 2
    with pytest.raises(OverloadedError, match="the queue is full: 2 requests") as caught:
        engine.submit(request())
    assert caught.value.code == "queue_full"
    gate.open.set()
    assert [tokens(handle) for handle in accepted] == [[4]] * 3
    assert tokens(engine.submit(request(max_tokens=1))) == [4]
    assert engine.close(timeout=SECONDS)
    assert not engine.active


def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers():
    with Engine(counting(context_length=8)) as engine:
        with pytest.raises(ContextLengthError, match=r"8 tokens.*context of 8") as caught:
            engine.submit(request(*range(8)))
        assert caught.value.code == "context_length_exceeded"
        # what fits is generated up to the context's end
        events = list(engine.submit(request(*range(5), max_tokens=50)))
        assert tokens(events) == [5, 6, 7]
        assert events[-1].finish_reason == "length"


def test_wrong_tokens_and_biases_are_refused_before_they_are_queued():
    model = counting()
    with Engine(model) as engine:
        engine.wait_ready(SECONDS)
        for wrong in (-1, model.n_vocab):
            with pytest.raises(RequestError, match=f"token id {wrong} is outside"):
                engine.submit(request(1, wrong))
        with pytest.raises(RequestError, match="logit_bias"):
            engine.submit(request(sampling=SamplingParams(logit_bias={model.n_vocab: 1.0})))
        assert engine.ready


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"prompt_ids": ()}, "prompt"), ({"max_tokens": 0}, "max_tokens"), ({"stop": ("a", "")}, "stop")],
)
def test_requests_that_make_no_sense(fields, param):
    with pytest.raises(RequestError) as caught:
        GenerateRequest(**{"prompt_ids": (1,), **fields})
    assert caught.value.param == param


# ---------------------------------------------------------------------------------------------------------- failure


def failing_model(error):
    """Fails when token 13 is in the sequence."""

    def script(ids):
        if 13 in ids:
            raise error
        return (ids[-1] + 1) % 200

    return scripted_model(script=script)


def outcome(handle):
    """How a request ended: all events and errors of two rounds of reading."""
    events, errors = [], []
    for _ in range(2):
        try:
            for event in handle:
                events.append(event)
        except Hf2qError as error:
            errors.append(error)
    return events, errors


def test_a_failed_worker_ends_every_request_once_and_accepts_no_more():
    engine = Engine(failing_model(RuntimeError("device lost")), warm_up=False, slots=1)
    with engine._condition:  # all are queued before the worker looks
        handles = [engine.submit(request(n, max_tokens=3)) for n in (1, 11, 20)]
    good, bad, waiting = (outcome(handle) for handle in handles)
    assert good[0][-1].finish_reason == "length"
    assert good[1] == []
    assert tokens(bad[0]) == [12, 13]
    for _, errors in (bad, waiting):
        assert [str(error) for error in errors] == ["the engine failed: RuntimeError: device lost\nhint: restart it"]
    assert waiting[0] == []
    assert not engine.ready
    assert "device lost" in str(engine.failure)
    with pytest.raises(OverloadedError, match="has failed") as caught:
        engine.submit(request())
    assert caught.value.code == "not_ready"
    assert engine.close(timeout=SECONDS)


def test_a_request_that_is_at_fault_itself_harms_no_other():
    with Engine(failing_model(RequestError("bad token", param="prompt"))) as engine:
        events, errors = outcome(engine.submit(request(11, max_tokens=5)))
        assert tokens(events) == [12, 13]
        assert [error.message for error in errors] == ["bad token"]
        assert engine.ready
        assert tokens(engine.submit(request(20, max_tokens=1))) == [21]


def test_the_engine_is_ready_after_its_warm_up():
    gate = Gate()
    engine = Engine(counting(before=gate))
    assert gate.entered.wait(SECONDS)
    assert not engine.ready
    assert not engine.wait_ready(0.01)
    handle = engine.submit(request(max_tokens=1))
    gate.open.set()
    assert engine.wait_ready(SECONDS)
    assert tokens(handle) == [4]
    assert engine.close(timeout=SECONDS)
    assert not engine.ready


class NotNumbers:
    """A graph whose logits are NaN from `position` on; else those of `graph`."""

    def __init__(self, graph, position=0):
        self.graph, self.position = graph, position

    def __getattr__(self, name):
        return getattr(self.graph, name)

    def hidden(self, ids, caches):
        self.late = caches[0].position + ids.shape[1] > self.position
        return self.graph.hidden(ids, caches)

    def head(self, hidden):
        return self.graph.head(hidden) * (float("nan") if self.late else 1.0)


def test_logits_that_are_no_numbers_end_their_request_alone():
    model = counting()
    model._graph = NotNumbers(model._graph, position=5)
    with Engine(model) as engine:
        events, errors = outcome(engine.submit(request(1, 2, 3, max_tokens=9)))
        assert tokens(events) == [4, 5, 6]
        (error,) = errors
        assert "logits hold nan" in error.message
        assert "damaged" in error.hint
        assert engine.ready
        assert tokens(engine.submit(request(max_tokens=1))) == [4]


def test_a_model_that_gives_no_numbers_is_never_ready():
    model = counting()
    model._graph = NotNumbers(model._graph)
    engine = Engine(model)
    assert not engine.wait_ready(SECONDS)
    assert "logits hold nan" in engine.failure.message
    assert engine.close(timeout=SECONDS)


def test_an_engine_at_rest_keeps_no_sequence():
    model = counting()
    made = []
    sequence = model.sequence

    def remembered(images):
        found = sequence(images)
        made.append(weakref.ref(found))
        return found

    model.sequence = remembered
    with Engine(model, warm_up=False) as engine:
        handle = engine.submit(request(max_tokens=2))
        assert len(tokens(handle)) == 2
        assert tokens(engine.submit(request(max_tokens=1))) == [4]
        for _ in range(200):  # the worker is a moment behind the reader
            gc.collect()
            if not any(ref() for ref in made):
                break
            threading.Event().wait(0.01)
        assert [ref() for ref in made] == [None, None]


def test_a_failing_warm_up_is_a_failure():
    def script(ids):
        raise RuntimeError("no memory")

    engine = Engine(scripted_model(script=script))
    assert not engine.wait_ready(SECONDS)
    assert "no memory" in str(engine.failure)
    assert engine.close(timeout=SECONDS)


# --------------------------------------------------------------------------------------------------------- shutdown


def test_closing_finishes_what_was_accepted():
    gate, engine = gated()
    handles = [engine.submit(request(n, max_tokens=2)) for n in range(3)]
    assert gate.entered.wait(SECONDS)
    assert not engine.close(timeout=0.01)  # the worker is held
    with pytest.raises(OverloadedError, match="shutting down"):
        engine.submit(request())
    gate.open.set()
    assert engine.close(timeout=SECONDS)
    assert [tokens(handle) for handle in handles] == [[1, 2], [2, 3], [3, 4]]


def test_closing_without_draining_cancels():
    gate, engine = gated()
    handles = [engine.submit(request(n, max_tokens=1000)) for n in range(3)]
    assert gate.entered.wait(SECONDS)
    assert not engine.close(drain=False, timeout=0.01)
    gate.open.set()
    assert engine.close(timeout=SECONDS)
    assert [list(handle)[-1].finish_reason for handle in handles] == ["cancelled"] * 3


def test_an_error_in_the_with_block_does_not_wait_for_answers():
    gate, engine = gated()
    handle = engine.submit(request(max_tokens=4000))
    assert gate.entered.wait(SECONDS)
    threading.Timer(0.05, gate.open.set).start()
    engine.__exit__(KeyError, KeyError(), None)
    assert list(handle)[-1].finish_reason == "cancelled"


def test_each_request_is_logged_with_its_numbers(caplog):
    with caplog.at_level("DEBUG", logger="hf2q.serve.engine"), Engine(counting()) as engine:
        list(engine.submit(request(max_tokens=2, id="r1")))
    assert "request r1: 3 prompt tokens (0 cached), 2 generated, length" in caplog.text
