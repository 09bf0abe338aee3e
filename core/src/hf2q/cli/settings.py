"""The options that every command takes, wherever they stand on the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hf2q.errors import UsageError

LEVELS = ("debug", "info", "warn", "error")
FORMATS = ("text", "json")
HELP = """\
Options of every command:

  -v, -vv, -vvv         say more: info, debug, where an error was raised
  --log-level LEVEL     debug, info, warn or error; wins over -v
  --log-format FORMAT   text or json: one object a line on stderr
  --plugins NAMES       load only these besides hf2q's own (HF2Q_PLUGINS)
  --strict-plugins      a plugin that does not load is an error
  --version             print the version and exit

A value that looks like one of these is written --option=VALUE.
Plugins may add commands; `hf2q plugins` lists them.
"""


@dataclass(frozen=True)
class Settings:
    """What the common options say. `plugins` is None when not limited."""

    verbose: int = 0
    log_level: str | None = None
    log_format: str = "text"
    plugins: str | None = None
    strict_plugins: bool = False
    version: bool = False


def split(words: Sequence[str]) -> tuple[Settings, list[str]]:
    """Take the common options out of the arguments; what follows ``--`` is left alone.

    Errors: UsageError for an option without its value, or a value that is not one of those allowed.
    """
    values: dict[str, str] = {}
    verbose, strict, version = 0, False, False
    rest: list[str] = []
    waiting = iter(words)
    for word in waiting:
        name, equals, value = word.partition("=")
        if word == "--":
            rest += [word, *waiting]
        elif re.fullmatch("-v+", word):
            verbose += len(word) - 1
        elif word == "--verbose":
            verbose += 1
        elif word == "--strict-plugins":
            strict = True
        elif word == "--version" and not rest:
            version = True
        elif name in ("--log-level", "--log-format", "--plugins"):
            values[name] = value if equals else _next(waiting, name)
        else:
            rest.append(word)
    if not values.get("--plugins", "x").strip(" ,"):
        raise UsageError("--plugins names no plugin", hint="hf2q plugins lists them; leave the option out for all")
    settings = Settings(
        verbose=verbose,
        log_level=_one_of(values, "--log-level", LEVELS),
        log_format=_one_of(values, "--log-format", FORMATS) or "text",
        plugins=values.get("--plugins"),
        strict_plugins=strict,
        version=version,
    )
    return settings, rest


@contextmanager
def plugin_environment(settings: Settings) -> Iterator[None]:
    """Make the plugin options hold for `Plugins.load` here and in child processes, as the variables they stand for."""
    wanted = {}
    if settings.plugins is not None:
        wanted["HF2Q_PLUGINS"] = settings.plugins
    if settings.strict_plugins:
        wanted["HF2Q_STRICT_PLUGINS"] = "1"
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _next(waiting: Iterator[str], name: str) -> str:
    value = next(waiting, None)
    if value is None:
        raise UsageError(f"{name} needs a value", hint="hf2q --help")
    return value


def _one_of(values: dict[str, str], name: str, allowed: tuple[str, ...]) -> str | None:
    value = values.get(name)
    if value is not None and value not in allowed:
        raise UsageError(f"{name} is {value!r}, expected one of {', '.join(allowed)}", hint="hf2q --help")
    return value
