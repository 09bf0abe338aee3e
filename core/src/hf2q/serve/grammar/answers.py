"""The grammar of a whole answer: reasoning first where there may be some, then text, calls or JSON."""

from __future__ import annotations

import json
from typing import NamedTuple

from hf2q.serve.grammar.lark import escaped, quoted

_GAP = "/[ \\t\\r\\n]{1,4}/"
"""White space between reasoning and what follows it, which readers drop."""


class Answer(NamedTuple):
    """What may stand behind the reasoning: the form and, where there are calls, those; else any text and then calls.

    json      a ``%json`` rule
    lark      a whole grammar, whose rule is ``start``
    calls     rules, of which ``call_rest`` is what follows the marker `opening`
    required  whether there must be a call
    """

    json: str | None = None
    lark: str | None = None
    calls: str | None = None
    opening: str | None = None
    required: bool = False


def answer_grammar(
    answer: Answer, *, think: tuple[str, str] | None, barred: tuple[str, str] | None, inside: bool
) -> str:
    """The grammar, for `hf2q.serve.grammar.compiled`.

    think   the markers of reasoning, where the answer may begin with it; None where it may not
    barred  the same, whether or not it may: text does not begin with the opening one
    inside  whether the prompt has opened reasoning
    """
    if answer.lark is not None:
        return answer.lark if think is None else _nested(answer.lark, think, inside)
    rules = _reasoning(think, inside)
    bodies: list[str] = []
    if answer.calls is not None and answer.opening is not None:
        rules.append(answer.calls)
        if answer.required or answer.json is not None:
            bodies.append(f"{quoted(answer.opening)} call_rest")
        else:
            # text that begins like reasoning would be read as that
            but = "" if barred is None or inside else f" & ~/[ \\t\\r\\n]*{escaped(barred[0])}(?s:.*)/"
            rules += [
                f"hf2q_head[lazy]: OWN_HEAD\nOWN_HEAD: /(?s:.*){escaped(answer.opening)}/{but}",
                f"hf2q_text: OWN_TEXT\nOWN_TEXT: /(?s:.*)/{but}",
            ]
            bodies += ["hf2q_head call_rest", "hf2q_text"]
    if answer.json is not None:
        rules.append(f"hf2q_json: {answer.json}")
        bodies.append("hf2q_json")
    rules.append("hf2q_body: " + " | ".join(bodies))
    return "\n".join([_start(think, "hf2q_body", inside), *rules])


def _start(think: tuple[str, str] | None, body: str, inside: bool) -> str:
    if think is None:
        return f"start: {body}"
    return f"start: hf2q_think OWN_GAP? {body}" if inside else f"start: (hf2q_think OWN_GAP?)? {body}"


def _reasoning(think: tuple[str, str] | None, inside: bool) -> list[str]:
    if think is None:
        return []
    opening, closing = think
    rules = [f"OWN_GAP: {_GAP}", f"hf2q_thought[lazy]: OWN_THOUGHT\nOWN_THOUGHT: /(?s:.*){escaped(closing)}/"]
    if inside:
        return [*rules, "hf2q_think: hf2q_thought"]
    return [*rules, f"hf2q_think: OWN_OPEN hf2q_thought\nOWN_OPEN: /[ \\t\\r\\n]{{0,4}}{escaped(opening)}/"]


def _nested(lark: str, think: tuple[str, str], inside: bool) -> str:
    """A grammar of somebody else behind reasoning: its names are its own."""
    outer = "\n".join([_start(think, "@asked", inside), *_reasoning(think, inside)])
    return json.dumps({"grammars": [{"lark_grammar": outer}, {"name": "asked", "lark_grammar": lark}]})
