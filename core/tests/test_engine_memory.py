"""The KV budget: shared, grown on demand; who must wait, who gives back, who can never fit."""

import threading

import pytest

from hf2q.backends.cache import KVCache, StateCache
from hf2q.backends.reference import ReferenceOps
from hf2q.errors import Hf2qError, RequestError
from hf2q.serve.budget import CacheSizes, bytes_after, bytes_of, default_kv_budget, default_prefix_budget
from hf2q.serve.engine import Engine
from hf2q.serve.events import GenerateRequest
from hf2q.serve.generation import Generation
from hf2q.serve.handle import Handle
from hf2q.serve.job import Job
from hf2q.testing.scripted import scripted_model

SECONDS = 20


def script(ids):
    return (sum(ids) * 7 + len(ids)) % 199


class Seen:
    """An observer that notes what happens to whom, and the memory in use."""

    def __init__(self):
        self.told, self.most, self.engine = [], 0, None

    def on(self, event):
        if event.kind not in ("queued", "prefill", "first_token"):
            self.told.append(f"{event.kind} {event.request_id}")
        if self.engine is not None:
            self.most = max(self.most, self.engine.stats().kv_bytes)


def request(n, length, answer, **more):
    return GenerateRequest(prompt_ids=tuple([n] * length), max_tokens=answer, id=f"r{n}", **more)


def run(requests, *, kv_budget, **more):
    """The answers, and what happened."""
    seen = Seen()
    made = scripted_model(script=script, bytes_per_token=10)
    engine = Engine(made, kv_budget=kv_budget, observer=seen, warm_up=False, **more)
    seen.engine = engine
    with engine:
        with engine._condition:
            found = [engine.submit(one) for one in requests]
        answers = [outcome(handle) for handle in found]
        assert engine.stats().kv_bytes == engine.stats().prefix_bytes
        assert engine.stats().active == 0
    return answers, seen


def outcome(handle):
    try:
        return [event.token for event in handle]
    except Hf2qError as error:
        return error.message


def test_who_cannot_grow_waits_and_then_gives_the_same():
    requests = [request(1, 30, 40), request(2, 30, 20), request(3, 10, 40)]
    wanted, seen = run(requests, kv_budget=None)
    assert not any("parked" in told for told in seen.told)
    found, seen = run(requests, kv_budget=1300)
    assert found == wanted
    assert "parked r3" in seen.told
    assert "resumed r3" in seen.told
    assert seen.told.index("resumed r3") > seen.told.index("finished r2")
    assert seen.most <= 1300


def test_when_all_wait_the_youngest_gives_back_and_the_oldest_goes_on():
    requests = [request(n, 30, 60) for n in range(1, 5)]
    wanted, _ = run(requests, kv_budget=None)
    found, seen = run(requests, kv_budget=1200, prefill_chunk=8)
    assert found == wanted
    assert next(told for told in seen.told if told.startswith("finished")) == "finished r1"
    assert sum(told.startswith("finished") for told in seen.told) == 4
    assert seen.most <= 1200


def test_who_cannot_fit_alone_is_told_so_and_harms_no_other():
    found, seen = run([request(1, 30, 4), request(2, 30, 100), request(3, 200, 4)], kv_budget=1000)
    assert len(found[0]) == 5
    for n, tokens in ((1, 101), (2, 200)):
        assert f"with {tokens} tokens; all caches together may take 1000 bytes" in found[n]
    assert "finished r1" in seen.told
    assert {"failed r2", "failed r3"} < set(seen.told)


def test_a_prompt_that_can_never_fit_is_refused_before_it_is_queued():
    with Engine(scripted_model(script=script, bytes_per_token=10), kv_budget=5120, warm_up=False) as engine:
        list(engine.submit(request(1, 30, 4)))  # from here on it is known what a token takes
        list(engine.submit(request(1, 300, 4)))
        with pytest.raises(RequestError, match="a prompt of 600 tokens take") as caught:
            engine.submit(request(1, 600, 4))
        assert (caught.value.code, caught.value.param) == ("kv_budget_exceeded", "prompt")
        assert engine.stats().active == 0


def test_states_that_nobody_works_on_go_first():
    seen = Seen()
    made = scripted_model(script=script, bytes_per_token=10)
    engine = Engine(made, kv_budget=3000, prefix_budget=3000, observer=seen, warm_up=False)
    seen.engine = engine
    with engine:
        list(engine.submit(request(1, 100, 4, scope="a")))
        assert engine.stats().prefix_bytes > 1000
        list(engine.submit(request(2, 250, 4)))
        stats = engine.stats()
    assert (stats.prefix_entries, stats.prefix_evictions) == (0, 1)
    assert seen.most <= 3000
    assert not any("parked" in told for told in seen.told)


def test_nobody_new_comes_in_while_one_waits():
    requests = [request(1, 30, 60), request(2, 30, 10), request(3, 30, 60), request(4, 10, 5)]
    found, seen = run(requests, kv_budget=1300, slots=3)
    assert [len(one) for one in found] == [61, 11, 61, 6]
    order = [seen.told.index(told) for told in ("parked r3", "finished r2", "resumed r3", "started r4")]
    assert order == sorted(order)


def test_a_parked_request_can_be_cancelled():
    parked = threading.Event()

    class Watch:
        def on(self, event):
            if event.kind == "parked":
                parked.set()
                handles[1].cancel()

    handles = []
    made = scripted_model(script=script, bytes_per_token=10)
    with Engine(made, kv_budget=900, observer=Watch(), warm_up=False) as engine:
        with engine._condition:
            handles += [engine.submit(request(1, 30, 50)), engine.submit(request(2, 30, 50))]
        assert len(outcome(handles[0])) == 51
        assert list(handles[1])[-1].finish_reason == "cancelled"
    assert parked.is_set()


# -------------------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize("window", [0, 40])
def test_what_caches_will_take_is_known_exactly(window):
    import numpy as np

    from hf2q.backends.cache import Cache

    ops = ReferenceOps(threads=1)
    cache = Cache([KVCache(ops, window), StateCache(ops)])
    sizes = CacheSizes()
    for count in (1, 200, 56, 3, 400, 1, 1, 900):
        wanted = bytes_after(cache, count)
        new = np.ones((count, 2, 4), np.float32)
        cache.parts[0].append(new, new)
        cache.parts[1].states = (np.zeros(10, np.float32),)
        cache.position += count
        if cache.position > count:
            assert bytes_of(cache) == wanted
        sizes.learn(cache)
    assert sizes.of(100) == 2 * 256 * 2 * 4 * 4 + 40
    if not window:
        assert sizes.of(1600) >= bytes_of(cache.__class__([cache.parts[0].head(1562), cache.parts[1]]))
    head = KVCache(ops).head(0)
    assert (head.length, list(head.arrays())) == (0, [])


def test_defaults_are_parts_of_what_is_free():
    assert default_kv_budget(None) is None
    assert default_kv_budget(10 << 30) == 8 << 30
    assert default_prefix_budget(None) == 256 << 20
    assert default_prefix_budget(1 << 30) == 256 << 20
    assert default_prefix_budget(100 << 30) == 5 << 30
    assert default_prefix_budget(1 << 40) == 16 << 30


def test_checkpoints_go_before_anyone_waits_or_fails():
    made = scripted_model(script=script, bytes_per_token=10, trimmable=False)
    seen = Seen()
    engine = Engine(made, kv_budget=2100, prefix_budget=2100, prefill_chunk=20, observer=seen, warm_up=False)
    seen.engine = engine
    with engine:
        assert len(list(engine.submit(request(1, 190, 10, scope="a")))) == 11
    assert seen.most <= 2100
    assert not any("parked" in told for told in seen.told)


def test_who_gives_back_keeps_no_checkpoints():
    """They would take memory that is counted as free."""
    made = scripted_model(script=script, bytes_per_token=10, trimmable=False)
    asked = request(1, 40, 5, scope="a")
    job = Job(Handle(asked), Generation(made, asked, chunk=20), made.end_ids, share=True)
    job.generation.feed()
    job.note_checkpoint()
    assert job.checkpoint_bytes > 0
    job.kv = 1000
    job.forget()
    assert (job.checkpoint_bytes, job.kv, job.cache, job.line) == (0, 0, None, None)
