"""The process in which chat templates run: a script that `hf2q.serve.chat.template` starts. Imports nothing of hf2q.

A template comes out of a model file, which may come from anywhere, and jinja2's sandbox bounds what a template can
reach but not how long it runs or how much it builds: two nested loops, or ``'x' * 10**10``, are valid templates. A
thread that does this cannot be stopped, a process can. The operating system holds the line: each answer has a budget
of CPU time after which the process is killed, and the address space has a ceiling (where the system enforces one; on
macOS it does not, and the budget of time bounds what can be touched).

Protocol: one JSON object a line in each direction. First in: the template and the limits; then one line for each
render. Each answer is ``{"ok": …}`` or ``{"error": "…"}``. The end of stdin ends the process.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, NoReturn

from jinja2 import Environment, TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class GenerationTag(Extension):
    """``{% generation %}…{% endgeneration %}`` marks what an assistant said, for training; here it is its content.

    Source: transformers utils/chat_template_utils.py, `AssistantTracker`.
    """

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance attribute

    def parse(self, parser: Parser) -> nodes.Node:
        """A scope that holds the block's content."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def environment() -> Environment:
    """The environment that transformers gives a chat template.

    Source: transformers utils/chat_template_utils.py, `_cached_compile_jinja_template`.
    """
    found = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    found.filters["tojson"] = _tojson
    found.globals["raise_exception"] = _raise
    found.globals["strftime_now"] = _strftime_now
    return found


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes <, > and & for HTML, which would change what the model reads
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def compiled(source: str) -> tuple[Callable[..., str], list[str]]:
    """The template's render function, and the names of the variables it reads from outside."""
    env = environment()
    wanted = meta.find_undeclared_variables(env.parse(source))
    return env.from_string(source).render, sorted(wanted - env.globals.keys())


def answer(work: Callable[[], Any], seconds: float) -> dict[str, Any]:
    """What `work` gives, or why it did not; the process is killed when it takes more than `seconds` of CPU time."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return {"ok": work()}
    except SecurityError as error:
        return {"error": f"refused by the sandbox: {error}"}
    except TemplateError as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": "it needs too much memory"}
    except RecursionError:
        return {"error": "it nests too deeply"}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _limit_memory(nbytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    ceiling = nbytes if hard == resource.RLIM_INFINITY else min(nbytes, hard)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (ceiling, hard))
    except (ValueError, OSError):
        return  # the system has no such limit


def main() -> None:
    """Serve renders until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business; stdin ends when it goes
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    first = json.loads(sys.stdin.buffer.readline())
    seconds, characters = first["seconds"], first["characters"]
    _limit_memory(first["memory"])
    render: Callable[..., str] | None = None

    def start() -> list[str]:
        nonlocal render
        render, variables = compiled(first["source"])
        return variables

    def one(line: bytes) -> str:
        assert render is not None
        text = render(**json.loads(line))
        if len(text) > characters:
            raise TemplateError(f"it gives {len(text)} characters, more than the {characters} allowed")
        return text

    _tell(answer(start, seconds))
    while line := sys.stdin.buffer.readline():
        _tell(answer(partial(one, line), seconds))


def _tell(found: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(found).encode("ascii") + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
