"""`Schema`: a place in the JSON schema of a tool's arguments, as readers of calls walk it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from hf2q.serve.chat.reading import SPACE, Reading, Reads
from hf2q.serve.grammar.parameters import Written, resolve, written

_MOST = 200
"""Schemas looked at for one place: references may go in circles, and combinations double at every step."""
_PYTHON = {"True": "true", "False": "false", "None": "null"}


class Schema:
    """One schema within a whole one, which its references point into. One that says nothing allows everything."""

    def __init__(self, schema: Any, root: Any = None) -> None:
        self._schema = schema
        self._root = schema if root is None else root

    @property
    def written(self) -> Written:
        """How its values are written where texts have no quotes."""
        return written(self._schema, self._root)

    @property
    def required(self) -> frozenset[str]:
        """Names that an object must have."""
        found: set[str] = set()
        for part in self._parts():
            names = part.get("required")
            if isinstance(names, list | tuple):
                found.update(name for name in names if isinstance(name, str))
        return frozenset(found)

    def member(self, name: str) -> Schema:
        """The schema of an object's property, or what is said of all that are not named."""
        other: list[Any] = []
        for part in self._parts():
            properties, rest = part.get("properties"), part.get("additionalProperties")
            if isinstance(properties, Mapping) and name in properties:
                return Schema(properties[name], self._root)
            if isinstance(rest, Mapping):
                other.append(rest)
        return Schema(other[0] if other else {}, self._root)

    def items(self) -> Schema:
        """The schema of an array's items."""
        for part in self._parts():
            if isinstance(part.get("items"), Mapping):
                return Schema(part["items"], self._root)
        return Schema({}, self._root)

    def value(self, text: str) -> str:
        """The JSON text of a value that is written as `text`, where texts have no quotes.

        What is JSON is that, unless the schema allows texts only; all else is a text.
        """
        kind = self.written
        if kind == "text" or (kind == "text or null" and text != "null"):
            return json.dumps(text, ensure_ascii=False)
        bare = text.strip()
        if kind == "json" and bare in _PYTHON and self._plain:
            return _PYTHON[bare]
        found = _json_text(bare)
        return json.dumps(text, ensure_ascii=False) if found is None else found

    @property
    def _plain(self) -> bool:
        """Whether it states types, and texts are not among them: templates print what Python holds, and models copy."""
        stated = self._schema.get("type") if isinstance(self._schema, Mapping) else None
        kinds = [stated] if isinstance(stated, str) else list(stated) if isinstance(stated, list | tuple) else []
        return bool(kinds) and "string" not in kinds

    def _parts(self) -> Iterator[Mapping[str, Any]]:
        """The schema and all that it refers to or combines, in order."""
        left, waiting = _MOST, [self._schema]
        while waiting and left:
            left -= 1
            schema = waiting.pop(0)
            if not isinstance(schema, Mapping):
                continue
            yield schema
            if isinstance(schema.get("$ref"), str):
                try:
                    waiting.append(resolve(schema["$ref"], self._root))
                except KeyError:
                    continue
            for word in ("allOf", "anyOf", "oneOf"):
                if isinstance(schema.get(word), list | tuple):
                    waiting += schema[word]


def is_json(text: str) -> bool:
    """Whether `text` is one JSON value."""
    return _json_text(text) is not None


def _json_text(text: str) -> str | None:
    """The text of one JSON value; None where `text` is none."""
    try:
        json.loads(text, parse_constant=_refuse)
    except ValueError:
        return None
    except RecursionError:  # a schema may refer to itself: Python's reader ends after 1,000 steps
        return _Deep.read(text)
    return text


class _Deep(Reading):
    """Reads one JSON object or list, however deep it nests."""

    def body(self) -> Reads[None]:
        self.parts: list[str] = []
        yield from self.json(self.parts.append)

    @classmethod
    def read(cls, text: str) -> str | None:
        """The text of the value; None where `text` is none."""
        reader = cls(())
        try:
            for at, char in enumerate(text):
                reader.push(char)
                if reader.done:
                    return None if text[at + 1 :].strip(SPACE) else "".join(reader.parts)
        except ValueError:
            return None
        return None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
