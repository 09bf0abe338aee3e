"""Several models in one server: which are in memory, who waits for whom, and who has to go."""

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

import pytest

from hf2q.errors import Hf2qError, LoadError, RequestError
from hf2q.serve.api.errors import HttpRefusal
from hf2q.serve.api.lease import Loaded
from hf2q.serve.api.pool import NoRoom, Pool, State
from hf2q.serve.api.registered import ModelFile
from hf2q.serve.api.service import Phase, Service


class Engine:
    """Just what a pool asks of one."""

    waiting = 0

    def __init__(self):
        self.failure = None
        self.closed = False

    def close(self, *, drain=True, timeout=None):
        self.closed = True
        return True


class Model:
    """The same of a model."""

    metadata = MappingProxyType({})
    name, arch, backend, context_length, task = "m", "scripted", "reference", 8, "generate"

    def close(self):
        pass


class Chat:
    def close(self):
        pass


class Loads:
    """A loader that waits for its gate, and remembers."""

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()
        self.ids = []
        self.faults = {}

    def __call__(self, file):
        self.ids.append(file.id)
        assert self.gate.wait(10)
        if file.id in self.faults:
            raise self.faults[file.id]
        return Loaded(Model()) if file.task == "embed" else Loaded(Model(), Engine(), Chat())


def make(names="abcd", *, nbytes=10, max_models=3, budget=None, loads=None, initial=False, **service):
    files = [ModelFile(id=name, path=Path(f"/models/{name}.gguf"), nbytes=nbytes, initial=initial) for name in names]
    loads = loads or Loads()
    return Service(Pool(files, loads, max_models=max_models, budget=budget), **service), loads


def get(service, name, *, evict=True):
    member = service.member(name)
    service.pool.load(member, evict=evict).result(10)
    return member


def states(service):
    return "".join(member.state.name[0] for member in service.pool.members)


def test_least_recently_used_goes_first():
    service, _ = make()
    for name in "abc":
        get(service, name)
    service.pool.lease(service.member("a")).close()
    get(service, "d")
    assert states(service) == "RERR"
    get(service, "b")
    assert states(service) == "RRER"


def test_a_leased_model_stays():
    service, _ = make("abcd", max_models=2)
    get(service, "a"), get(service, "b")
    held = service.pool.lease(service.member("a"))
    get(service, "c")  # though b was used later
    assert states(service) == "RERK"
    other = service.pool.lease(service.member("c"))
    with pytest.raises(NoRoom, match="all of which are in use") as caught:
        get(service, "d")
    assert "2 models" in caught.value.message
    assert states(service) == "RERK"  # as before
    other.close()
    other.close()  # twice is once
    get(service, "d")
    assert states(service) == "REER"
    held.close()
    get(service, "b")
    get(service, "c")
    assert states(service) == "ERRE"


def test_a_lease_that_is_forgotten_holds_nothing():
    service, _ = make("ab", max_models=1)
    lease = service.pool.lease(get(service, "a"))
    assert service.busy == 1
    del lease
    gc.collect()
    assert service.busy == 0
    get(service, "b")


def test_a_load_that_may_not_evict():
    service, loads = make("ab", max_models=1)
    get(service, "a")
    with pytest.raises(NoRoom, match="none is taken out for it"):
        get(service, "b", evict=False)
    assert (states(service), loads.ids) == ("RK", ["a"])


def test_the_budget_counts_bytes():
    service, loads = make("abcd", nbytes=40, budget=100)
    get(service, "a"), get(service, "b"), get(service, "c")
    assert states(service) == "ERRK"
    assert service.pool.nbytes == 80
    small, _ = make("a", nbytes=101, budget=100)
    with pytest.raises(LoadError, match="takes 101 bytes, more than the 100"):
        get(small, "a")
    assert small.member("a").state is State.FAILED
    assert loads.ids == ["a", "b", "c"]


def test_two_who_want_a_model_wait_for_one_load():
    service, loads = make("ab")
    loads.gate.clear()
    first = service.pool.load(service.member("a"), evict=True)
    with ThreadPoolExecutor(8) as threads:
        others = list(threads.map(lambda _: service.pool.load(service.member("a"), evict=True), range(8)))
    assert all(each is first for each in others)
    assert not first.cancel()  # none of them can call it off
    loads.gate.set()
    first.result(10)
    assert loads.ids == ["a"]
    assert service.pool.load(service.member("a"), evict=True).done()


def test_one_that_cannot_be_loaded_is_alone_with_it():
    loads = Loads()
    loads.faults["a"] = LoadError("/models/a.gguf is broken")
    service, _ = make("ab", loads=loads, initial=True)
    for job in service.start():
        job.exception(10)
    assert states(service) == "FR"
    assert service.phase is Phase.READY
    service.lease("b").close()
    with pytest.raises(HttpRefusal) as caught:
        service.lease("a")
    assert (caught.value.status, caught.value.code) == (503, "model_load_failed")
    assert "a is broken" in caught.value.message
    assert "/models" not in caught.value.message
    loads.faults.clear()
    get(service, "a", evict=False)  # asked for by name it is tried again
    service.lease("a").close()


def test_a_bug_in_loading_is_not_shown_to_clients():
    loads = Loads()
    loads.faults["a"] = RuntimeError("secret")
    service, _ = make("ab", loads=loads, on_demand=True)
    service.pool.load(service.member("a"), evict=True).exception(10)
    with pytest.raises(HttpRefusal) as caught:
        service.lease("a")
    assert "secret" not in caught.value.message


def test_a_broken_engine_is_not_swept_away():
    service, _ = make("ab", max_models=1, on_demand=True)
    get(service, "a").loaded.engine.failure = Hf2qError("device lost")
    assert service.phase is Phase.FAILED
    assert not service.readiness().ready
    with pytest.raises(HttpRefusal) as caught:
        service.lease("a")
    assert (caught.value.status, caught.value.headers) == (503, {"x-should-retry": "false"})
    with pytest.raises(NoRoom):
        get(service, "b")


def test_others_answer_while_one_engine_is_broken():
    service, _ = make("ab")
    get(service, "a").loaded.engine.failure = Hf2qError("device lost")
    get(service, "b")
    service.lease("b").close()
    assert not service.readiness().ready


def test_names():
    service, _ = make("ab", on_demand=True)
    with pytest.raises(HttpRefusal, match="'x' is not served here; this server has a, b") as caught:
        service.lease("x")
    assert (caught.value.status, caught.value.code, caught.value.param) == (404, "model_not_found", "model")
    get(service, "a")
    get(service, "b")
    service, _ = make("ab", initial=False)
    get(service, "a")
    with pytest.raises(HttpRefusal, match="'b' is not loaded") as caught:
        service.lease("b")
    assert (caught.value.status, caught.value.code) == (400, "model_not_loaded")


def test_an_alias_leases_its_model():
    files = [ModelFile(id="a", path=Path("a.gguf"), aliases=("gpt-4o",))]
    service = Service(Pool(files, Loads()))
    get(service, "gpt-4o")
    lease = service.lease("gpt-4o")
    assert lease.model_id == "a"
    lease.close()


def test_an_embedding_model_has_no_chat():
    files = [ModelFile(id="e", path=Path("e.gguf"), task="embed")]
    service = Service(Pool(files, Loads()))
    get(service, "e")
    lease = service.lease("e")
    assert lease.model
    for part in ("engine", "chat"):
        with pytest.raises(RequestError, match="embedding model") as caught:
            getattr(lease, part)
        assert caught.value.param == "model"
    assert service.engines() == {}
    lease.close()


def test_phases():
    service, loads = make("a", initial=True)
    loads.gate.clear()
    (job,) = service.start()
    assert service.phase is Phase.LOADING
    loads.gate.set()
    job.result(10)
    assert service.phase is Phase.READY
    service.stop()
    assert service.phase is Phase.STOPPING
    assert make("a", on_demand=True)[0].phase is Phase.READY  # there is nothing to wait for


def test_the_end_drops_what_waits_and_what_loads():
    service, loads = make("ab")
    loads.gate.clear()
    first, second = (service.pool.load(service.member(name), evict=True) for name in "ab")
    while not loads.ids:
        time.sleep(0.001)
    service.pool.close()
    with pytest.raises(LoadError, match="shutting down"):
        second.result(10)
    loads.gate.set()
    with pytest.raises(LoadError, match="shutting down"):
        first.result(10)
    assert service.pool.loaded == ()
    with pytest.raises(LoadError, match="shutting down"):
        service.pool.load(service.member("a"), evict=True)


def test_many_at_once():
    """Threads that lease and load at random: never more in memory than may be, never one gone that is held."""
    service, _ = make("abcdef", max_models=2, budget=25)
    wrong = []

    def work(seed):
        for step in range(12):
            member = service.member("abcdef"[(seed * 7 + step * (seed + 3)) % 6])
            if service.pool.load(member, evict=True).exception(10) is not None:
                continue
            lease = service.pool.lease(member)
            if lease is None:
                continue
            if len(service.pool.loaded) > 2 or lease._loaded.engine.closed:
                wrong.append(member.file.id)
            lease.close()
            if member.leases < 0:
                wrong.append("negative")

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    assert not wrong
    assert service.busy == 0
