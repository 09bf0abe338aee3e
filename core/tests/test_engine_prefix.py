"""Prefix reuse: it changes nothing but the work, whoever asks, whatever is cancelled; and it does spare work."""

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf2q.backends.cache import Cache
from hf2q.backends.media import ImageEmbeddings, PlacedImage
from hf2q.serve.engine import Engine
from hf2q.serve.events import GenerateRequest
from hf2q.serve.prefix import LEAST, MOST_CHECKPOINTS, Line, Picture, common, pictures, thinned
from hf2q.serve.prefix_store import PrefixStore
from hf2q.serve.sampling import SamplingParams
from hf2q.testing.scripted import History, scripted_model, scripted_tokenizer

SECONDS = 20
END = scripted_tokenizer().id_of("<|im_end|>")


def script(ids):
    """Depends on every token and its place; often the same token twice, never an end."""
    return (sum(ids) * 7 + len(ids)) % 199


def model(**more):
    return scripted_model(script=script, **more)


def request(ids, scope="a", **more):
    return GenerateRequest(prompt_ids=tuple(ids), scope=scope, **{"max_tokens": 3, **more})


def answer(engine, ids, scope="a", **more):
    events = list(engine.submit(request(ids, scope, **more)))
    return [event.token for event in events[:-1]], events[-1].usage.cached_tokens


def fed(model, since=0):
    """Tokens that went through the graph."""
    return sum(rows * tokens for rows, tokens in model._graph.calls[since:])


def block(n):
    return [(n * 31 + i * i) % 199 for i in range(20)]


@st.composite
def histories(draw):
    """Requests that share beginnings and branch off, in two scopes, some cancelled, in waves that run together."""
    prompts, waves = [[0]], []
    for _ in range(draw(st.integers(1, 4))):
        wave = []
        for _ in range(draw(st.integers(1, 4))):
            base = prompts[draw(st.integers(0, len(prompts) - 1))]
            kept = base[: draw(st.integers(1, len(base)))]
            new = [token for n in draw(st.lists(st.integers(0, 2), max_size=2)) for token in block(n)]
            ids = kept + new + ([END] if draw(st.booleans()) else []) + draw(st.sampled_from([[], [5], [5, 6, 7]]))
            prompts.append(ids)
            wave.append(
                {
                    "ids": ids[:190],
                    "scope": draw(st.sampled_from(["a", "a", "b", None])),
                    "max_tokens": draw(st.integers(1, 30)),
                    "cancel": draw(st.sampled_from([None, None, None, 0, 2])),
                    "sampling": SamplingParams(temperature=draw(st.sampled_from([0, 1.5])), seed=len(prompts)),
                }
            )
        waves.append(wave)
    return waves


def play(waves, *, trimmable, prefix_budget, kv_budget, chunk):
    """The answers, of those not cancelled."""
    made = model(trimmable=trimmable, context_length=256, bytes_per_token=10)
    answers = []
    with Engine(
        made, slots=3, prefill_chunk=chunk, prefix_budget=prefix_budget, kv_budget=kv_budget, warm_up=False
    ) as engine:
        for wave in waves:
            handles = []
            with engine._condition:
                for asked in wave:
                    fields = {key: asked[key] for key in ("scope", "max_tokens", "sampling")}
                    handles.append(engine.submit(request(asked["ids"], **fields)))
            for asked, handle in zip(wave, handles, strict=True):
                got = []
                if asked["cancel"] == 0:
                    handle.cancel()
                for event in handle:
                    got.append(event.token)
                    if asked["cancel"] is not None and len(got) > asked["cancel"]:
                        handle.cancel()
                if asked["cancel"] is None:
                    answers.append((got, event.finish_reason))
        stats = engine.stats()
        assert stats.active == 0
        assert stats.kv_bytes == stats.prefix_bytes == engine._store.nbytes
        assert stats.kv_bytes <= (kv_budget or 1 << 60)
        # nothing that is kept was changed by those who went on from it
        for owner, line in engine._store._lines.values():
            assert owner in ("a", "b")
            assert line.cache.parts[0].ids == tuple(line.ids.tolist())
            assert line.cache.position == len(line.ids)
            for checkpoint in line.checkpoints:
                assert checkpoint.parts[0].ids == tuple(line.ids[: checkpoint.position].tolist())
    return answers


@settings(max_examples=60, deadline=None)
@given(
    waves=histories(),
    trimmable=st.booleans(),
    chunk=st.sampled_from([7, 32, 512]),
    kv_budget=st.sampled_from([None, 6000, 9000]),
)
def test_answers_with_reuse_are_those_without(waves, trimmable, chunk, kv_budget):
    wanted = play(waves, trimmable=trimmable, prefix_budget=0, kv_budget=None, chunk=512)
    found = play(waves, trimmable=trimmable, prefix_budget=20000, kv_budget=kv_budget, chunk=chunk)
    assert found == wanted


@pytest.mark.parametrize("trimmable", [True, False])
def test_a_conversation_that_goes_on_costs_its_new_tokens_only(trimmable):
    made = model(trimmable=trimmable)
    with Engine(made, warm_up=False) as engine:
        ids = block(1) * 5 + [END, 5]
        first, cached = answer(engine, ids)
        assert cached == 0
        before = len(made._graph.calls)
        history = [*ids, *first, END, *block(2), END, 5]
        _, cached = answer(engine, history)
        assert cached == len(ids) + len(first) - 1  # the last token of an answer was never fed
        assert fed(made, before) == len(history) - cached + 2
        stats = engine.stats()
        assert (stats.prefix_lookups, stats.prefix_hits) == (2, 1)
        assert stats.cached_tokens == cached
        assert stats.prefix_entries == 1  # the first was moved, not copied


@pytest.mark.parametrize("trimmable", [True, False])
def test_a_template_that_rewrites_the_last_answer_costs_that_answer_only(trimmable):
    """Reasoning is left out of past turns: the prompt goes on differently after the turn that was asked."""
    made = model(trimmable=trimmable)
    with Engine(made, warm_up=False) as engine:
        turn = [*block(1) * 5, END]
        answer(engine, [*turn, 5, 6], max_tokens=20)
        _, cached = answer(engine, [*turn, 5, 7, *block(3), END, 5, 6])
        assert cached == (len(turn) + 1 if trimmable else len(turn))
        assert engine.stats().prefix_entries == 1


def test_scopes_and_none_share_nothing():
    made = model()
    with Engine(made, warm_up=False) as engine:
        ids = block(1) * 5
        for scope, hit in (("a", False), ("b", False), (None, False), ("", False), ("a", True), (None, False)):
            assert (answer(engine, ids, scope)[1] > 0) == hit
    with Engine(made, warm_up=False, prefix_budget=0) as engine:
        assert [answer(engine, ids)[1] for _ in range(2)] == [0, 0]
        assert engine.stats().prefix_lookups == 0


def test_scopes_share_nothing_while_they_are_at_work_either():
    made = model()
    with Engine(made, warm_up=False, prefill_chunk=32) as engine:
        with engine._condition:
            handles = [engine.submit(request(block(1) * 10, scope, max_tokens=30)) for scope in ("a", "b", None, "a")]
        cached = [list(handle)[-1].usage.cached_tokens for handle in handles]
    assert cached[:3] == [0, 0, 0]
    assert cached[3] > 100


def test_the_same_prompt_again_computes_its_last_token():
    made = model()
    with Engine(made, warm_up=False) as engine:
        ids = block(1) * 3
        first, _ = answer(engine, ids)
        again, cached = answer(engine, ids)
        assert (again, cached) == (first, len(ids) - 1)


def test_a_branch_leaves_the_line_it_came_from():
    made = model()
    with Engine(made, warm_up=False) as engine:
        system = block(1) * 4
        one, other = [*system, END, *block(2), END, 5], [*system, END, *block(3), END, 5]
        assert answer(engine, one)[1] == 0
        assert answer(engine, other)[1] == len(system) + 1 + common_start(block(2), block(3))
        assert answer(engine, one)[1] == len(one) - 1
        assert answer(engine, other)[1] == len(other) - 1


def common_start(a, b):
    return next(n for n in range(len(a)) if a[n] != b[n])


@pytest.mark.parametrize("trimmable", [True, False])
def test_equal_prompts_at_once_are_computed_once(trimmable):
    made = model(trimmable=trimmable)
    ids = block(1) * 20
    with Engine(made, warm_up=False, prefill_chunk=64) as engine:
        asked = [request(ids, sampling=SamplingParams(temperature=2.0, seed=n)) for n in range(4)]
        handles = engine.submit_many(asked)
        cached = [list(handle)[-1].usage.cached_tokens for handle in handles]
    assert cached == [0, *[len(ids) - 1] * 3]
    assert fed(made) == len(ids) + 3 + 4 * 2


@pytest.mark.parametrize("trimmable", [True, False])
def test_a_long_common_beginning_is_waited_for(trimmable):
    """Though both arrive at once, the second begins when the first is past what they share."""
    made = model(trimmable=trimmable)
    one, other = [*block(1) * 10, *block(2) * 10], [*block(1) * 10, *block(3) * 10]
    with Engine(made, warm_up=False, prefill_chunk=64) as engine:
        with engine._condition:
            handles = [engine.submit(request(ids)) for ids in (one, other)]
        cached = [list(handle)[-1].usage.cached_tokens for handle in handles]
    assert cached == [0, 200 + common_start(block(2), block(3))]


@pytest.mark.parametrize("scopes", ["ab", ("a", None), (None, None)])
def test_nobody_waits_for_a_beginning_in_another_scope(scopes):
    """It could not be had; and who waits would learn what others ask."""
    turns = []

    class Looks:
        def on(self, event):
            if event.kind == "prefill":
                turns.append(event.request_id)

    with Engine(model(), warm_up=False, prefill_chunk=32, observer=Looks()) as engine:
        ids = block(1) * 10
        handles = engine.submit_many([request(ids, scope, id=str(n)) for n, scope in enumerate(scopes)])
        for handle in handles:
            list(handle)
    assert turns[:6] == ["0", "1"] * 3


def test_one_who_waits_for_a_beginning_goes_on_when_the_other_is_cancelled():
    held, go = threading.Event(), threading.Event()

    def before(rows, count):
        held.set()
        assert go.wait(SECONDS)

    made = model(before=before)
    with Engine(made, warm_up=False, prefill_chunk=64) as engine:
        first = engine.submit(request(block(1) * 20))
        assert held.wait(SECONDS)
        second = engine.submit(request(block(1) * 20, max_tokens=2))
        first.cancel()
        go.set()
        assert [event.finish_reason for event in first] == ["cancelled"]
        last = list(second)[-1]
    assert last.finish_reason == "length"
    assert last.usage.cached_tokens == 64  # what was computed for the other is not lost


def test_the_store_keeps_to_its_budget_and_drops_what_was_used_longest_ago():
    made = model(bytes_per_token=100)
    with Engine(made, warm_up=False, prefix_budget=26_000) as engine:
        for n in range(3):  # some 8 kB each
            answer(engine, block(n) * 3)
        assert answer(engine, block(0) * 3)[1] > 0
        answer(engine, block(7) * 3)
        stats = engine.stats()
        assert stats.prefix_bytes <= stats.prefix_budget == 26_000
        assert stats.prefix_entries == 3
        assert stats.prefix_evictions == 1
        assert answer(engine, block(0) * 3)[1] > 0
        assert answer(engine, block(1) * 3)[1] == 0
        answer(engine, block(5) * 30)  # larger than the whole store: it drops nothing for it
        assert engine.stats().prefix_entries == 3


def test_short_prompts_are_not_worth_it():
    made = model()
    with Engine(made, warm_up=False) as engine:
        for _ in range(2):
            assert answer(engine, block(1)[: LEAST - 4], max_tokens=1)[1] == 0
        assert engine.stats().prefix_entries == 0


# ------------------------------------------------------------------------------------------------------------- pieces


ids_lists = st.lists(st.integers(0, 2), max_size=12)


@given(a=ids_lists, b=ids_lists)
def test_common_is_the_common_beginning(a, b):
    n = next((n for n in range(min(len(a), len(b))) if a[n] != b[n]), min(len(a), len(b)))
    assert common(np.array(a, np.int32), (), np.array(b, np.int32), ()) == n


@pytest.mark.parametrize(
    ("mine", "others", "wanted"),
    [
        ([(3, 6, b"x")], [(3, 6, b"x")], 10),
        ([(3, 6, b"x")], [(3, 6, b"y")], 3),
        ([(3, 6, b"x")], [], 3),
        ([], [(4, 6, b"x")], 4),
        ([(3, 6, b"x"), (8, 9, b"x")], [(3, 6, b"x"), (8, 9, b"y")], 8),
        ([(3, 6, b"x"), (9, 20, b"z")], [(3, 6, b"x"), (9, 20, b"z")], 9),  # ends inside an image
        ([(30, 40, b"x")], [], 10),
    ],
)
def test_images_are_compared_by_what_they_show(mine, others, wanted):
    ids = np.zeros(10, np.int32)
    assert common(ids, [Picture(*one) for one in mine], ids, [Picture(*one) for one in others]) == wanted


def test_the_digest_of_an_image_is_of_all_of_it():
    def seen(values, deep=0.0, grid=(1, 2)):
        image = ImageEmbeddings(np.array(values, np.float32), (np.full((2, 1), deep, np.float32),), grid)
        return pictures([PlacedImage(3, image)])

    one = seen([[1.0], [2.0]])
    assert one == seen([[1.0], [2.0]])
    assert (one[0].start, one[0].end) == (3, 5)
    assert len({one, seen([[1.0], [3.0]]), seen([[1.0], [2.0]], deep=1.0), seen([[1.0], [2.0]], grid=(2, 1))}) == 4


def line(count, *, trimmable=True, places=(), **more):
    ids = np.arange(count, dtype=np.int32)
    cache, checkpoints = Cache([History(trimmable=trimmable)]), []
    for n in range(count):
        if n in places:
            checkpoints.append(cache.checkpoint())
        cache.parts[0].ids += (n,)
        cache.position += 1
    return Line(ids, (), cache, checkpoints, stable=count, **more)


def test_where_a_line_can_be_gone_on_from():
    assert [line(9).resumable(n) for n in (0, 4, 9, 20)] == [0, 4, 9, 9]
    fixed = line(9, trimmable=False, places=(3, 5))
    assert [fixed.resumable(n) for n in (2, 3, 4, 7, 9, 20)] == [0, 3, 3, 5, 9, 9]
    for position in (3, 5, 9):
        copy = fixed.copied(position)
        assert (copy.position, copy.parts[0].ids) == (position, tuple(range(position)))
        copy.parts[0].ids += (99,)
    assert fixed.cache.parts[0].ids == tuple(range(9))
    moved = fixed.moved(5)
    assert moved is fixed.cache
    assert moved.parts[0].ids == tuple(range(5))
    moved.parts[0].ids += (99,)
    assert fixed.checkpoints[1].parts[0].ids == tuple(range(5))


def test_checkpoints_are_thinned_and_stay_spread():
    places = []
    whole = line(1000, trimmable=False, places=range(0, 1000, 10))
    for checkpoint in whole.checkpoints:
        places = thinned([*places, checkpoint], keep=(20,))
    found = [one.position for one in places]
    assert len(found) == MOST_CHECKPOINTS + 1
    assert found[-1] == 990
    assert 20 in found
    assert max(b - a for a, b in itertools.pairwise(found)) <= 250


def test_a_line_that_continues_another_replaces_it():
    store = PrefixStore(1 << 20)
    store.add("a", line(20))
    store.add("b", line(20))
    store.add("a", line(30))
    assert [len(one.ids) for one in store.of("a")] == [30]
    assert len(store) == 2
    store.add("b", line(30, trimmable=False))  # cannot be cut back to 20
    assert len(store) == 3
    assert store.nbytes == sum(one.nbytes for scope in "ab" for one in store.of(scope))
