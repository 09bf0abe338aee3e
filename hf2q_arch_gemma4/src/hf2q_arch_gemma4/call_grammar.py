"""The grammar of Gemma 4's calls; see `hf2q_arch_gemma4.calls`.

Objects and lists look like JSON's, but keys are bare and texts stand between marks of their own, so a schema becomes
rules here, one for each place. Numbers and truth values are JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf2q.serve.chat.syntax import ToolSchema
from hf2q.serve.grammar.calls import (
    SchemaError,
    json_value,
    members,
    ordered,
    quoted,
    repeated,
    text_terminal,
    text_until,
)

OPEN, CLOSE = "<|tool_call>", "<tool_call|>"
QUOTE = '<|"|>'
_SCALARS = ("null", "boolean", "number", "integer")
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_TEXTS = {"minLength", "maxLength", "pattern"}
_OBJECTS = {"properties", "required", "additionalProperties"}
_ARRAYS = {"items", "prefixItems", "minItems", "maxItems"}
_KEY = "/[A-Za-z_][A-Za-z0-9_.\\-]{0,63}/"
_MOST_ITEMS = 10_000


def grammar(tools: Sequence[ToolSchema], *, parallel: bool) -> str:
    """See `hf2q.serve.chat.syntax.ToolSyntax.grammar`."""
    rules = [repeated("call_one", before="call:", close=CLOSE, again=(OPEN,), parallel=parallel)]
    rules.append("call_one: " + " | ".join(f"call_{place}" for place in range(len(tools))))
    for place, tool in enumerate(tools):
        rules.append(f"call_{place}: {quoted(tool.name)} call_{place}_v")
        builder = _Builder(f"call_{place}", tool.parameters)
        builder.object(f"call_{place}_v", tool.parameters, "")
        rules += builder.rules
    return "\n".join(rules)


class _Builder:
    """Rules for the values of one tool's parameters."""

    def __init__(self, name: str, root: Mapping[str, Any]) -> None:
        self._name, self._root = name, root
        self.rules: list[str] = []
        self._count = 0
        self._known: dict[str, str] = {}

    def value(self, schema: Any, path: str) -> str:
        """The name of a rule for the values of `schema`, which is written here."""
        if schema is True or schema == {}:
            return self._any()
        if schema is False or not isinstance(schema, Mapping):
            raise SchemaError("the schema allows nothing", path)
        words = set(schema) - {"type", "$defs"}
        if words == {"$ref"}:
            return self._reference(schema["$ref"], path)
        name = self._new()
        if words & {"anyOf", "oneOf", "enum", "const"} or isinstance(schema.get("type"), list | tuple):
            self._add(name, " | ".join(self._choices(schema, path)))
            return name
        kind = schema.get("type") or _meant(words, path)
        if kind == "string":
            try:
                within = text_terminal(schema, self._root)
            except SchemaError as error:
                raise SchemaError(error.message, path + error.path) from None
            self._add(name, f"{quoted(QUOTE)} {name}_t")
            self.rules.append(text_until(f"{name}_t", QUOTE, within=within))
        elif kind in _SCALARS:
            self._add(name, json_value(schema, self._root))
        elif kind == "object":
            self.object(name, schema, path)
        else:
            self._array(name, schema, path)
        return name

    def object(self, name: str, schema: Any, path: str) -> None:
        """The rule `name` for an object. Keys come in any order where they are few, else sorted, as templates do."""
        named, others = members(schema, self._root, path)
        parts: list[tuple[str, bool]] = []
        for parameter in sorted(named, key=lambda parameter: parameter.name):
            key = f"{path}/properties/{parameter.name}"
            if not parameter.name or set(parameter.name) & set("{}[],:<>\"' \n"):
                raise SchemaError(
                    f"a key called {parameter.name!r:.60} cannot be written in this model's syntax of calls", key
                )
            rule = self._new()
            self._add(rule, f"{quoted(parameter.name + ':')} {self.value(parameter.schema, key)}")
            parts.append((rule, parameter.required))
        free = None
        if others is not None:
            free = self._new()
            self._add(free, f'{free.upper()} ":" {self.value(others, path + "/additionalProperties")}')
            barred = " & ~(" + " | ".join(quoted(parameter.name) for parameter in named) + ")" if named else ""
            self.rules.append(f"{free.upper()}: {_KEY}{barred}")
        self._add(name, f'"{{" {name}_all "}}"')
        self.rules.append(ordered(f"{name}_all", parts, others=free, separator=","))

    def _array(self, name: str, schema: Mapping[str, Any], path: str) -> None:
        extra = set(schema) - _ARRAYS - {"type", "$defs"}
        if extra:
            raise SchemaError(f"{', '.join(sorted(extra))} cannot be enforced in this model's syntax of calls", path)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if least > _MOST_ITEMS or (most or 0) > _MOST_ITEMS:
            raise SchemaError(f"lists of more than {_MOST_ITEMS} are not supported", path)
        first = [self.value(part, f"{path}/prefixItems/{at}") for at, part in enumerate(schema.get("prefixItems", ()))]
        if most is not None:
            first = first[:most]
        item = None
        if schema.get("items", True) is not False and (most is None or most > len(first)):
            item = self.value(schema.get("items", True), f"{path}/items")
        elif least > len(first):
            raise SchemaError("the list must be longer than it can be", path)
        body = self._items(name, first, item, least, most)
        self._add(name, f'"[" {body} "]"')

    def _items(self, name: str, first: Sequence[str], item: str | None, least: int, most: int | None) -> str:
        """Items and the commas between them; the rules `name`_iN begin behind N of the listed ones."""
        for at in range(len(first), -1, -1):
            comma = '"," ' if at else ""
            if at < len(first):
                more = f"{comma}{first[at]} {name}_i{at + 1}"
            elif item is None:
                more = ""
            elif at:
                low, high = max(least - at, 0), "" if most is None else most - at
                more = f'("," {item}){{{low},{high}}}'
            else:
                low, high = max(least - 1, 0), "" if most is None else most - 1
                more = f'{item} ("," {item}){{{low},{high}}}'
            choices = [more] if more else []
            if at >= least and not (at == len(first) and at and item is not None):
                choices.append('""')
            self._add(f"{name}_i{at}", " | ".join(choices))
        return f"{name}_i0"

    def _choices(self, schema: Mapping[str, Any], path: str) -> list[str]:
        """A rule for each alternative."""
        words = set(schema) - {"type", "$defs"}
        if words <= {"enum", "const"} and "type" not in schema and len(words) == 1:
            return [self._constant(value) for value in schema.get("enum", [schema.get("const")])]
        kinds = schema.get("type")
        if words <= {"enum", "const"} and len(words) == 1:
            allowed = {kinds} if isinstance(kinds, str) else set(schema["type"])
            values = schema.get("enum", [schema.get("const")])
            found = [self._constant(value) for value in values if _kinds(value) & allowed]
            if not found:
                raise SchemaError("no value of the enumeration is of the type", path)
            return found
        for word in ("anyOf", "oneOf"):
            if words == {word} and (word == "anyOf" or _apart(schema[word])):
                parts = [part for part in schema[word] if part is not False]
                if kinds is not None:
                    parts = [{"type": kinds, **(part if isinstance(part, Mapping) else {})} for part in parts]
                    if any(part.get("type") != kinds for part in parts):
                        raise SchemaError(f"{word} beside another type cannot be enforced here", path)
                return [self.value(part, f"{path}/{word}/{at}") for at, part in enumerate(parts)]
        if isinstance(kinds, list | tuple) and not words & {"anyOf", "oneOf", "enum", "const", "$ref"}:
            return [self.value(_only(schema, kind, path), path) for kind in kinds]
        listed = ", ".join(sorted(words))
        raise SchemaError(f"{listed} together cannot be enforced in this model's syntax of calls", path)

    def _constant(self, value: Any) -> str:
        if isinstance(value, str):
            if QUOTE in value:
                raise SchemaError(f"the text {value!r:.60} cannot be written in this model's syntax of calls")
            return quoted(QUOTE + value + QUOTE)
        if isinstance(value, Mapping):
            inner = ' "," '.join(f"{quoted(key + ':')} {self._constant(part)}" for key, part in value.items())
            return f'"{{" {inner} "}}"'
        if isinstance(value, list | tuple):
            inner = ' "," '.join(self._constant(part) for part in value)
            return f'"[" {inner} "]"'
        rule = self._new()
        self._add(rule, json_value({"const": value}, self._root))
        return rule

    def _reference(self, reference: str, path: str) -> str:
        if reference not in self._known:
            name = self._known[reference] = self._new()
            target = self._root["$defs"][reference.rpartition("/")[2]]
            self._add(name, self.value(target, path))
        return self._known[reference]

    def _any(self) -> str:
        """A rule for every value."""
        if "" not in self._known:
            name = self._known[""] = self._new()
            scalar, key = json_value({"type": ["null", "boolean", "number"]}, {}), f"{name}_key"
            self._add(name, f"{name}_s | {quoted(QUOTE)} {name}_t | {name}_l | {name}_o")
            self._add(f"{name}_s", scalar)
            self.rules.append(text_until(f"{name}_t", QUOTE))
            self._add(f"{name}_l", f'"[" ({name} ("," {name})*)? "]"')
            self._add(f"{name}_o", f'"{{" ({key} ("," {key})*)? "}}"')
            self._add(key, f'{key.upper()} ":" {name}')
            self.rules.append(f"{key.upper()}: {_KEY}")
        return self._known[""]

    def _new(self) -> str:
        self._count += 1
        return f"{self._name}_{self._count}"

    def _add(self, name: str, body: str) -> None:
        self.rules.append(f"{name}: {body}")


def _meant(words: set[str], path: str) -> str:
    """The type that a schema without one speaks of: it allows all others too, but what says so means this one."""
    for kind, spoken in (("string", _TEXTS), ("object", _OBJECTS), ("array", _ARRAYS), ("number", _NUMBERS)):
        if words and words <= spoken:
            return kind
    raise SchemaError(
        f"{', '.join(sorted(words)) or 'a schema'} without a type cannot be enforced in this model's syntax of calls",
        path,
    )


def _only(schema: Mapping[str, Any], kind: str, path: str) -> dict[str, Any]:
    """`schema` for one type alone."""
    words = {"string": _TEXTS, "object": _OBJECTS, "array": _ARRAYS, "number": _NUMBERS, "integer": _NUMBERS}
    parts = schema.get("allOf", ())
    if any(not isinstance(part, Mapping) or set(part) - _TEXTS - _NUMBERS - {"type"} for part in parts):
        raise SchemaError("allOf beside several types cannot be enforced in this model's syntax of calls", path)
    chosen = {word: value for word, value in schema.items() if word in words.get(kind, ())}
    joined = [{word: value for word, value in part.items() if word in words.get(kind, ())} for part in parts]
    joined = [{"type": kind, **part} for part in joined if part]
    return {"type": kind, **chosen, **({"allOf": joined} if joined else {})}


def _kinds(value: Any) -> set[str]:
    if value is None:
        return {"null"}
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, str):
        return {"string"}
    if isinstance(value, int | float):
        return {"number", "integer"} if float(value).is_integer() else {"number"}
    return {"object"} if isinstance(value, Mapping) else {"array"}


def _apart(parts: Sequence[Any]) -> bool:
    """Whether no value can satisfy two of the schemas, as far as their types show."""
    seen: set[str] = set()
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        kind = "number" if kind == "integer" else kind
        if not isinstance(kind, str) or kind in seen:
            return False
        seen.add(kind)
    return True
