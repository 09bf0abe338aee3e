"""`CallsContract`: an honest syntax passes, and faults put in by hand are caught."""

import json
from types import SimpleNamespace

import pytest

from hf2q.serve.chat.reading import Reading
from hf2q.testing.calls import CallsContract
from hf2q.testing.checking import generated
from hf2q.testing.verdicts import failures
from hf2q.types import ChatFormat

CHECKS = [name for name in vars(CallsContract) if name.startswith("test_")]


class Reader(Reading):
    """``name {json}``."""

    def body(self):
        self.begin((yield from self.until(" ", most=20)))
        yield from self.json_object(self.say)
        self.end()
        yield from self.expect("</c>")


class Honest:
    markers, marks, foreign = ("<c>", "</c>"), ("<c>", "</c>"), ("<turn>",)

    def reader(self, tools):
        return Reader(tools)


def suite(syntax):
    class Suite(CallsContract):
        __test__ = False
        name = "mine"
        examples = (('<c>f {"a": 1}</c>', [("f", {"a": 1})]),)

        @classmethod
        def plugins(cls):
            format = ChatFormat(name="mine", tools=f"{__name__}:{syntax.__name__}")
            return SimpleNamespace(chat_format=lambda name: format)

        def written(self, calls):
            return "".join(f"<c>{name} {json.dumps(values, ensure_ascii=False)}</c>" for name, values in calls)

    return Suite


class AnyName(Reader):
    def begin(self, name):
        self.tools.setdefault(name, self.tools["nothing"])
        return super().begin(name)


class RawText(Reader):
    def say(self, arguments):
        super().say("\\" if arguments.startswith("\\") else arguments)


class ToTheQuote(Reader):
    """Takes the first brace for the end."""

    def body(self):
        self.begin((yield from self.until(" ", most=20)))
        self.say((yield from self.until("}")) + "}")
        self.end()
        yield from self.expect("</c>")


class Early(Reader):
    """Says that a call is whole before it is."""

    def begin(self, name):
        found = super().begin(name)
        self.end()
        return found


class Once(Reader):
    """Takes no key twice."""

    def json_object(self, sink):
        parts = []
        yield from super().json_object(parts.append)
        json.loads("".join(parts), object_pairs_hook=self.once)
        sink("".join(parts))

    @staticmethod
    def once(pairs):
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a key comes twice")


def faulty(reader):
    class Syntax(Honest):
        def reader(self, tools):
            return reader(tools)

    return Syntax


AnyNameSyntax, RawSyntax, QuoteSyntax, EarlySyntax, OnceSyntax = map(
    faulty, (AnyName, RawText, ToTheQuote, Early, Once)
)
for _name in ("AnyNameSyntax", "RawSyntax", "QuoteSyntax", "EarlySyntax", "OnceSyntax"):
    globals()[_name].__name__ = _name


class SameMarkers(Honest):
    markers = marks = ("<c>", "<c>")


class MarksForgotten(Honest):
    marks = ("<c>",)


class ForeignForgotten(Honest):
    foreign = ("",)


def test_an_honest_syntax_passes(tmp_path):
    assert failures(suite(Honest), tmp_path, only=CHECKS) == {}


@pytest.mark.parametrize(
    ("syntax", "check"),
    [
        (AnyNameSyntax, "test_a_call_of_no_tool_is_content"),
        (RawSyntax, "test_calls_come_back"),
        (QuoteSyntax, "test_calls_come_back"),
        (QuoteSyntax, "test_damage_never_gives_broken_json"),
        (EarlySyntax, "test_pieces_come_in_order"),
        (OnceSyntax, "test_a_key_that_comes_twice_is_read"),
        (SameMarkers, "test_its_markers_make_sense"),
        (MarksForgotten, "test_its_markers_make_sense"),
        (ForeignForgotten, "test_its_markers_make_sense"),
    ],
)
def test_faults_are_caught(syntax, check, tmp_path):
    assert check in failures(suite(syntax), tmp_path, only=[check])


def test_a_syntax_without_samples_is_not_checked(tmp_path):
    class Bare(suite(Honest)):
        __test__ = False
        written = CallsContract.written
        examples = ()

    assert failures(Bare, tmp_path, only=CHECKS) == {}


def test_a_format_without_a_suite_of_its_own_gets_one():
    formats = {
        name: ChatFormat(name=name, tools=tools) for name, tools in (("mine", "a:B"), ("other", "a:B"), ("no", ""))
    }
    plugins = SimpleNamespace(chat_format=formats.__getitem__, graphs={})
    info = SimpleNamespace(name="p", distribution="dist", provides={"chat format": tuple(formats)})
    [found] = generated(info, [suite(Honest)], plugins)
    assert issubclass(found, CallsContract)
    assert (found.plugin, found.name) == ("dist", "other")
