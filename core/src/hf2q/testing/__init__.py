"""What plugin authors test with: contract suites to subclass, fixtures, a scripted model. Imported by tests only.

    from hf2q.testing import CodecContract

    class TestQ3K(CodecContract):
        plugin, name = "mine", "Q3_K"

`ArchContract`, `ProjectorContract`, `CodecContract`, `WriterContract`, `GraphContract`, `EncoderContract`,
`TokenizerContract` and `CallsContract` are classes for pytest to collect; each says in its docstring which attributes a
subclass sets. Kept in the plugin's module ``hf2q_contract``, they are also what ``hf2q plugins check DIST`` runs (see
`hf2q.testing.checking`).

    contract   what the suites share
    arch, projector, codec, graph, encoder, tokenizer, writer, calls   the suites
    family, catalog, forward   what some of them share besides
    checkpoints  tiny random checkpoints      verdicts       a suite as a function: which checks fail
    scripted   a model that says what it is told             distributions, fixtures   for tests of all kinds

Nothing is imported before it is asked for: this package is loaded by every pytest run that has hf2q installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf2q.testing.arch import ArchContract
    from hf2q.testing.calls import CallsContract
    from hf2q.testing.codec import CodecContract
    from hf2q.testing.encoder import EncoderContract
    from hf2q.testing.fixtures import fixtures_dir, require_fixture
    from hf2q.testing.graph import GraphContract
    from hf2q.testing.projector import ProjectorContract
    from hf2q.testing.scripted import ScriptedGraph
    from hf2q.testing.tokenizer import TokenizerContract
    from hf2q.testing.writer import WriterContract

__all__ = [
    "ArchContract",
    "CallsContract",
    "CodecContract",
    "EncoderContract",
    "GraphContract",
    "ProjectorContract",
    "TokenizerContract",
    "WriterContract",
    "ScriptedGraph",
    "fixtures_dir",
    "require_fixture",
]

_HOMES = {
    "ArchContract": "arch",
    "CallsContract": "calls",
    "CodecContract": "codec",
    "EncoderContract": "encoder",
    "GraphContract": "graph",
    "ProjectorContract": "projector",
    "TokenizerContract": "tokenizer",
    "WriterContract": "writer",
    "ScriptedGraph": "scripted",
    "fixtures_dir": "fixtures",
    "require_fixture": "fixtures",
}


def __getattr__(name: str) -> Any:
    # late, so that pytest can rewrite the suites' asserts before they are imported (see pytest_plugin)
    if name in _HOMES:
        return getattr(import_module(f"hf2q.testing.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
