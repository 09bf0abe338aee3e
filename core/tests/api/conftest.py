"""Fixtures over `sites`."""

import pytest
from sites import serving
from tool_models import TOOLS, with_tools


@pytest.fixture(scope="session")
def site():
    """A server that all tests share."""
    with serving() as found:
        yield found


@pytest.fixture(scope="session")
def running():
    """Makes servers of a test's own; a context manager, see `serving`."""
    return serving


@pytest.fixture(scope="session")
def caller():
    """A server over a model that can call tools; it still says what the user said last."""
    with serving(chat_template=TOOLS, change=with_tools) as found:
        yield found
