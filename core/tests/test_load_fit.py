"""Does a model fit: what is counted, what is refused with which numbers, and how much memory there is."""

import json
import logging

import numpy as np
import pytest

from hf2q.backends import memory
from hf2q.backends.memory import available_memory
from hf2q.backends.reference import ReferenceOps
from hf2q.backends.weights import ArraySource
from hf2q.builtin import hf2q_quant_codecs
from hf2q.cli.logs import JsonFormatter
from hf2q.errors import LoadError
from hf2q.serve.fit import IGNORE, Needs, check_fits, estimate
from hf2q.serve.loaded import announce
from hf2q.types import GraphEntry

CODECS = {codec.name: codec for codec in hf2q_quant_codecs()}


class HParams:
    """Two blocks, the second of MTP."""

    layer_kinds = ("full", "mtp")


def caches(hparams, tokens):
    return 100 * tokens


def needs(entry, **more):
    source = ArraySource(
        {"a": np.ones((3, 5)), "blk.0.norm": np.ones(7), "blk.1.w": np.ones((2, 4)), "blk.10.w": np.ones((1, 1))}
    )
    return estimate(source, HParams(), entry, CODECS.__getitem__, ReferenceOps(threads=1), **more)


def test_weights_and_caches_are_counted():
    plain = GraphEntry(arch="x", graph="")
    assert needs(plain, tokens=10) == Needs(weights=4 * (15 + 7 + 1), caches=None, tokens=10)
    assert needs(plain, tokens=10, draft=True).weights == 4 * (15 + 7 + 8 + 1)
    told = needs(GraphEntry(arch="x", graph="", cache_bytes=f"{__name__}:caches"), tokens=10)
    assert (told.caches, told.total) == (1000, 92 + 1000)


def test_what_does_not_fit_is_refused_with_numbers(monkeypatch):
    monkeypatch.delenv(IGNORE, raising=False)
    found = Needs(weights=3_000_000_000, caches=1_500_000_000, tokens=8192)
    check_fits("m.gguf", found, 4_500_000_000, "cpu", ignore=False)
    check_fits("m.gguf", found, None, "cpu", ignore=False)
    with pytest.raises(LoadError, match=r"takes 4\.50 GB on the backend cpu \(weights 3\.00 GB, caches for 8192") as e:
        check_fits("m.gguf", found, 4_499_999_999, "cpu", ignore=False)
    assert "4.50 GB are available" in e.value.message
    assert "--ignore-memory" in e.value.hint
    check_fits("m.gguf", found, 1, "cpu", ignore=True)
    monkeypatch.setenv(IGNORE, "1")
    check_fits("m.gguf", found, 1, "cpu", ignore=False)
    monkeypatch.setenv(IGNORE, "0")
    with pytest.raises(LoadError):
        check_fits("m.gguf", Needs(weights=2, caches=None, tokens=1), 1, "cpu", ignore=False)


def write(folder, **files):
    folder.mkdir(exist_ok=True, parents=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_available_memory_is_the_least_that_the_system_says(tmp_path, monkeypatch):
    monkeypatch.setattr(memory.sys, "platform", "linux")
    info = tmp_path / "meminfo"
    info.write_text("MemTotal:  900 kB\nMemAvailable:   500 kB\n")
    none = tmp_path / "none"
    assert available_memory(info, none) == 512_000
    assert available_memory(none, none) is None
    second = write(
        tmp_path / "2", memory__max="300000\n", memory__current="200000\n", memory__stat="inactive_file 5000\n"
    )
    assert available_memory(info, second) == 105_000
    write(second, memory__max="max\n")
    assert available_memory(info, second) == 512_000
    write(second, memory__max="100000\n")
    assert available_memory(info, second) == 0
    first = tmp_path / "1"
    write(
        first / "memory",
        memory__limit_in_bytes="400000\n",
        memory__usage_in_bytes="100000\n",
        memory__stat="total_inactive_file 1\n",
    )
    assert available_memory(info, first) == 300_001
    (first / "memory" / "memory.stat").write_text("nonsense\n")
    assert available_memory(info, first) == 512_000


def test_the_event_is_text_for_people_and_fields_for_programs(caplog):
    fields = {
        "path": "m.gguf",
        "arch": "toy",
        "backend": "cpu",
        "instructions": "avx2",
        "file_bytes": 2_000_000,
        "memory_bytes": 3_000_000,
        "context": 64,
        "cache_tokens": 64,
        "cache_bytes": None,
        "seconds": 0.5,
    }
    with caplog.at_level(logging.INFO):
        announce(fields)
    (record,) = caplog.records
    assert record.getMessage() == (
        "loaded m.gguf (toy) on cpu (avx2): 2.0 MB in the file, 3.0 MB in memory, context 64, 0.5 s"
    )
    told = json.loads(JsonFormatter().format(record))
    assert told["event"] == "loaded"
    assert fields.items() <= told.items()
