"""A headless browser for tests of the page: Debian's chromium, driven by playwright. Without one they are skipped."""

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = (
    "--no-sandbox",  # it runs as root in containers
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
)


def program():
    """Where the browser is. `HF2Q_TEST_BROWSER` names another; skips the test when there is none."""
    given = os.environ.get("HF2Q_TEST_BROWSER")
    found = given or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("there is no chromium; on Debian: apt-get install chromium")
    return found


def browser():
    """Yields a running browser."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=program(), args=QUIET)
        except api.Error as error:
            pytest.skip(f"the browser does not start: {str(error).splitlines()[0]}")
        yield started
        started.close()
