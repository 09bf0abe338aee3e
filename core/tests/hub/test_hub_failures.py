"""What goes wrong on the way: one clear error each, what has arrived is kept, and nothing wrong is ever converted."""

import errno
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple

import pytest
from huggingface_hub import constants

from hf2q.errors import AccessError, HubError, MissingFileError, WriteError
from hf2q.hub import client, transfer
from hf2q.hub.reference import parse_reference
from hf2q.hub.repository import open_repository

REPO = "Org/Tiny-1.5B"
WEIGHTS = random.Random(0).randbytes(3 << 20)
FILES = {"config.json": b'{"a": 1}', "README.md": b"# Tiny\n", "model.safetensors": WEIGHTS}


@pytest.fixture
def repo(hub):
    hub.commit(REPO, FILES)
    return hub


def take(*paths, **options):
    opened = open_repository(parse_reference(REPO), **options)
    folder = opened.take(paths or tuple(FILES))
    return {path: (folder / path).read_bytes() for path in paths or FILES}


def parts(tmp_path):
    return sorted((tmp_path / "cache").rglob("*.part"))


def only_the_truth(tmp_path):
    """No content lies under the name of a digest that it does not have."""
    found = {path.read_bytes() for path in (tmp_path / "cache").glob("hub/*/contents/*[0-9a-f]") if path.is_file()}
    return found <= set(FILES.values())


# ------------------------------------------------------------------------------------------------------- interrupted


@pytest.mark.parametrize("after", [0, 1, 1 << 20, 2_000_000, len(WEIGHTS) - 1])
def test_a_broken_connection_is_resumed(repo, after, tmp_path):
    repo.cut("GET .*/model.safetensors.signature", after)
    assert take() == FILES
    asked = [one.headers.get("range") for one in repo.requests("GET .*signature") if one.away]
    assert asked == [None, f"bytes={after}-" if after else None]
    assert not parts(tmp_path)


def test_a_server_that_knows_no_ranges_begins_anew(repo):
    repo.ranges = False
    repo.cut("GET .*/model.safetensors.signature", 1 << 20)
    assert take() == FILES


def test_a_connection_that_always_breaks_early_ends_the_run_but_not_what_is_there(repo, tmp_path):
    repo.cut("GET .*/model.safetensors.signature", 1000, times=5)
    with pytest.raises(HubError, match=r"ended after 5,000 of 3,145,728 bytes \(tried 5 times\)"):
        take()
    assert [path.stat().st_size for path in parts(tmp_path)] == [5000]
    assert take() == FILES
    assert [one.headers.get("range") for one in repo.requests("GET .*signature") if one.away][-1] == "bytes=5000-"


def test_a_part_that_is_wrong_is_found_and_replaced(repo, tmp_path):
    repo.cut("GET .*/model.safetensors.signature", 1000, times=5)
    with pytest.raises(HubError):
        take()
    (part,) = parts(tmp_path)
    part.write_bytes(b"\0" * 2000)
    assert take() == FILES


def test_a_part_longer_than_the_file_is_dropped(repo, tmp_path):
    repo.cut("GET .*/model.safetensors.signature", 1000, times=5)
    with pytest.raises(HubError):
        take()
    (part,) = parts(tmp_path)
    part.write_bytes(WEIGHTS + b"more")
    assert take() == FILES


def test_killed_at_any_point_a_rerun_resumes(repo, tmp_path):
    repo.order("GET .*signature", slowly, times=2)
    code = (
        "import sys; from hf2q.hub.reference import parse_reference; from hf2q.hub.repository import open_repository\n"
        f"open_repository(parse_reference({REPO!r})).take(['model.safetensors'])"
    )
    sizes = []
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", code], env=os.environ)
        before = sizes[-1] if sizes else 0
        while not any(part.stat().st_size > before for part in parts(tmp_path)):
            assert process.poll() is None
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        sizes += [part.stat().st_size for part in parts(tmp_path)]
        assert only_the_truth(tmp_path)
    assert 0 < sizes[0] < sizes[1] < len(WEIGHTS)
    assert take("model.safetensors")["model.safetensors"] == WEIGHTS
    last = [one.headers.get("range") for one in repo.requests("GET .*signature") if one.away][-1]
    assert last == f"bytes={sizes[1]}-"


def slowly(handler):
    if not handler.away:
        return False
    start = int((re.match(r"bytes=(\d+)", handler.headers.get("Range") or "bytes=0") or [0, 0])[1])
    handler.send_response(206 if start else 200)
    handler.send_header("Content-Length", str(len(WEIGHTS) - start))
    handler.send_header("Content-Range", f"bytes {start}-{len(WEIGHTS) - 1}/{len(WEIGHTS)}")
    handler.end_headers()
    handler.wfile.write(WEIGHTS[start : start + (1 << 20)])
    handler.wfile.flush()
    time.sleep(20)
    return True


# ------------------------------------------------------------------------------------------------------- wrong bytes


@pytest.mark.parametrize("path", list(FILES))
@pytest.mark.parametrize("wrong", ["flipped", "short", "long"])
def test_wrong_bytes_are_refused_twice_and_then_for_good(repo, path, wrong, tmp_path):
    data = bytearray(FILES[path])
    data[len(data) // 2] ^= 1
    body = {"flipped": bytes(data), "short": FILES[path][:-1], "long": FILES[path] + b"!"}[wrong]
    repo.order(f"GET .*resolve/.*/{path}", lambda handler: handler.answer(200, body, {}))
    with pytest.raises(
        HubError, match=rf"{re.escape(path)} is not what the hub announced: expected \S.*, found \S.*2 t"
    ):
        take()
    assert len(repo.requests(f"GET .*resolve/.*/{path}")) == 2
    assert not [part for part in parts(tmp_path) if part.stat().st_size == len(body)]
    assert only_the_truth(tmp_path)


def test_wrong_bytes_once_are_taken_again(repo):
    wrong = bytes(len(WEIGHTS))
    repo.order("GET .*signature", lambda handler: handler.answer(200, wrong, {}), times=1)
    assert take() == FILES


def test_a_file_damaged_later_is_found_and_taken_again(repo, tmp_path):
    take()
    (content,) = (p for p in (tmp_path / "cache").rglob("sha256-*") if p.stat().st_size == len(WEIGHTS))
    with content.open("r+b") as file:
        file.write(b"\xff")
    repo.seen.clear()
    assert take() == FILES
    assert len(repo.requests("GET .*resolve")) == 1


@pytest.mark.parametrize("metadata", ["siblings", "head"])
def test_digests_may_be_told_in_either_of_two_places(repo, metadata):
    repo.metadata = metadata
    assert take() == FILES


def test_what_cannot_be_verified_is_refused(repo, tmp_path):
    repo.metadata = "nowhere"
    with pytest.raises(HubError, match=r"gives no size or digest for README\.md, config\.json, model\.safetensors"):
        take()
    assert not repo.requests("GET .*resolve")


def test_statements_that_contradict_each_other_are_refused(repo):
    repo.order("HEAD .*model", lambda h: h.answer(200, b"", {"X-Linked-ETag": '"' + "0" * 64 + '"'}))
    with pytest.raises(HubError, match="the hub says that sha256 of model"):
        take()


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_another_commit_is_refused(repo, method, tmp_path):
    other = {"X-Repo-Commit": "f" * 40}
    repo.order(f"{method} .*config.json", lambda handler: handler.answer(200, FILES["config.json"], other))
    with pytest.raises(HubError, match=r"config.json: asked for commit \w{40}, the hub answers with f{40}"):
        take()
    assert only_the_truth(tmp_path)


def test_a_commit_that_is_answered_with_another_is_refused(repo):
    repo.order(
        "/api/models/.*/revision", lambda handler: handler.json({"id": REPO, "sha": "f" * 40, "siblings": []}) or True
    )
    with pytest.raises(HubError, match=r"the hub answers with f{40}"):
        open_repository(parse_reference(REPO, "a" * 40))


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/etc/evil", "", "a//b", "a/./b", "nul\0"])
def test_names_that_leave_the_repository_are_refused(repo, name):
    hub_files = {"config.json": b"{}", name: b"x"}
    repo.commit(REPO, hub_files)
    with pytest.raises(HubError, match="expected a name inside the repository"):
        open_repository(parse_reference(REPO))


@pytest.mark.parametrize("name", ["a\\b.json", "new\nline.json", "c:x.json", "x" * 300])
def test_names_that_are_none_are_not_taken(repo, name):
    repo.commit(REPO, {"config.json": b"{}", name: b"x"})
    with pytest.raises(HubError, match="which is no name for a file"):
        open_repository(parse_reference(REPO)).take([name])


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"sha": 1}', b'{"sha": "main"}', b'{"sha": "x", "sha": "y"}'])
def test_answers_that_make_no_sense_are_refused(repo, body):
    repo.order("/api/models", lambda handler: handler.answer(200, body, {}))
    with pytest.raises(HubError):
        open_repository(parse_reference(REPO))


# ---------------------------------------------------------------------------------------------------- who may, where


def test_the_token_goes_to_the_hub_and_nowhere_else(repo, monkeypatch):
    repo.token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret\n")
    assert take() == FILES
    assert {one.away for one in repo.seen} == {True, False}
    for one in repo.seen:
        assert one.headers.get("authorization") == (None if one.away else "Bearer hf_secret")


@pytest.mark.parametrize("token", [None, "hf_wrong"])
def test_401(repo, token, monkeypatch):
    repo.token = "hf_secret"
    if token:
        monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", token)
    with pytest.raises(AccessError, match="401") as caught:
        take()
    assert "hf auth login" in caught.value.hint
    assert "hf_" not in caught.value.message
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("where", ["/api/", "HEAD .*resolve", "GET .*resolve"])
def test_403_says_to_accept_the_licence(repo, where):
    repo.fail(where, 403, headers={"X-Error-Code": "GatedRepo"})
    with pytest.raises(AccessError, match="gated") as caught:
        take()
    assert f"accept its licence on {repo.endpoint}/{REPO}" in caught.value.hint
    assert "hf auth login" in caught.value.hint


def test_a_disabled_repository_is_not_taken_for_a_gated_one(repo):
    repo.fail("/api/", 403, headers={"X-Error-Message": "Access to this resource is disabled."})
    with pytest.raises(AccessError, match=rf"has disabled {REPO}"):
        take()


@pytest.mark.parametrize("coded", [True, False])
def test_404_tells_repository_revision_and_file_apart(repo, coded):
    if not coded:  # a mirror that gives no codes
        repo.order("/api/models/No/where", lambda h: h.answer(404, b"", {}))
        repo.order("/revision/nope", lambda h: h.answer(404, b"", {}))
    with pytest.raises(MissingFileError, match=r"no repository No/where .* and no directory of that name"):
        open_repository(parse_reference("No/where"))
    with pytest.raises(MissingFileError, match=rf"{REPO} has no revision nope"):
        open_repository(parse_reference(REPO, "nope"))
    with pytest.raises(MissingFileError, match=rf"{REPO} has no revision abcdef12"):
        open_repository(parse_reference(REPO, "abcdef12"))
    with pytest.raises(MissingFileError, match=rf"{REPO} at \w+ has no file other.safetensors"):
        open_repository(parse_reference(REPO)).take(["other.safetensors"])
    repo.fail("HEAD .*config.json", 404)
    with pytest.raises(MissingFileError, match=rf"{REPO} has no file config.json at"):
        take()


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_passing_trouble_is_waited_out(repo, status):
    repo.fail("GET .*(/api/|resolve)", status, times=4)
    assert take() == FILES


def test_lasting_trouble_ends_the_run(repo):
    repo.fail("/api/", 503)
    with pytest.raises(HubError, match=r"answered 503 \(tried 5 times\)"):
        take()
    assert len(repo.seen) == 5


@pytest.fixture
def pauses(monkeypatch):
    """How long was waited."""
    made = []
    init = client.Client.__init__

    def with_pause(self, *args):
        init(self, *args)
        self.pause = made.append

    monkeypatch.setattr(client.Client, "__init__", with_pause)
    return made


@pytest.mark.parametrize("headers", [{"Retry-After": "7"}, {"RateLimit": '"api";r=0;t=7'}])
def test_a_server_is_given_the_time_that_it_asks_for(repo, pauses, headers):
    repo.fail("/api/", 429, times=2, headers=headers)
    assert take() == FILES
    assert pauses == [7.0, 7.0]


def test_a_date_to_wait_for(repo, pauses):
    when = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 60))
    repo.fail("/api/", 503, times=1, headers={"Retry-After": when})
    assert take() == FILES
    assert 50 < pauses[0] <= 60


def test_a_server_that_asks_for_an_hour_does_not_get_it(repo, pauses):
    repo.fail("/api/", 429, headers={"Retry-After": "3600"})
    with pytest.raises(HubError, match="answered 429 and asks to wait 3600 s"):
        take()
    assert pauses == []


def test_a_server_that_stays_silent(repo, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.05)
    repo.order("/api/", lambda handler: time.sleep(0.3) or True)
    with pytest.raises(HubError, match=r"no answer in time \(tried 5 times\)"):
        take()


def test_a_server_that_stays_silent_about_commits(repo, monkeypatch):
    """The list of commits is asked for an abbreviated one only."""
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    repo.order("/commits/", lambda handler: time.sleep(0.5) or True)
    with pytest.raises(HubError, match=r"no answer in time \(tried 5 times\)"):
        open_repository(parse_reference(REPO, "abcdef12"))


def test_a_list_of_commits_goes_on_with_the_hub_only(repo):
    commit = repo.refs[REPO]["main"]
    link = {"Link": f'<{repo.cdn}/more>; rel="next"'}
    repo.order("/commits/", lambda handler: handler.json([{"id": "f" * 40}], link) or True)
    with pytest.raises(HubError, match=r"continues a list at .* which is not trusted"):
        open_repository(parse_reference(REPO, commit[:8]))
    assert not [one for one in repo.seen if one.away]


def test_nobody_listens(setting):
    setting(HF_ENDPOINT="http://127.0.0.1:9")
    with pytest.raises(HubError, match=r"http://127.0.0.1:9/api/\S+ cannot be reached: Connection refused"):
        take()


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://x/y", "/api/models/Org/Tiny-1.5B/revision/main"])
def test_redirects_that_lead_nowhere(repo, target):
    repo.fail("/api/", 302, headers={"Location": target})
    with pytest.raises(HubError, match=r"unsupported protocol|maximum allowed redirects"):
        take()


# --------------------------------------------------------------------------------------------------------------- disk


def test_no_room_is_said_before_anything_comes(repo, monkeypatch, tmp_path):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 1_000_000))
    with pytest.raises(WriteError, match=r"needs 3,145,743 bytes, \S+/contents has 1,000,000 free"):
        take()
    assert not repo.requests("GET .*resolve")


def test_a_disk_that_fills_up_keeps_what_is_there(repo, monkeypatch, tmp_path):
    receive = transfer.Digest.update
    monkeypatch.setattr(
        transfer.Digest,
        "update",
        lambda self, data: full(tmp_path) if self.size >= 1 << 20 else receive(self, data),
    )
    with pytest.raises(WriteError, match="cannot be written: No space left"):
        take()
    monkeypatch.setattr(transfer.Digest, "update", receive)
    assert parts(tmp_path)
    assert take() == FILES


def full(path):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_a_cache_that_cannot_be_written(repo, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HF2Q_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(WriteError, match="Not a directory"):
        take()


def test_what_is_going_on_is_told(repo):
    told = []
    take(progress=lambda path, done, total: told.append((done, total)))
    assert told[-1] == (len(WEIGHTS) + 15, len(WEIGHTS) + 15)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_the_same_contents_under_two_names_come_once(repo):
    files = {"config.json": b"{}", "a.safetensors": WEIGHTS, "b.safetensors": WEIGHTS}
    repo.commit(REPO, files)
    assert take(*files) == files
    assert len(repo.requests("GET .*resolve.*safetensors")) == 1


# ------------------------------------------------------------------------------------------------------------ offline


def test_offline_uses_what_is_here(repo, setting):
    commit = repo.refs[REPO]["main"]
    take()
    setting(HF_HUB_OFFLINE="1", HF_ENDPOINT="http://127.0.0.1:9")
    assert take() == FILES
    for revision in ("main", commit, commit[:7]):
        assert open_repository(parse_reference(REPO, revision)).listing.commit == commit


def test_offline_says_what_is_missing(repo, setting):
    take("config.json")
    setting(HF_HUB_OFFLINE="1")
    repo.seen.clear()
    with pytest.raises(MissingFileError, match=r"2 files of .* not here: README\.md, model\.safetensors"):
        take()
    with pytest.raises(MissingFileError, match=r"OFFLINE forbids asking for Org/Tiny-1.5B at v2"):
        open_repository(parse_reference(REPO, "v2"))
    assert not repo.seen


def test_files_of_two_commits_do_not_mix(repo):
    old = repo.refs[REPO]["main"]
    take()
    repo.commit(REPO, {**FILES, "config.json": b'{"a": 2}'})
    assert take()["config.json"] == b'{"a": 2}'
    assert (
        open_repository(parse_reference(REPO, old)).take(["config.json"]).joinpath("config.json").read_bytes()
        == (FILES["config.json"])
    )
    assert len(repo.requests("GET .*resolve.*safetensors")) == 1, "what both have is there once"
