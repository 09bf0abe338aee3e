"""Chat templates: the same prompts as transformers, and nothing worse than an error from a hostile one."""

import json
import signal
from pathlib import Path

import pytest

from hf2q.errors import LoadError, RequestError
from hf2q.serve.chat import ChatTemplate, TemplateLimits

HERE = Path(__file__).parent
FIXTURE = HERE.parents[1] / "tests" / "data" / "qwen3_5" / "chat_template.jinja"
# recorded with transformers 5.17 (AutoTokenizer.apply_chat_template, tokenize=False) on the fixture checkpoint
CASES = json.loads((HERE / "data" / "chat_rendered.json").read_text(encoding="utf-8"))
USER = [{"role": "user", "content": "hi"}]
LIMITS = TemplateLimits(seconds=0.25, memory=1 << 28, characters=100_000)


def open_template(source, **more):
    more.setdefault("limits", LIMITS)
    return ChatTemplate(source, **more)


@pytest.fixture(scope="module")
def fixture_template():
    template = ChatTemplate(FIXTURE.read_text(encoding="utf-8"), tokens={"eos_token": "<|im_end|>"})
    yield template
    template.close()


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_same_prompt_as_transformers(fixture_template, case):
    assert fixture_template.render(case["messages"], **case["variables"]) == case["expected"]


def test_variables_are_what_a_request_may_set(fixture_template):
    assert "enable_thinking" in fixture_template.variables
    assert not fixture_template.variables & {"messages", "tools", "documents", "add_generation_prompt", "eos_token"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>hi</s>"),
        ("{{ unknown_name }}|{{ tools is none }}|{{ documents is none }}", "|True|True"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),  # trim_blocks and lstrip_blocks
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}{% set x = 1 %}<{{ x }}>{% endgeneration %}{{ x }}", "<1>"),
        ("{{ {'b': '<&>é', 'a': [1, none]} | tojson }}", '{"b": "<&>é", "a": [1, null]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{{ strftime_now('%%') }}", "%"),
        ("{{ '<b>' }}", "<b>"),  # no escaping
    ],
)
def test_environment(source, expected):
    template = open_template(source, tokens={"bos_token": "<s>", "eos_token": "</s>"})
    try:
        assert template.render(USER) == expected
    finally:
        template.close()


def test_message_of_the_template_reaches_the_caller():
    template = open_template("{{ raise_exception('roles must alternate, not ' ~ messages[0].role) }}")
    with pytest.raises(RequestError, match="roles must alternate, not user") as caught:
        template.render(USER)
    assert (caught.value.param, caught.value.code) == ("messages", "chat_template_error")
    template.close()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ messages.__class__.__mro__ }}", "sandbox"),
        ("{{ messages.__init__.__globals__ }}", "sandbox"),
        ("{{ cycler.__init__.__globals__ }}", "sandbox"),
        ("{{ messages.append(1) }}", "sandbox"),
        ("{{ messages[0].update({'role': 'x'}) }}", "sandbox"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{% for a in range(10**9) %}{% endfor %}", "MAX_RANGE"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "more than 0.25 s"),
        ("{{ 'x' * (10**10 * messages | length) }}", "memory"),
        ("{{ 'x'.center(10**10 * messages | length) }}", "memory"),
        ("{{ '%*d' % (2000000000 * messages | length, 1) }}", "memory"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "nests too deeply"),
        ("{% for i in range(100001 // 2) %}{{ 'xyz' }}{% endfor %}", "more than the 100000 allowed"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ messages[5].role.x }}", "undefined|no element"),
    ],
)
def test_hostile_template_costs_the_request_only(source, message):
    template = open_template(source)
    try:
        for _ in range(2):  # the second render gets an answer too: a process that was killed is started again
            with pytest.raises(RequestError, match=message):
                template.render(USER)
    finally:
        template.close()


def test_nothing_is_reachable_by_undefined_attributes():
    template = open_template(
        "[{{ ''.__class__ }}{{ lipsum.__globals__ }}{{ self.__init__ }}{{ ''|attr('__class__') }}]"
    )
    assert template.render(USER) == "[]"
    template.close()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{", "end of template"),
        ("{% nonsense %}", "unknown tag"),
        ("{{" + "(" * 100_000 + "}}", "nests too deeply"),
        ("{{ 2 ** (10 ** 9) }}", "more than 0.25 s"),  # jinja2 folds constants while it compiles
    ],
)
def test_template_that_does_not_compile(source, message):
    with pytest.raises(LoadError, match=message) as caught:
        open_template(source)
    assert "--chat-template-file" in caught.value.hint


def test_process_that_is_gone_is_started_again():
    template = open_template("{{ messages[0].content }}")
    assert template.render(USER) == "hi"
    popen = template._process._popen
    popen.send_signal(signal.SIGKILL)
    popen.wait()
    with pytest.raises(RequestError, match="ended early"):
        template.render(USER)
    assert template.render(USER) == "hi"
    template.close()
    assert template.render(USER) == "hi"
    template.close()


def test_dropping_the_template_ends_its_process():
    template = open_template("x")
    popen = template._process._popen
    del template
    assert popen.wait(timeout=10) == 0


def test_variables_that_json_cannot_say():
    template = open_template("{{ x }}")
    nested = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(RequestError, match=r"cannot be passed|nests too deeply"):
        template.render(USER, x=nested)
    assert template.render(USER, x=1) == "1"
    template.close()


@pytest.mark.parametrize(
    ("source", "read"),
    [
        ("{{ a }}{{ b.c }}{{ d[e] }}", "abde"),
        ("{% set a = b %}{{ a }}", "b"),
        ("{{ a }}{% set a = 1 %}", "a"),
        ("{% set a = a | default(1) %}{{ a }}", "a"),
        ("{% if a is not defined %}{% set a = true %}{% endif %}{{ a }}", "a"),
        ("{% if b %}{% set a = 1 %}{% endif %}{{ a }}", "ab"),
        ("{% if b %}{% set a = 1 %}{% else %}{% set a = 2 %}{% endif %}{{ a }}", "b"),
        ("{% if b %}{% set a = 1 %}{% elif c %}{% set a = 3 %}{% else %}{% set a = 2 %}{% endif %}{{ a }}", "bc"),
        ("{% if b %}{% set a = 1 %}{% elif c %}{% else %}{% set a = 2 %}{% endif %}{{ a }}", "abc"),
        ("{% for m in messages %}{% if b %}{% set a = m %}{{ a }}{% endif %}{% endfor %}", "b"),
        ("{% for a in b %}{{ a }}{{ loop.index }}{% endfor %}{{ a }}", "ab"),
        ("{% for a, c in b if c %}{{ a }}{% else %}{{ d }}{% endfor %}", "bd"),
        ("{% macro f(a, c=d) %}{{ a }}{{ c }}{{ e }}{{ caller() }}{% endmacro %}{{ f(1) }}", "de"),
        ("{% macro f() %}{{ caller(1) }}{% endmacro %}{% call(a) f() %}{{ a }}{{ b }}{% endcall %}", "b"),
        ("{% set a %}{{ b }}{% endset %}{{ a }}", "b"),
        ("{% with a = b %}{{ a }}{% endwith %}{{ c }}", "bc"),
        ("{% set ns = namespace(x=a) %}{% set ns.x = b %}{{ ns.x }}", "ab"),
        ("{% generation %}{{ a }}{% endgeneration %}{% filter upper %}{{ b }}{% endfilter %}", "ab"),
        ("{% set a = 'x' if b else c %}", "bc"),
        ("{{ messages }}{{ tools }}{{ range(3) }}{{ raise_exception }}{{ add_generation_prompt }}", ""),
    ],
)
def test_variables_are_the_names_that_are_read_before_they_are_set(source, read):
    template = open_template(source)
    assert template.variables == set(read)
    template.close()
