"""``hf2q serve --selftest``: asks a running server over real HTTP whether it keeps its promises with the model it has.

    client      requests over loopback, and streams frame by frame
    fold        the chunks of a stream as the response they make
    check       a check, its verdict, and the list of all
    asks        what checks have in common: the model's id, a greedy question
    models, chat, routes, logprobs, structured, refusals, together
                the checks, by subject
    run         all of them against one server
    report      the table of verdicts

It stands on the standard library alone, and on nothing of the server's own code: it reads what a client reads.
"""

from __future__ import annotations

from hf2q.serve.selftest.check import Verdict
from hf2q.serve.selftest.report import as_json, table
from hf2q.serve.selftest.run import passed, run

__all__ = ["Verdict", "as_json", "passed", "run", "table"]
