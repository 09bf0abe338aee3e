"""What every run of the tests here does, whichever it collects."""

import gc
import os

# a second thread wins nothing beside another process of tests, and waits at full speed; numpy looks at this once
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_configure() -> None:
    """Collecting makes millions of objects and next to no garbage: looking for some takes a quarter of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What was collected lives to the end. Looked at again, each search for garbage would take a tenth of a second."""
    gc.enable()
    gc.freeze()
