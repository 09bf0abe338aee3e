"""A JSON schema checked, and written anew in the subset that is enforced word for word.

llguidance takes most of JSON Schema, but ignores words it does not know, reads some values as float64, and takes
patterns in another syntax than schemas have. What comes out of here it enforces word for word; all else is refused,
with the place in the schema. Sizes are bounded, so that a hostile schema costs bounded time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hf2q.serve.grammar import keywords
from hf2q.serve.grammar import words as spoken
from hf2q.serve.grammar.finite import check_finite
from hf2q.serve.grammar.formats import INTEGERS, PATTERNS, SAYING_NOTHING
from hf2q.serve.grammar.parameters import resolve
from hf2q.serve.grammar.patterns import full_pattern
from hf2q.serve.grammar.problems import pointer
from hf2q.serve.grammar.words import error

MAX_NODES = 10_000
"""Most schemas within one, and most values in its enumerations together."""
MAX_DEPTH = 64
"""Most steps from the top of a schema to a place in it: two for each property within a property."""
MAX_TEXT = 1 << 19
"""Most characters of names and constants together."""
MAX_OPTIONAL = 500
"""Most properties of one object that may be left out: each of them may come next."""


class Checked(NamedTuple):
    """schema  the schema, whose references are all ``#/$defs/rN``
    defs    what they refer to
    """

    schema: Any
    defs: Mapping[str, Any]

    def document(self, schema: Any = None) -> dict[str, Any]:
        """`schema` (by default the whole) as a document of its own, with the definitions."""
        chosen = self.schema if schema is None else schema
        if chosen is False:
            chosen = {"enum": []}
        document = {} if chosen is True else dict(chosen)
        return {**document, "$defs": dict(self.defs)} if self.defs else document


def check_schema(schema: Any, root: Any = None) -> Checked:
    """Check a schema and write it anew. Its references point into `root`, by default itself.

    Errors: SchemaError naming the place.
    """
    checker = _Checker(schema if root is None else root)
    written = checker.write(schema, ())
    checker.follow()
    checked = Checked(written, checker.defs)
    check_finite(checked.schema, checked.defs)
    return checked


class _Checker:
    def __init__(self, root: Any) -> None:
        self._root = root
        self.defs: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self._open: list[tuple[str, str]] = []
        self._nodes = self._text = 0

    def follow(self) -> None:
        """Write what references point to, until there is nothing new."""
        while self._open:
            reference, name = self._open.pop()
            place = tuple(part.replace("~1", "/").replace("~0", "~") for part in reference[1:].split("/")[1:])
            self.defs[name] = self.write(resolve(reference, self._root), place)

    def write(self, schema: Any, path: tuple[str | int, ...]) -> Any:
        """One schema, and those in it."""
        self._count(path)
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise error(f"a schema is {schema!r:.60}, expected an object or a truth value", path)
        if len(path) > MAX_DEPTH:
            raise error(f"the schema is nested too deep: {MAX_DEPTH} steps from the top are supported", path)
        words = {word: value for word, value in schema.items() if not self._silent(word, value, path)}
        made: dict[str, Any] = {}
        rest: list[Any] = []  # further schemas that must hold
        for word, value in words.items():
            here = (*path, word)
            if word in ("anyOf", "oneOf", "allOf"):
                parts = self._parts(word, value, here)
                if word == "oneOf" and spoken.distinct(parts):  # which llguidance cannot tell of numbers
                    rest.append({"anyOf": parts})
                else:
                    made[word] = parts
            elif word in ("properties", "patternProperties"):
                made[word] = self._members(word, value, here)
            elif word == "additionalProperties":
                made[word] = self.write(value, here)
            elif word == "$ref":
                made[word] = self._reference(value, here)
            elif word in ("enum", "const"):
                self._constants(word, value, here)
                made[word] = value
            elif word == "type":
                made[word] = spoken.types(value, here)
            elif word == "required":
                made[word] = self._names_of(value, here)
            elif word in keywords.COUNTS:
                made[word] = spoken.count(word, value, here)
            elif word in keywords.BOUNDS:
                spoken.bound(word, value, words, made, here)
            elif word == "multipleOf":
                made[word] = spoken.divisor(value, here)
            elif word == "pattern":
                if not isinstance(value, str):
                    raise error(f"pattern is {value!r:.60}, expected a text", here)
                rest.append({"pattern": f"^(?:{full_pattern(value, pointer(here))})$"})
        self._array(words, path, made)
        if "format" in words:
            self._format(words["format"], (*path, "format"), made, rest)
        self._counted(made, path)
        if rest:
            # patterns are joined by allOf; the type beside them keeps it from being spelled out for all types
            kind = {"type": made["type"]} if "type" in made else {}
            made["allOf"] = [*made.get("allOf", ()), *({**kind, **part} for part in rest)]
        return made

    # ------------------------------------------------------------------------------------------------ single words

    def _silent(self, word: str, value: Any, path: tuple[str | int, ...]) -> bool:
        """Whether a word says nothing about values. Errors: SchemaError for one that is not enforced."""
        if not isinstance(word, str):
            raise error(f"a schema has the key {word!r:.60}, expected a text", path)
        if word in keywords.ENFORCED:
            return False
        if word in keywords.SAYING_NOTHING or word.startswith("x-"):
            return True
        if word in ("$id", "id") and not path and isinstance(value, str):
            return True
        if any(type(value) is type(plain) and value == plain for plain in keywords.WITHOUT_EFFECT.get(word, ())):
            return True
        raise error(f"the keyword {word!r:.60} is not supported", (*path, word))

    def _parts(self, word: str, value: Any, here: tuple[str | int, ...]) -> list[Any]:
        if not isinstance(value, list | tuple) or not value:
            raise error(f"{word} is {value!r:.60}, expected a list of at least one schema", here)
        return [self.write(part, (*here, index)) for index, part in enumerate(value)]

    def _members(self, word: str, value: Any, here: tuple[str | int, ...]) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise error(f"{word} is {value!r:.60}, expected an object", here)
        members: dict[str, Any] = {}
        for name, schema in value.items():
            self._say(name, here)
            written = self.write(schema, (*here, name))
            key = f"^(?:{full_pattern(name, pointer((*here, name)))})$" if word == "patternProperties" else name
            if key in members:
                raise error(f"two patterns are the same: {name!r:.60}", (*here, name))
            members[key] = written
        return members

    def _reference(self, value: Any, here: tuple[str | int, ...]) -> str:
        if not isinstance(value, str):
            raise error(f"$ref is {value!r:.60}, expected a text", here)
        if value not in self._names:
            try:
                if value.strip("#") and not value.startswith("#/"):
                    raise KeyError(value)
                resolve(value, self._root)
            except KeyError:
                raise error(
                    f"$ref is {value!r:.100}, expected a place in the same document (#/$defs/…) that exists", here
                ) from None
            self._names[value] = f"r{len(self._names)}"
            self._open.append((value, self._names[value]))
        return f"#/$defs/{self._names[value]}"

    def _constants(self, word: str, value: Any, here: tuple[str | int, ...]) -> None:
        if word == "enum" and (not isinstance(value, list | tuple) or not value):
            raise error(f"enum is {value!r:.60}, expected a list of at least one value", here)
        open_: list[tuple[Any, int]] = [(value, 0)]
        while open_:
            item, depth = open_.pop()
            self._count(here)
            if depth > MAX_DEPTH:
                raise error(f"a value is nested more than {MAX_DEPTH} deep", here)
            if isinstance(item, str):
                self._say(item, here)
            elif isinstance(item, Mapping):
                for name in item:
                    self._say(name, here)
                open_ += [(part, depth + 1) for part in item.values()]
            elif isinstance(item, list | tuple):
                open_ += [(part, depth + 1) for part in item]
            elif item is not None and not isinstance(item, bool):
                spoken.exact(item, here)

    def _names_of(self, value: Any, here: tuple[str | int, ...]) -> list[str]:
        if not isinstance(value, list | tuple):
            raise error(f"required is {value!r:.60}, expected a list of names", here)
        for name in value:
            self._count(here)
            self._say(name, here)
        return list(dict.fromkeys(value))

    def _array(self, words: Mapping[str, Any], path: tuple[str | int, ...], made: dict[str, Any]) -> None:
        """``items`` and its kin, in their present form; before 2020-12 a list of items was called ``items`` too."""
        items, prefix = words.get("items"), words.get("prefixItems")
        rest, place = items, "items"
        if isinstance(items, list | tuple):
            if prefix is not None:
                raise error("items is a list, and there are prefixItems besides", (*path, "items"))
            prefix, rest, place = items, words.get("additionalItems"), "additionalItems"
        if prefix is not None:
            if not isinstance(prefix, list | tuple):
                raise error(f"prefixItems is {prefix!r:.60}, expected a list", (*path, "prefixItems"))
            name = "items" if prefix is items else "prefixItems"
            made["prefixItems"] = [self.write(part, (*path, name, index)) for index, part in enumerate(prefix)]
        if rest is not None:
            made["items"] = self.write(rest, (*path, place))

    def _format(self, value: Any, here: tuple[str | int, ...], made: Mapping[str, Any], rest: list[Any]) -> None:
        kinds = made.get("type", sorted(keywords.TYPES))
        kinds = {kinds} if isinstance(kinds, str) else set(kinds)
        if not isinstance(value, str):
            raise error(f"format is {value!r:.60}, expected a text", here)
        if value in INTEGERS and kinds <= {"integer", "number", "null"}:
            low, high = INTEGERS[value]
            rest.append({"minimum": low, "maximum": high})
        elif value in PATTERNS:
            rest += [{"pattern": f"^(?:{pattern})$"} for pattern in PATTERNS[value]]
        elif value not in SAYING_NOTHING:
            known = ", ".join(sorted({*PATTERNS, *INTEGERS, *SAYING_NOTHING}))
            raise error(f"the format {value!r:.60} is not supported; supported are {known}", here)

    def _counted(self, made: Mapping[str, Any], path: tuple[str | int, ...]) -> None:
        """Names of properties that a schema does not list may be given twice, so they cannot be counted."""
        optional = len(set(made.get("properties", ())) - set(made.get("required", ())))
        if optional > MAX_OPTIONAL:
            raise error(
                f"{optional} properties are optional, at most {MAX_OPTIONAL} of an object are supported",
                (*path, "properties"),
            )
        least = made.get("minProperties", 0)
        if least > len(made.get("required", ())) + 1:
            raise error(
                f"minProperties is {least}, which is enforced only up to one more than are required",
                (*path, "minProperties"),
            )

    # ------------------------------------------------------------------------------------------------------ amounts

    def _count(self, path: tuple[str | int, ...]) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise error(f"the schema has more than {MAX_NODES} parts", path)

    def _say(self, text: Any, path: tuple[str | int, ...]) -> None:
        if not isinstance(text, str):
            raise error(f"a name is {text!r:.60}, expected a text", path)
        self._text += len(text)
        if self._text > MAX_TEXT:
            raise error(f"names and constants have more than {MAX_TEXT} characters together", path)
