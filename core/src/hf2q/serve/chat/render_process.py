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
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Any, NoReturn

from jinja2 import Environment, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeVisitor


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
    wanted = Reads(env.parse(source)).found
    return env.from_string(source).render, sorted(wanted - env.globals.keys())


class Reads(NodeVisitor):
    """The names that a template may read before it has set them itself: `found`.

    jinja2's own `meta.find_undeclared_variables` also gives names that are always set first inside a branch.
    """

    def __init__(self, template: nodes.Template) -> None:
        self.found: set[str] = set()
        self._set: set[str] = set()
        self.visit(template)

    def visit_Name(self, node: nodes.Name) -> None:
        """A name that is read, or set by what contains it."""
        if node.ctx != "load":
            self._set.add(node.name)
        elif node.name not in self._set:
            self.found.add(node.name)

    def visit_Assign(self, node: nodes.Assign) -> None:
        """``{% set x = … %}``: the value is read first."""
        self.visit(node.node)
        self.visit(node.target)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> None:
        """``{% set x %}…{% endset %}``."""
        self._inside([node.filter, *node.body])
        self.visit(node.target)

    def visit_If(self, node: nodes.If) -> None:
        """After the branches, what all of them set is set."""
        for one in (node, *node.elif_):
            self.visit(one.test)
        branches = [node.body, *(other.body for other in node.elif_), node.else_]
        self._set |= set.intersection(*(self._inside(branch) for branch in branches))

    def visit_For(self, node: nodes.For) -> None:
        """What a loop sets is gone after it."""
        self.visit(node.iter)
        self._inside([node.target, node.test, *node.body], "loop")
        self._inside(node.else_)

    def visit_Macro(self, node: nodes.Macro) -> None:
        """Arguments are set by the call."""
        self._set.add(node.name)
        self._inside([*node.defaults, *node.args, *node.body], "caller", "kwargs", "varargs")

    def visit_CallBlock(self, node: nodes.CallBlock) -> None:
        """A macro without a name, and the call that gets it."""
        self.visit(node.call)
        self._inside([*node.defaults, *node.args, *node.body])

    def visit_With(self, node: nodes.With) -> None:
        """``{% with x = … %}``."""
        self._inside([*node.values, *node.targets, *node.body])

    def visit_FilterBlock(self, node: nodes.FilterBlock) -> None:
        """A scope of its own, as is every block."""
        self._inside([node.filter, *node.body])

    def visit_Scope(self, node: nodes.Scope) -> None:
        """What `GenerationTag` makes."""
        self._inside(node.body)

    def _inside(self, parts: Iterable[nodes.Node | None], *names: str) -> set[str]:
        """Visit `parts` in a scope of their own in which `names` are set; what is set at its end."""
        before = self._set
        self._set = before | set(names)
        for part in parts:
            if part is not None:
                self.visit(part)
        after, self._set = self._set, before
        return after


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
