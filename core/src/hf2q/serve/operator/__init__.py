"""What the person sees who runs the server in a terminal: a live table of requests, or plain log lines.

    terminal  whether a terminal can show the table, and which view it will be
    board     what is known of the requests, from the engines' events
    render    the board as a rich table
    lines     log lines on their way to the terminal
    screen    the live view: a thread that draws
    open      one call for the command line

Numbers and names only: never a prompt, an answer or a tool's arguments. Events come through a bounded channel
(`hf2q.serve.channel`), lines through another: however slow the terminal is, nobody waits for it.
"""

from __future__ import annotations

from hf2q.serve.operator.open import Operator, Plain, open_operator
from hf2q.serve.operator.terminal import KINDS, Kind

__all__ = ["KINDS", "Kind", "Operator", "Plain", "open_operator"]
