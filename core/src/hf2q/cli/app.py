"""The command table and how a command line reaches its command.

Commands are import strings: the help page imports none of them. A word that is not one of core's commands is looked
up among those that plugins provide; only then are plugins imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import FunctionType
from typing import get_type_hints

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from hf2q import __version__
from hf2q.cli import logs
from hf2q.cli.settings import HELP, plugin_environment, split
from hf2q.errors import PluginLoadError, UnknownNameError, UsageError, listing

COMMANDS = (
    ("convert", "hf2q.cli.convert:command", "Convert a checkpoint or a GGUF file to a quantized one."),
    ("verify", "hf2q.cli.verify:command", "Make a GGUF file again from its source, and compare every byte."),
    ("info", "hf2q.cli.info:command", "Show what is in a GGUF file or a checkpoint."),
    ("diff", "hf2q.cli.diff:command", "Compare two GGUF files, metadata and tensors."),
    ("gguf-patch", "hf2q.cli.gguf_patch:command", "Change the metadata of a GGUF file."),
    ("imatrix", "hf2q.cli.imatrix:app", "Compute, show, compare and convert importance matrices."),
    ("generate", "hf2q.cli.generate:command", "Continue a prompt with a model file."),
    ("embed", "hf2q.cli.embed:command", "Turn texts into vectors with an embedding model."),
    ("bench", "hf2q.cli.bench:command", "Measure how fast a model file runs here."),
    ("ppl", "hf2q.cli.ppl:command", "Measure how surprised a model file is by a text."),
    ("kld", "hf2q.cli.kld:command", "Measure how far a file's predictions are from another's."),
    ("cosine", "hf2q.cli.cosine:command", "Measure how near a file's weights are to those of its source."),
    ("quality", "hf2q.cli.quality:command", "Judge a file by the quality bounds of its family."),
    ("parity", "hf2q.cli.parity:command", "Compare a file's answers with those that were recorded."),
    ("smoke", "hf2q.cli.smoke:command", "Convert a checkpoint of a family, and see that it answers."),
    ("report", "hf2q.cli.report:command", "Report what quantized files cost against their source."),
    ("serve", "hf2q.cli.serve:command", "Serve a model file over an OpenAI-compatible HTTP API."),
    ("plugins", "hf2q.cli.plugins:app", "List, check and create plugins."),
    ("doctor", "hf2q.cli.doctor:command", "Check this machine and this installation."),
)
"""Name, where it is, and its line on the help page."""


def run(words: Sequence[str]) -> int:
    """Run one command line and return its exit code. Errors: UsageError for what cannot be parsed, and its own."""
    settings, rest = split(words)
    if settings.version:
        print(f"hf2q {__version__}")
        return 0
    logs.configure(settings)
    with plugin_environment(settings):
        app = build()
        word = next(iter(rest), "")
        where = {name: where for name, where, _ in COMMANDS}.get(word)
        if where is not None:
            _evaluate(where)
        elif word and not word.startswith("-"):
            _add_plugin_command(app, word)
        return _call(app, rest)


def build() -> App:
    """The program with core's commands, none of them imported."""
    app = App(
        name="hf2q",
        help="Convert Hugging Face checkpoints to quantized GGUF, prove them right, serve them.",
        help_epilogue=HELP,
        help_format="plaintext",
        version_flags=[],
        default_parameter=Parameter(negative=()),
        suppress_keyboard_interrupt=False,
    )
    for name, where, line in COMMANDS:
        app.command(where, name=name, help=line)
    return app


def _evaluate(where: str) -> None:
    """Make objects of the annotations of a command, which are texts: cyclopts would evaluate them four times."""
    module, _, name = where.partition(":")
    found = getattr(import_module(module), name)
    if isinstance(found, FunctionType):
        found.__annotations__ = get_type_hints(found, include_extras=True)


def _call(app: App, rest: list[str]) -> int:
    try:
        code = app(rest, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        error.verbose = False
        chain = " ".join(("hf2q", *(error.command_chain or ())))
        message = str(error).strip()
        if isinstance(error, UnusedCliTokensError):
            message = f"{chain} does not take {' '.join(error.unused_tokens or ())!r}"
        raise UsageError(message, hint=f"{chain} --help") from error
    return code if isinstance(code, int) else 0


def _add_plugin_command(app: App, word: str) -> None:
    """Add the command `word` that a plugin provides. Errors: UnknownNameError, DuplicateNameError, PluginLoadError."""
    import difflib

    from hf2q.plugins import Plugins
    from hf2q.types import resolve

    plugins = Plugins.load()
    entry = plugins.commands.get(word)
    if entry is None:
        core = [name for name, _, _ in COMMANDS]
        known = [*core, *plugins.commands.names]
        parts = [f"no command {word!r}; known: {listing(known)}"]
        near = difflib.get_close_matches(word, known, n=1)
        if near:
            parts.append(f"did you mean {near[0]!r}?")
        if plugins.failures:
            names = listing(info.name for info in plugins.failures)
            parts.append(f"plugins that failed to load: {names} (see `hf2q plugins`)")
        raise UnknownNameError("; ".join(parts), hint="hf2q --help")
    provider = plugins.commands.providers[word]
    try:
        command = resolve(entry.command)
    except Exception as error:
        raise PluginLoadError(
            f"the command {word!r} of {provider} cannot be imported: {type(error).__name__}: {error}",
            hint=f"fix or upgrade {provider}",
        ) from error
    app.command(command, name=word, help=entry.help)
