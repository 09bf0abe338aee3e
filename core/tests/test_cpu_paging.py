"""Pages of a mapped file that are brought in before somebody reads them."""

import mmap
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")

from hf2q.backends.cpu.memory import address
from hf2q.backends.cpu.paging import PIECE, POPULATE_READ, Paging

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux is asked for pages")


@pytest.fixture
def mapped(tmp_path):
    """A file of some pieces, mapped; no page of the mapping has been touched."""
    path = tmp_path / "file"
    path.write_bytes(bytes(3 * PIECE + 100))
    with path.open("rb") as file:
        yield np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)


def resident(array):
    """Bytes of the mapping that holds an array that are in the address space."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            begin, end = (int(part, 16) for part in head.split("-"))
            inside = begin <= address(array) < end
        elif inside and head == "Rss:":
            return int(line.split()[1]) * 1024
    raise AssertionError("the mapping is not there")


def test_all_that_was_asked_for_comes_in(mapped):
    page = mmap.mmap(-1, mmap.PAGESIZE)
    try:
        page.madvise(POPULATE_READ)
    except OSError as problem:
        pytest.skip(f"this kernel is older than Linux 5.14: MADV_POPULATE_READ gives {problem}")
    paging = Paging()
    half = len(mapped) // 2
    paging.ask(mapped[half:])
    paging.ask(mapped[:half])
    deadline = time.monotonic() + 30
    while resident(mapped) < len(mapped) and time.monotonic() < deadline:
        time.sleep(0.01)
    found = resident(mapped)
    paging.stop()
    assert found >= len(mapped)


def test_after_stopping_nothing_comes_in(mapped):
    paging = Paging()
    paging.ask(mapped[:1])
    paging.stop()
    paging.stop()
    before = resident(mapped)
    paging.ask(mapped)
    time.sleep(0.05)
    assert resident(mapped) == before
    assert paging._thread is None
