"""Settings of the Hub, as huggingface_hub reads them: from the environment, once, when it is first imported.

Source: huggingface_hub, constants.py (HF_ENDPOINT, HF_HUB_OFFLINE, HF_HOME, HF_TOKEN_PATH, HF_HUB_DOWNLOAD_TIMEOUT) and
utils/_auth.py (`get_token`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import ModuleType

from hf2q.errors import AccessError, UsageError

DEFAULT_ENDPOINT = "https://huggingface.co"


def constants() -> ModuleType:
    """Those of huggingface_hub; nothing else imports it before. Errors: UsageError for numbers that are none."""
    # else it asks the hub, once a day, which programs to look for above this one (utils/_detect_agent.py); who sets it
    # to 0, or imported huggingface_hub before, has decided already
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        from huggingface_hub import constants as found
    except ValueError as error:  # constants.py, `_as_int`
        raise UsageError(
            f"a setting of the Hub cannot be read: {error}",
            hint="HF_HUB_DOWNLOAD_TIMEOUT and HF_HUB_ETAG_TIMEOUT take whole seconds",
        ) from error
    return found


def endpoint() -> str:
    """Address of the hub, without ``/`` at its end. Errors: UsageError for something else than an address."""
    found: str = constants().ENDPOINT
    if not re.fullmatch(r"https?://([\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?(/[^\s?#@]*)?", found):
        raise UsageError(f"HF_ENDPOINT is {found!r}, expected an address like {DEFAULT_ENDPOINT}")
    return found


def offline() -> bool:
    """Whether the network must not be used."""
    return bool(constants().HF_HUB_OFFLINE)


def token() -> str | None:
    """The user's token: the one that `get_token` finds, else that of a login with other settings or an old client.

    Never put it into a message. Errors: AccessError when a login that the user asked for does not succeed.
    """
    if constants().HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return None
    from huggingface_hub import get_token

    try:
        found = get_token()
    except (OSError, UnicodeDecodeError):  # a file that cannot be read; utils/_auth.py minds only one that is missing
        found = None
    except Exception as error:  # its errors about HF_OIDC_RESOURCE differ from version to version
        raise AccessError(
            f"no token for the Hub: {error}", hint="log in with `hf auth login`, or set HF_TOKEN"
        ) from error
    for text in (found or "", _read("~/.cache/huggingface/token"), _read("~/.huggingface/token")):
        if text and text.isascii() and text.isprintable():  # else it could not stand in a header
            return text
    return None


def timeout() -> float:
    """Seconds that a server may stay silent. Errors: UsageError."""
    seconds = float(constants().HF_HUB_DOWNLOAD_TIMEOUT)
    if not 0 < seconds < 1e6:
        raise UsageError(f"HF_HUB_DOWNLOAD_TIMEOUT is {seconds:g}, expected seconds")
    return seconds


def cache_folder() -> Path:
    """Where downloads are kept: ``hub`` in HF2Q_CACHE_DIR, else in hf2q's folder of the user's cache.

    Errors: UsageError when that needs a home folder and the user has none.
    """
    if own := os.environ.get("HF2Q_CACHE_DIR"):
        return Path(own).absolute() / "hub"
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).absolute() / "hf2q" / "hub"
    try:
        return Path.home() / ".cache" / "hf2q" / "hub"
    except RuntimeError:
        raise UsageError("there is no home folder for downloads", hint="HF2Q_CACHE_DIR names another place") from None


def _read(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, ValueError, RuntimeError):  # the last without a home
        return ""
