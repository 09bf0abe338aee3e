"""Grammars compiled, once each, within limits of time and memory."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from hf2q.serve.grammar.guided import Guided
from hf2q.serve.grammar.problems import SchemaError

KEPT = 64
"""Compiled grammars that are kept, the least recently used leave first."""
KEPT_TEXT = 16 << 20
"""Most characters of the grammars that are kept, together."""
MAX_GRAMMAR = 4 << 20
"""Most characters of one."""
MAX_RULES = 20_000
"""Most rules and terminals of one."""
STACK = 256 << 20
"""Bytes of the stack that grammars are compiled on. llguidance recurses through schemas and rules that refer to one
another, without a limit: a chain of 1,000 overflows a common stack of 8 MiB and ends the process, one of 10,000 needs
less than 256 MiB. Only what is used takes up memory.
"""

LIMITS = {
    "initial_lexer_fuel": 2_000_000,
    "step_lexer_fuel": 400_000,
    "step_max_items": 100_000,
    "max_items_in_row": 4_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 500_000,
    "verbose_errors": False,
}
"""llguidance's own (parser/src/api.rs, `ParserLimits`): about 50 ms of work before the first token, 30 ms for one, and
100 MB of lexer states for each answer. Beyond them a grammar is refused, or the generation ends with an error."""


class Grammars:
    """Compiled grammars of one model. Thread-safe.

    Parameters: `table` gives its `LLTokenizer` (see `hf2q.serve.grammar.vocabulary`), called once, when first needed.
    """

    def __init__(self, table: Callable[[], Any]) -> None:
        self._make = table
        self._table: Any = None
        self._kept: OrderedDict[str, Any] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    @property
    def table(self) -> Any:
        """The model's tokens."""
        with self._lock:
            if self._table is None:
                self._table = self._make()
            return self._table

    def check(self, lark: str, *, keep: bool = True) -> None:
        """Compile a grammar, and `keep` it. Errors: SchemaError, without a place, saying why it cannot be used."""
        self._matcher(lark) if keep else self._compiled(lark)

    def start(self, lark: str) -> Guided:
        """A constraint for one generation. Errors: as `check`."""
        matcher = self._matcher(lark)
        with self._lock:  # a matcher is not thread-safe, not even while it is copied
            copy = matcher.deep_copy()
        return Guided(copy, self._table.vocab_size)

    def _matcher(self, lark: str) -> Any:
        with self._lock:
            if lark in self._kept:
                self._kept.move_to_end(lark)
                return self._kept[lark]
        matcher = self._compiled(lark)
        with self._lock:
            if lark not in self._kept:
                self._kept[lark] = matcher
                self._size += len(lark)
            while len(self._kept) > KEPT or (self._size > KEPT_TEXT and len(self._kept) > 1):
                self._size -= len(self._kept.popitem(last=False)[0])
            return matcher

    def _compiled(self, lark: str) -> Any:
        from llguidance import LLMatcher, LLParserLimits

        for what, found, most in (("characters", len(lark), MAX_GRAMMAR), ("rules", lark.count("\n"), MAX_RULES)):
            if found > most:
                raise SchemaError(f"the grammar has {found} {what}, at most {most} are supported")
        limits, table = LLParserLimits(**LIMITS), self.table  # type: ignore[arg-type]
        matcher = _on_deep_stack(lambda: LLMatcher(table, lark, log_level=0, limits=limits))
        if matcher.is_error():
            raise SchemaError(_reason(matcher.get_error()))
        warnings = matcher.get_grammar_warnings()
        if warnings:
            raise SchemaError(_reason("; ".join(warnings)))
        matcher.compute_bitmask()  # the first token shows whether there is any, and that the limits suffice to start
        if matcher.is_error():
            raise SchemaError(_reason(matcher.get_error()))
        return matcher


_STACK_SIZE = threading.Lock()
"""Held while new threads have stacks of `STACK` bytes: the size is the process's, and requests come at once."""


def _on_deep_stack(call: Callable[[], Any]) -> Any:
    """What `call` returns, called in a thread of its own with a stack of `STACK` bytes."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()), name="hf2q-grammar", daemon=True)
    with _STACK_SIZE:
        before = threading.stack_size(STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return results[0]


_EXCERPT = re.compile(r"^\s*\d+ \| |<backtrace>|<non-verbose/>", re.MULTILINE)
_JSON = re.compile(r"^at \d+\(\d+\): failed to compile JSON schema: ")
_OURS = (
    (re.compile(r"oneOf constraints are not supported.*"), "the parts of oneOf are not seen to exclude one another"),
    (re.compile(r"^NoExtensionBias"), "nothing can satisfy it"),
)
"""What llguidance says in terms of its own, and what it means."""


def _reason(message: str) -> str:
    """llguidance's message in one line, without the excerpt of the grammar; where it was in JSON, without the place."""
    text = _JSON.sub("", _EXCERPT.split(message, maxsplit=1)[0])
    for pattern, meaning in _OURS:
        text = pattern.sub(meaning, text)
    return " ".join(text.split())[:500]
