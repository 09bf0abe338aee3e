"""Regular expressions of JSON schemas (ECMA-262), rewritten for llguidance (the syntax of Rust's `regex`).

The two syntaxes, and those of the validators that will judge the output (Python's `re` among them), differ in what
``\\d``, ``\\w``, ``\\s``, ``.`` and ``[a&&b]`` mean. Each construct is rewritten to what it means in all of them: the
result matches a text only if every one of them would. What has no such reading, or is not regular (look around, back
references, word boundaries), is refused.
"""

from __future__ import annotations

import re

from hf2q.serve.grammar.problems import SchemaError

MAX_LENGTH = 2_000
"""Most characters of a pattern."""
MAX_REPEAT = 10_000
"""Most repetitions that a quantifier may name."""
_MAX_DEPTH = 40

ANYTHING = "(?s:.*)"

# a set by itself: the narrowest reading; within a negated set: the widest, so that the negation is the narrowest
_NARROW = {
    "d": "0-9",
    "w": "0-9A-Za-z_",
    "s": r"\t\n\x0B\x0C\r\p{Zs}",
    "D": r"\P{Nd}",
    "W": r"[^\p{L}\p{M}\p{N}\p{Pc}]",
    "S": r"[^\s\x1C-\x1F\x{FEFF}]",
}
_WIDE = {
    "d": r"\p{Nd}",
    "w": r"\p{L}\p{M}\p{N}\p{Pc}",
    "s": r"\s\x1C-\x1F\x{FEFF}",
    "D": "[^0-9]",
    "W": "[^0-9A-Za-z_]",
    "S": r"[^\t\n\x0B\x0C\r\p{Zs}]",
}
_DOT = r"[^\n\r\x{2028}\x{2029}]"
_PLAIN = {"t": r"\t", "n": r"\n", "r": r"\r", "f": r"\x0C", "v": r"\x0B", "0": r"\x00"}
_CONTROLS = {r"\t": 9, r"\n": 10, r"\r": 13}
_WRITTEN = re.compile(r"\\x(?:\{([0-9A-Fa-f]+)\}|([0-9A-Fa-f]{2}))")
_QUANTIFIER = re.compile(r"[*+?]|\{(\d{1,9})(,(\d{0,9}))?\}")


def full_pattern(pattern: str, path: str = "") -> str:
    """An expression that matches a whole text where `pattern`, searched for, is found in it. No anchors, no groups that
    capture.

    Errors: SchemaError for what cannot be rewritten.
    """
    if len(pattern) > MAX_LENGTH:
        raise SchemaError(f"a pattern has {len(pattern)} characters, at most {MAX_LENGTH} are supported", path)
    reader = _Reader(pattern, path)
    return reader.searched()


class _Reader:
    def __init__(self, pattern: str, path: str) -> None:
        self._text, self._path, self._at = pattern, path, 0

    def searched(self) -> str:
        """The whole pattern, each alternative with what may be around it."""
        result = self._alternatives(0, top=True)
        if self._at < len(self._text):
            raise self._error("has ) without (")
        return result

    def _alternatives(self, depth: int, *, top: bool) -> str:
        """Up to the end or the closing parenthesis, which is left. At the `top`, anchors say what may be around."""
        if depth > _MAX_DEPTH:
            raise self._error("has too many nested groups")
        parts = [self._branch(depth, top=top)]
        while self._peek() == "|":
            self._at += 1
            parts.append(self._branch(depth, top=top))
        return "|".join(parts)

    def _branch(self, depth: int, *, top: bool) -> str:
        begins = ends = False
        if top and self._peek() == "^":
            self._at += 1
            begins = True
        elif top and (whole := self._group_of_all(depth)) is not None:
            return whole
        items: list[str] = []
        while (char := self._peek()) not in ("", "|", ")"):
            if char == "^":
                raise self._error("has ^ behind its beginning")
            if char == "$":
                self._at += 1
                if not top or self._peek() not in ("", "|", ")"):
                    raise self._error("has $ before its end")
                ends = True
                break
            items.append(self._quantified(self._item(depth)))
        if not top:
            return "".join(items)
        return ("" if begins else ANYTHING) + "".join(items) + ("" if ends else ANYTHING)

    def _group_of_all(self, depth: int) -> str | None:
        """A branch that is one group, whose alternatives have anchors of their own; None where it is not."""
        start = self._at
        if self._peek() != "(" or self._text[self._at + 1 : self._at + 2] == "?":
            return None
        self._at += 1
        try:
            inner = self._alternatives(depth + 1, top=True)
            closed = self._peek() == ")"
        except SchemaError:
            closed = False
        self._at += 1
        if not closed or self._peek() not in ("", "|", ")"):
            self._at = start
            return None
        return f"(?:{inner})"

    def _item(self, depth: int) -> str:
        char = self._peek()
        self._at += 1
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._set()
        if char == ".":
            return _DOT
        if char == "\\":
            return self._escape(None)
        if char in "*+?{":
            raise self._error(f"has {char!r} where nothing can be repeated")
        return _literal(char)

    def _group(self, depth: int) -> str:
        if self._peek() == "?":
            named = re.compile(r"\?P?<[A-Za-z_]\w*>").match(self._text, self._at)
            if named:
                self._at = named.end()
            elif self._text.startswith("?:", self._at):
                self._at += 2
            else:
                raise self._error(f"has {self._text[self._at - 1 : self._at + 3]}, which is not supported")
        inner = self._alternatives(depth + 1, top=False)
        if self._peek() != ")":
            raise self._error("has ( without )")
        self._at += 1
        return f"(?:{inner})"

    def _quantified(self, item: str) -> str:
        match = _QUANTIFIER.match(self._text, self._at)
        if match is None:
            if self._peek() == "{":
                raise self._error("has { that is no quantifier; write \\{")
            return item
        self._at = match.end()
        low, _, high = match.groups()
        if any(number and int(number) > MAX_REPEAT for number in (low, high)):
            raise self._error(f"repeats more than {MAX_REPEAT} times")
        if low and high and int(low) > int(high):
            raise self._error(f"has {match.group()}, whose bounds are in the wrong order")
        if self._peek() == "?":  # as few as possible: the same texts
            self._at += 1
        if _QUANTIFIER.match(self._text, self._at):
            raise self._error("repeats a repetition; put it in a group")
        return item + match.group()

    def _set(self) -> str:
        negated = self._peek() == "^"
        if negated:
            self._at += 1
        parts: list[str] = []
        if self._peek() == "]":
            raise self._error("has an empty set")
        while (char := self._peek()) != "]":
            if char == "":
                raise self._error("has [ without ]")
            first = self._member(negated)
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last = self._member(negated)
                low, high = _code_point(first), _code_point(last)
                if low is None or high is None:
                    raise self._error("has a range whose end is a set")
                if low > high:
                    raise self._error(f"has a range from {chr(low)!r} to {chr(high)!r}, which are in the wrong order")
                parts.append(f"{first}-{last}")
            else:
                parts.append(first)
        self._at += 1
        return f"[{'^' if negated else ''}{''.join(parts)}]"

    def _member(self, negated: bool) -> str:
        char = self._peek()
        self._at += 1
        if char == "\\":
            return self._escape(negated)
        return _literal(char)

    def _escape(self, negated: bool | None) -> str:
        """Behind a backslash; `negated` is that of the set it is in, None outside of sets."""
        char = self._peek()
        self._at += 1
        if char and char in "dwsDWS":
            expanded = (_WIDE if negated else _NARROW)[char]
            return expanded if negated is not None else f"[{expanded}]"
        if char == "0" and self._peek().isdecimal():
            raise self._error("has an octal escape")
        if char in _PLAIN and char:
            return _PLAIN[char]
        if char == "b" and negated is not None:
            return r"\x08"
        for letter, digits in (("x", 2), ("u", 4)):
            if char == letter:
                code = self._text[self._at : self._at + digits]
                if not re.fullmatch(rf"[0-9A-Fa-f]{{{digits}}}", code):
                    raise self._error(f"has \\{letter} without {digits} hexadecimal digits")
                if 0xD800 <= int(code, 16) <= 0xDFFF:
                    raise self._error("has half of a surrogate pair; write the character itself")
                self._at += digits
                return rf"\x{{{code}}}"
        if char and not char.isalnum() and char.isascii():
            return _literal(char)
        raise self._error(f"has \\{char}, which is not supported")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _error(self, what: str) -> SchemaError:
        return SchemaError(f"the pattern {self._text[:80]!r} {what}", self._path)


def _literal(char: str) -> str:
    """A character that stands for itself, anywhere."""
    return f"\\x{{{ord(char):X}}}" if not (char.isascii() and char.isalnum()) else char


def _code_point(member: str) -> int | None:
    """That of a member of a set as rewritten; None where it is a set by itself."""
    if len(member) == 1:
        return ord(member)
    if member in _CONTROLS:
        return _CONTROLS[member]
    written = _WRITTEN.fullmatch(member)
    return int(written[1] or written[2], 16) if written else None
