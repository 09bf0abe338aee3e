"""What goes wrong around a server: workers that are stuck or die, logs that cannot be written, slow readers."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from processes import ask, get, post, said, server


def frames(body):
    """The JSON frames of a stream, and whether it ended as it should."""
    lines = [line[6:] for line in body.lstrip().split("\n\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"], "[DONE]" in lines


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_a_stuck_worker_ends_each_request_once_and_stays_out(tmp_path):
    block = tmp_path / "block"
    with server(block=str(block), step=0.005, deadline=0.5, models=["scripted"]) as process:
        streams = [post(process, stream=True).getresponse() for _ in range(3)]
        for each in streams:
            each.readline()
        unary = [post(process), post(process)]
        block.touch()
        for each in streams:
            found, done = frames(each.read().decode())
            ends = [f for f in found if "error" in f or (f["choices"] and f["choices"][0]["finish_reason"])]
            assert len(ends) == 1
            assert "stuck" in ends[0]["error"]["message"]
            assert not done
        assert {each.getresponse().status for each in unary} == {500}
        assert get(process, "/health").status == 200
        assert get(process, "/readyz").status == 503
        refused = post(process).getresponse()
        assert (refused.status, refused.headers["x-should-retry"]) == (503, "false")
        state = json.loads(get(process, "/hf2q/v1/runtime").read())
        assert (state["ready"], state["models"][0]["state"], state["models"][0]["leases"]) == (False, "failed", 0)
        # its thread never comes back, and does not keep the process
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def test_a_child_that_is_killed_is_replaced_and_the_port_stays_open():
    with server(supervise=True, step=0.02) as process:
        first = json.loads(get(process, "/hf2q/v1/runtime").read())
        assert first["supervised"]
        streams = [post(process, stream=True).getresponse() for _ in range(4)]
        for each in streams:
            each.readline()
        os.kill(first["pid"], signal.SIGKILL)
        for each in streams:
            with _broken():
                assert b"[DONE]" not in each.read()
        # nobody is refused meanwhile: a request waits until there is somebody again
        deadline = time.monotonic() + 60
        while (answer := post(process).getresponse()).status != 200:
            assert answer.status == 503
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert json.loads(get(process, "/hf2q/v1/runtime").read())["pid"] != first["pid"]
        said(process, "the server was ended by SIGKILL")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


class _broken:
    """A response whose connection may end in the middle."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        import http.client

        return kind is not None and issubclass(kind, OSError | http.client.HTTPException)


def test_a_broken_engine_is_replaced_by_the_supervisor(tmp_path):
    block = tmp_path / "block"
    with server(supervise=True, block=str(block), deadline=0.3, step=0.002) as process:
        stream = post(process, stream=True).getresponse()
        stream.readline()
        block.touch()
        found, done = frames(stream.read().decode())
        assert "stuck" in found[-1]["error"]["message"]
        assert not done
        block.unlink()
        said(process, "has a broken engine")
        said(process, "ready", count=2)
        assert post(process).getresponse().status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0


def test_a_supervisor_passes_signals_on_once():
    with server(supervise=True, step=0.01) as process:
        response = post(process, stream=True).getresponse()
        response.readline()
        process.send_signal(signal.SIGINT)
        assert response.read().decode().endswith("data: [DONE]\n\n")
        assert process.wait(timeout=60) == 0
        assert not [line for line in process.lines if "starting it again" in line]
        with pytest.raises(ConnectionRefusedError):
            get(process, "/health")


def test_a_child_does_not_outlive_its_supervisor():
    with server(supervise=True) as process:
        pid = json.loads(get(process, "/hf2q/v1/runtime").read())["pid"]
        process.kill()
        process.wait()

        def gone():
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return True
            return False

        wait_until(gone)


def test_a_start_that_fails_is_not_tried_again():
    with server(supervise=True, fault="load", wait=False) as process:
        assert process.wait(timeout=60) == 1
        assert process.stderr.read().count("the file is broken") == 1


def test_a_clean_end_is_not_taken_for_a_crash():
    with server(supervise=True) as process:
        assert ask(process, "POST", "/shutdown").getresponse().status == 202
        assert process.wait(timeout=60) == 0
        assert not [line for line in process.lines if "starting it again" in line]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_log_that_cannot_be_written_breaks_nothing():
    with Path("/dev/full").open("w") as full, server(stderr=full, log="json") as process:
        for _ in range(3):
            assert post(process).getresponse().status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def test_a_log_without_a_reader_breaks_nothing():
    with server(log="text") as process:
        process.stderr.close()
        for _ in range(3):
            assert post(process).getresponse().status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def test_lines_of_the_log():
    with server(log="json", settings={"keys": []}) as process:
        post(process, stream=True).getresponse().read()
        ask(process, "POST", "/v1/chat/completions", b"{}", {"content-type": "application/json"}).getresponse().read()
        get(process, "/health").read()
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        lines = [json.loads(line) for line in process.stderr.read().splitlines()]
    told = [line for line in lines if line.get("event") == "request"]
    assert [(line["status"], line["stream"], line["complete"]) for line in told] == [
        (200, True, True),
        (400, False, True),
    ]
    good, bad = told
    assert good["model"] == "scripted"
    assert good["prompt_tokens"] == good["cached_tokens"] + good["new_tokens"] > 0
    assert (good["generated_tokens"], good["finish_reason"]) == (51, "stop")
    assert 0 <= good["first_token_seconds"] <= good["seconds"]
    assert good["decode_rate"] > 0
    assert bad["model"] is None
    assert bad["code"] == "missing_required_parameter"
    assert not any("hi" in line["message"].split() for line in told)
