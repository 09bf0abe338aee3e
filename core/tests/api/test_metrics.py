"""``GET /metrics``: what is counted, that the engine never waits for it, and that the docs have every name."""

import http.client
import re
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hf2q.serve.api import metric_table as table
from hf2q.serve.api.measuring import Measured
from hf2q.serve.observe import RequestEvent

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"


def scraped(site):
    """Samples by name and labels."""
    connection = http.client.HTTPConnection(*site.address, timeout=30)
    connection.request("GET", "/metrics")
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    assert response.status == 200
    assert response.getheader("content-type").startswith("text/plain; version=")
    assert response.getheader("cache-control") == "no-store"
    return samples(text)


def samples(text):
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def event(kind, **more):
    base = {"kind": kind, "request_id": "r", "slot": 0, "time": 1.0, "prompt_tokens": 120, "cached_tokens": 20}
    return RequestEvent(**base | more)


def test_what_a_chat_leaves_behind(running):
    with running() as site:
        before = scraped(site)
        assert before["hf2q_requests_total", "scripted"] == 0
        assert before["hf2q_chat_completions_started_total",] == 0
        status, _, answer = site.json("POST", "/v1/chat/completions", site.user("hello there"))
        assert status == 200
        site.json("POST", "/v1/chat/completions", site.user("x", temperature=9))
        site.json("GET", "/no/such/thing")
        site.wait_for(lambda: scraped(site).get(("hf2q_request_seconds_count", "finished", "scripted")))
        after = scraped(site)
    usage = answer["usage"]
    wanted = {
        ("hf2q_requests_total", "scripted"): 1,
        ("hf2q_requests_finished_total", "scripted"): 1,
        ("hf2q_prompt_tokens_total", "scripted"): usage["prompt_tokens"],
        ("hf2q_decode_tokens_total", "scripted"): usage["completion_tokens"],
        ("hf2q_model_loaded", "scripted"): 1,
        ("hf2q_pool_loaded_models",): 1,
        ("hf2q_ready",): 1,
        ("hf2q_chat_completions_started_total",): 2,
        ("hf2q_chat_completions_completed_total",): 1,
        ("hf2q_http_responses_total", "/v1/chat/completions", "200"): 1,
        ("hf2q_http_responses_total", "/v1/chat/completions", "400"): 1,
        ("hf2q_http_responses_total", "404", "other"): 1,
        ("hf2q_events_dropped_total",): 0,
        ("hf2q_http_requests_in_flight",): 1,
        ("hf2q_time_to_first_token_seconds_count", "scripted"): 1,
        ("hf2q_queue_seconds_count", "scripted"): 1,
        ("hf2q_inter_token_seconds_count", "scripted"): usage["completion_tokens"] - 1,
        ("hf2q_decode_tokens_per_second_count", "scripted"): 1,
    }
    assert {key: after.get(tuple(sorted_key(key))) for key in wanted} == wanted
    assert after["hf2q_uptime_seconds",] > 0
    assert sum(value for key, value in after.items() if key[0] == "hf2q_slots") == len(site.engine.stats().slots)


def sorted_key(key):
    return [key[0], *sorted(key[1:])]


def test_a_stream_that_is_left_is_counted(running):
    with running(lambda text: "x" * 3000, before=lambda rows, tokens: time.sleep(0.002)) as site:
        with site.connect("POST", "/v1/chat/completions", site.user("go", stream=True)) as sock:
            sock.recv(4096)
        site.wait_for(lambda: scraped(site)["hf2q_sse_cancellations_total",] == 1)
        site.wait_for(lambda: scraped(site)["hf2q_requests_cancelled_total", "scripted"] == 1)
        assert scraped(site)["hf2q_chat_completions_completed_total",] == 0


def test_paths_of_clients_make_no_labels(running):
    with running() as site:
        for number in range(20):
            site.raw("GET", f"/made/up/{number}")
            site.raw("GET", f"/v1/models/made-up-{number}")
        routes = {key for key in scraped(site) if key[0] == "hf2q_http_responses_total"}
    assert len(routes) <= 4, routes


def test_two_servers_count_apart(running):
    with running() as one, running() as other:
        one.json("POST", "/v1/chat/completions", one.user("hello"))
        assert scraped(one)["hf2q_requests_total", "scripted"] == 1
        assert scraped(other)["hf2q_requests_total", "scripted"] == 0


# ----------------------------------------------------------------------------------------------------------- histograms


@pytest.fixture
def measured():
    registry = CollectorRegistry()
    found = Measured(registry)
    found.read = lambda: samples(generate_latest(registry).decode())
    return found


def test_the_life_of_a_request(measured):
    for kind, more in (
        ("queued", {"slot": None}),
        ("started", {"queue_seconds": 2.0}),
        ("prefill", {"done_tokens": 70}),
        ("first_token", {"queue_seconds": 2.0, "prefill_seconds": 0.5, "generated": 1}),
        ("decoding", {"queue_seconds": 2.0, "prefill_seconds": 0.5, "decode_seconds": 0.4, "generated": 5}),
        ("finished", {"queue_seconds": 2.0, "prefill_seconds": 0.5, "decode_seconds": 1.4, "generated": 15}),
    ):
        measured.take("m", event(kind, **more))
    found = measured.read()
    assert found["hf2q_queue_seconds_sum", "m"] == 2.0
    assert found["hf2q_time_to_first_token_seconds_sum", "m"] == 2.5
    assert found["hf2q_prefill_tokens_per_second_sum", "m"] == 200.0  # 100 of its 120 tokens were new
    assert found["hf2q_inter_token_seconds_count", "m"] == 14
    assert found["hf2q_inter_token_seconds_sum", "m"] == pytest.approx(1.4)
    assert found["hf2q_decode_tokens_per_second_sum", "m"] == pytest.approx(10.0)
    assert found["hf2q_request_seconds_sum", "finished", "m"] == pytest.approx(3.9)


def test_ends_without_a_first_token(measured):
    measured.take("m", event("cancelled", slot=None, queue_seconds=1.0))
    measured.take("m", event("failed", queue_seconds=1.0, prefill_seconds=1.0))
    found = measured.read()
    assert found["hf2q_request_seconds_count", "cancelled", "m"] == 1
    assert found["hf2q_request_seconds_sum", "failed", "m"] == 2.0
    assert ("hf2q_decode_tokens_per_second_count", "m") not in found


def test_lost_ends_take_no_memory(measured):
    for number in range(10_000):
        measured.take("m", event("first_token", request_id=str(number), generated=1))
    assert len(measured._open) <= 4096


# ------------------------------------------------------------------------------------------------------------- the docs


def test_names_are_unique_and_regular():
    names = [metric.name for metric in table.METRICS]
    assert len(set(names)) == len(names)
    for metric in table.METRICS:
        assert re.fullmatch(r"hf2q_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")


def test_the_docs_have_the_table():
    page = DOCS.read_text(encoding="utf-8")
    found = re.search(r"<!-- generated: metrics -->\n(.*?)<!-- end -->", page, re.DOTALL)
    assert found, "the page has no place for the table"
    assert found[1] == table.markdown(), ".ci/reference.py writes it"


def test_every_name_is_served(running):
    with running() as site:
        site.json("POST", "/v1/chat/completions", site.user("hello"))
        text = site.raw("GET", "/metrics").decode()
    for metric in table.METRICS:
        assert f"# TYPE {metric.name} {metric.kind}" in text
