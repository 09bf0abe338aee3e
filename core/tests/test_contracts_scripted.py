"""The scripted model: it says what it is told, and keeps the laws of a real graph."""

import numpy as np
import pytest

from hf2q.testing.scripted import ScriptedGraph, after, scripted_model, scripted_tokenizer

PROMPT = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def said(model, prompt=PROMPT, **more):
    return "".join(event.text for event in model.generate(prompt, **more))


def test_it_gives_the_reply_and_ends():
    events = list(scripted_model("Tökyo 東京 🗼").generate(PROMPT))
    assert "".join(event.text for event in events) == "Tökyo 東京 🗼"
    assert events[-1].finish_reason == "stop"


def test_the_reply_may_depend_on_the_conversation():
    model = scripted_model(lambda prompt: f"<{prompt.count('user')}>")
    assert said(model) == "<1>"
    assert said(model, PROMPT + "One<|im_end|>\n" + PROMPT) == "<2>"


def test_without_the_mark_it_ends_at_once():
    assert said(scripted_model("x"), "Hello") == ""


def test_a_script_decides_every_token():
    model = scripted_model(script=lambda ids: (ids[-1] + 1) % 100)
    events = list(model.generate([5], max_tokens=3))
    assert [event.token for event in events if event.token is not None] == [6, 7, 8]
    assert events[-1].finish_reason == "length"


def test_logits_do_not_depend_on_how_the_tokens_were_fed():
    model = scripted_model(script=lambda ids: sum(ids) % 200)
    ids = list(range(10, 30))
    whole = model.logits(ids)
    sequence = model.sequence()
    pieces = np.concatenate([sequence.all_logits(ids[a:b]) for a, b in ((0, 1), (1, 8), (8, 20))])
    assert np.array_equal(whole, pieces)
    assert whole.argmax(-1).tolist() == [sum(ids[: n + 1]) % 200 for n in range(20)]


def test_rows_of_a_batch_are_independent():
    graph = ScriptedGraph(lambda ids: sum(ids) % 50, n_vocab=50)
    caches = [graph.new_cache(), graph.new_cache()]
    logits = graph.head(graph.hidden(np.array([[1, 2], [3, 4]], np.int32), caches))
    assert logits.argmax(-1).tolist() == [[1, 3], [3, 7]]
    logits = graph.head(graph.hidden(np.array([[5], [6]], np.int32), caches))
    assert logits.argmax(-1).tolist() == [[8], [13]]
    assert [cache.position for cache in caches] == [3, 3]


def test_caches_are_trimmed_and_copied():
    graph = ScriptedGraph(lambda ids: sum(ids) % 50, n_vocab=50)
    cache = graph.new_cache()
    graph.hidden(np.array([[1, 2, 3]], np.int32), [cache])
    other = cache.copy()
    cache.trim(1)
    assert graph.head(graph.hidden(np.array([[9]], np.int32), [cache])).argmax() == 10
    assert graph.head(graph.hidden(np.array([[9]], np.int32), [other])).argmax() == 15


def test_the_script_is_asked_about_wanted_positions_only():
    asked = []
    model = scripted_model(script=lambda ids: asked.append(len(ids)) or 7)
    list(model.generate(list(range(40)), max_tokens=2))
    assert asked == [40, 41]


def test_work_can_be_watched_and_interrupted():
    def before(rows, tokens):
        if tokens == 1:
            raise RuntimeError("the GPU fell off")

    with pytest.raises(RuntimeError, match="fell off"):
        said(scripted_model("abc", before=before))


def test_after_a_marker():
    script = after((1, 2), (7, 8), then=0)
    assert [script(ids) for ids in [(1, 2), (1, 2, 7), (1, 2, 7, 8), (1, 2, 9, 1, 2), (3,)]] == [7, 8, 0, 7, 0]


def test_every_byte_is_a_token():
    tokenizer = scripted_tokenizer()
    assert len(tokenizer.encode("é")) == 2
    assert tokenizer.decode(tokenizer.encode("a<|im_end|>b")) == "a<|im_end|>b"
    assert tokenizer.decode(tokenizer.encode("a<|im_end|>b"), skip_special=True) == "ab"
