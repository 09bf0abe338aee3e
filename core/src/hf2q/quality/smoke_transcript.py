"""The transcript of a smoke run: what a model said and what the engine told, without what differs from run to run."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hf2q.types import Record

_FRACTION = re.compile(r"[ \t]*\d+\.\d+")
FRACTION = "<X.XX>"


class Said(Record, frozen=True, kw_only=True):
    """A prompt, what came as its answer, and lines about it."""

    prompt: str
    text: str
    told: tuple[str, ...]


def normalised(text: str) -> str:
    """Numbers with a fraction, and the blanks before them, as ``<X.XX>``: times and rates."""
    return _FRACTION.sub(FRACTION, text)


def as_seen(text: str) -> str:
    """Text as a terminal would leave it: backspace takes a character back, carriage return the line, other control
    characters but line feeds are dropped.
    """
    lines: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        seen: list[str] = []
        for character in line:
            if character == "\b":
                del seen[-1:]
            elif character == "\r":
                seen.clear()
            elif character.isprintable() or not _control(character):
                seen.append(character)
        lines.append("".join(seen))
    return "\n".join(lines)


def transcript(arch: str, quant: str, said: Sequence[Said], stderr: Sequence[str] = ()) -> str:
    """The whole file: a header of comments, then both streams, prompt by prompt, and what else was on `stderr`."""
    head = [f"# arch: {arch}", f"# quant: {quant}", *(f"# prompt: {as_seen(one.prompt)!r}" for one in said)]
    out = [normalised(as_seen(one.prompt + one.text)) for one in said]
    told = [normalised(as_seen(line)) for line in (*(line for one in said for line in one.told), *stderr)]
    return "\n".join([*head, "---stdout---", *out, "---stderr---", *told]) + "\n"


def first_difference(wanted: str, found: str) -> str:
    """Where two transcripts part, for people; "" when they are equal."""
    if wanted == found:
        return ""
    a, b = wanted.split("\n"), found.split("\n")
    number = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))

    def line(lines: list[str]) -> str:
        return repr(lines[number][:100]) if number < len(lines) else "no line"

    return f"line {number + 1} is {line(b)}, expected {line(a)}"


def _control(character: str) -> bool:
    return ord(character) < 32 or 127 <= ord(character) < 160
