"""`Plugins.load`: every way in which a plugin can be wrong is recorded against it, and leaves no trace of it."""

import sys

import pytest

from hf2q.discovery import discover
from hf2q.errors import (
    ContractError,
    DuplicateNameError,
    PluginError,
    PluginLoadError,
    UnknownNameError,
)
from hf2q.plugins import Plugins
from hf2q.testing.distributions import write_distribution

GOOD = """
    from hf2q.hookspecs import hookimpl
    from hf2q.codec import QuantCodec
    HF2Q_PLUGIN_API = 1

    @hookimpl
    def hf2q_quant_codecs():
        yield QuantCodec(name="{name}", ggml_type=99, block_size=32, type_size=18, encoder="a:b", decoder="a:c")
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function that installs a fake distribution; its modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    for variable in ("HF2Q_PLUGINS", "HF2Q_DISABLE_PLUGINS", "HF2Q_STRICT_PLUGINS"):
        monkeypatch.delenv(variable, raising=False)

    def make(source, name="thing", *, module=None, distribution=None, **more):
        module = module or f"hf2q_fake_{name}"
        write_distribution(tmp_path, distribution or f"hf2q-{name}", {name: module}, {module: source}, **more)

    yield make
    for name in set(sys.modules) - before:
        if name.startswith("hf2q_fake"):
            del sys.modules[name]


def load(*names, **more):
    """Load core and the fake plugins only: what else is installed here does not matter to these tests."""
    points = [point for point in discover() if point.name in ("builtin", *names)]
    return Plugins.load(entry_points=points, **more)


def failure(plugins, name="thing"):
    """The record of the one plugin that failed, after checking that it left nothing behind."""
    (info,) = plugins.failures
    assert info.name == name
    assert info.provides == {}
    assert "Q9_X" not in plugins.codecs
    assert plugins.codec("F16").name == "F16", "core must go on working"
    return info


def test_a_good_plugin(install):
    install(GOOD.format(name="Q9_X"), version="2.5")
    plugins = load("thing")
    assert plugins.codec("Q9_X").ggml_type == 99
    (info,) = (info for info in plugins.infos if info.name == "thing")
    assert (info.status, info.version, info.distribution) == ("loaded", "2.5", "hf2q-thing")
    assert info.provides == {"codec": ("Q9_X",)}
    assert not plugins.failures


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import hf2q_no_such_module", "ModuleNotFoundError: No module named 'hf2q_no_such_module'"),
        ("raise ImportError('libfoo.so.1: cannot open')", "ImportError: libfoo.so.1: cannot open"),
        ("def broken(:\n    pass", "SyntaxError"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise BaseException('odd')", "BaseException: odd"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("raise RecursionError('deep')", "RecursionError: deep"),
    ],
)
def test_what_is_raised_at_import_is_recorded(install, source, told):
    install(source)
    info = failure(load("thing"))
    assert info.status == "failed"
    assert "plugin 'thing' of hf2q-thing failed at import" in info.reason
    assert told in info.reason
    assert "HF2Q_DISABLE_PLUGINS=thing" in info.hint


def test_an_interrupt_by_the_user_stays_one(install):
    install("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load("thing")


def test_an_interrupt_inside_a_hook_stays_one(install):
    install(GOOD.format(name="Q9_X") + "        raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load("thing")


@pytest.mark.parametrize("stated", ["HF2Q_PLUGIN_API = 2", "HF2Q_PLUGIN_API = '1'", ""])
def test_another_api_version_is_refused_before_any_hook_runs(install, stated):
    install(GOOD.format(name="Q9_X").replace("HF2Q_PLUGIN_API = 1", stated) + "        raise RuntimeError('ran')\n")
    info = failure(load("thing"))
    assert "HF2Q_PLUGIN_API" in info.reason
    assert "this hf2q speaks 1" in info.reason
    assert "ran" not in info.reason
    assert info.hint == "pip install --upgrade hf2q hf2q-thing"


def test_a_mistyped_hook_name(install):
    install(GOOD.format(name="Q9_X").replace("hf2q_quant_codecs", "hf2q_quant_codec"))
    assert "hf2q_quant_codec" in failure(load("thing")).reason


def test_a_hook_without_the_decorator_is_not_passed_over(install):
    install(GOOD.format(name="Q9_X").replace("@hookimpl\n", "\n"))
    info = failure(load("thing"))
    assert "defines hf2q_quant_codecs without @hookimpl" in info.reason
    assert "hookimpl" in info.hint


def test_a_hook_with_an_argument_that_does_not_exist(install):
    install(GOOD.format(name="Q9_X").replace("codecs()", "codecs(registry)"))
    assert "registry" in failure(load("thing")).reason


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("yield 'Q9_X'", "yielded str 'Q9_X', expected QuantCodec"),
        ("yield None", "yielded NoneType None, expected QuantCodec"),
        ("return 7", "gave 7, expected an iterable of QuantCodec"),
        ("return 'Q9_X'", "gave 'Q9_X', expected an iterable of QuantCodec"),
        ("yield codec(''); ", "yielded a codec whose name is ''"),
        ("yield codec(7); ", "yielded a codec whose name is 7"),
        ("yield codec('Q9_X'); yield codec('Q9_X')", "yielded the codec 'Q9_X' twice"),
        ("yield codec('Q9_X'); raise ValueError('midway')", "ValueError: midway"),
        ("yield codec('Q9_X'); import hf2q_gone", "hf2q_gone"),
        ("yield codec('Q9_X'); raise SystemExit(2)", "SystemExit: 2"),
    ],
)
def test_what_a_hook_yields_is_checked(install, body, told):
    source = f"""
    from hf2q.hookspecs import hookimpl
    from hf2q.codec import QuantCodec
    HF2Q_PLUGIN_API = 1

    def codec(name):
        return QuantCodec(name=name, ggml_type=99, block_size=32, type_size=18, encoder="a:b", decoder="a:c")

    @hookimpl
    def hf2q_quant_codecs():
        {body}
    """
    install(source)
    info = failure(load("thing"))
    assert told in info.reason
    assert "thing" in info.reason


def test_a_hook_that_gives_none_provides_nothing(install):
    install(
        """
        from hf2q.hookspecs import hookimpl
        HF2Q_PLUGIN_API = 1
        @hookimpl
        def hf2q_quant_codecs():
            return None
        """
    )
    plugins = load("thing")
    assert not plugins.failures
    assert next(info for info in plugins.infos if info.name == "thing").provides == {}


def test_one_broken_plugin_does_not_keep_others_out(install):
    install("1 / 0", "broken")
    install(GOOD.format(name="Q9_X"), "fine")
    plugins = load("broken", "fine")
    assert plugins.codec("Q9_X")
    assert [info.name for info in plugins.failures] == ["broken"]
    with pytest.raises(UnknownNameError, match="plugins that failed to load: broken"):
        plugins.codec("Q8_X")


def test_two_providers_of_a_name_are_refused_naming_both(install):
    install(GOOD.format(name="Q9_X"), "one")
    install(GOOD.format(name="Q9_X"), "two")
    plugins = load("one", "two")
    with pytest.raises(DuplicateNameError, match="'Q9_X' is provided by hf2q-one and hf2q-two"):
        plugins.codec("Q9_X")
    assert [clash.message for clash in plugins.clashes] == [
        "codec 'Q9_X' is provided by hf2q-one and hf2q-two; neither is used"
    ]


def test_a_third_party_does_not_replace_core_silently(install):
    install(GOOD.format(name="F16"))
    with pytest.raises(DuplicateNameError, match="hf2q and hf2q-thing"):
        load("thing").codec("F16")


def test_a_third_party_replaces_core_once_that_is_disabled(install):
    install(GOOD.format(name="F16"))
    plugins = load("thing", disable=["builtin"])
    assert plugins.codec("F16").ggml_type == 99
    assert next(info for info in plugins.infos if info.name == "builtin").status == "disabled"
    assert "BF16" not in plugins.codecs


def test_the_same_module_under_two_names_is_one(install):
    install(GOOD.format(name="Q9_X"), "one", module="hf2q_fake_same")
    install(GOOD.format(name="Q9_X"), "two", module="hf2q_fake_same")
    plugins = load("one", "two")
    assert plugins.codec("Q9_X")
    assert not plugins.clashes
    assert not plugins.failures


def test_a_stale_entry_point_is_named_with_the_fix(install, tmp_path):
    install(GOOD.format(name="Q9_X"))
    (tmp_path / "hf2q_fake_thing.py").unlink()
    info = failure(load("thing"))
    assert "stale entry point" in info.reason
    assert "'hf2q_fake_thing'" in info.reason
    assert info.hint == "pip uninstall hf2q-thing, or install it again"


def test_a_module_missing_inside_a_plugin_is_not_called_stale(install):
    install("import hf2q_fake_thing_part")
    assert "stale" not in failure(load("thing")).reason


def test_an_entry_point_may_name_an_object(install, tmp_path):
    source = GOOD.format(name="Q9_X") + "\n    import sys\n    this = sys.modules[__name__]\n"
    write_distribution(tmp_path, "hf2q-thing", {"thing": "hf2q_fake_object:this"}, {"hf2q_fake_object": source})
    assert load("thing").codec("Q9_X")


def test_an_entry_point_whose_object_is_missing(install, tmp_path):
    write_distribution(tmp_path, "hf2q-thing", {"thing": "hf2q_fake_obj:gone"}, {"hf2q_fake_obj": "x = 1"})
    assert "gone" in failure(load("thing")).reason


MARK = "import sys\nsys.modules['hf2q_fake_ran'] = sys"


@pytest.mark.parametrize("name", ["thing", "hf2q-thing", "HF2Q_Thing", "hf2q.thing"])
def test_a_denied_plugin_is_not_imported(install, name):
    install(MARK)
    plugins = load("thing", disable=[name])
    assert "hf2q_fake_ran" not in sys.modules
    info = next(info for info in plugins.infos if info.name == "thing")
    assert (info.status, info.version) == ("disabled", "1.0")
    assert "HF2Q_DISABLE_PLUGINS" in info.reason


def test_a_plugin_outside_the_allow_list_is_not_imported(install):
    install(MARK, "other")
    install(GOOD.format(name="Q9_X"), "thing")
    plugins = load("other", "thing", only=["thing"])
    assert "hf2q_fake_ran" not in sys.modules
    assert plugins.codec("Q9_X")
    assert plugins.codec("F16"), "core's own features stay when a list names plugins"
    assert next(info for info in plugins.infos if info.name == "other").status == "disabled"


def test_the_lists_come_from_the_environment(install, monkeypatch):
    install(GOOD.format(name="Q9_X"), "one")
    install(GOOD.format(name="Q9_Y"), "two")
    monkeypatch.setenv("HF2Q_PLUGINS", " one , hf2q-two ")
    monkeypatch.setenv("HF2Q_DISABLE_PLUGINS", "two")
    assert load("one", "two").codecs.names == ("BF16", "F16", "F32", "I32", "Q9_X")


def test_an_allow_list_with_an_unknown_name_is_refused(install):
    install(MARK)
    with pytest.raises(PluginLoadError, match="not installed: thong; installed: builtin, hf2q"):
        load("thing", only=["thong"])
    assert "hf2q_fake_ran" not in sys.modules


def test_a_deny_list_with_an_unknown_name_is_reported(install, caplog):
    load(disable=["thong"])
    assert "'thong', which is not installed" in caplog.text


def test_a_plugin_named_builtin_is_not_let_through_an_allow_list(install):
    install(GOOD.format(name="Q9_X"), "one")
    install(MARK, "builtin", distribution="hf2q-pretender")
    load("one", only=["one"])
    assert "hf2q_fake_ran" not in sys.modules


STRICT = [
    ("1 / 0", PluginLoadError),
    ("HF2Q_PLUGIN_API = 2", PluginLoadError),
    (GOOD.format(name="Q9_X") + "        yield 7\n", ContractError),
    (GOOD.format(name="F16"), DuplicateNameError),
]


@pytest.mark.parametrize(("source", "error"), STRICT)
def test_strict_mode_raises(install, source, error):
    install(source)
    with pytest.raises(error):
        load("thing", strict=True)


def test_strict_mode_by_the_environment(install, monkeypatch):
    install("1 / 0")
    monkeypatch.setenv("HF2Q_STRICT_PLUGINS", "1")
    with pytest.raises(PluginError):
        load("thing")


def test_each_plugin_is_announced_before_it_is_imported(install):
    install(MARK)
    seen = []
    load("thing", before=lambda point: seen.append((point.name, "hf2q_fake_ran" in sys.modules)))
    assert seen == [("builtin", False), ("thing", False)]
    assert sys.modules.pop("hf2q_fake_ran")


def test_hook_calls_can_be_traced(install, monkeypatch, caplog):
    install(GOOD.format(name="Q9_X"))
    monkeypatch.setenv("HF2Q_TRACE_HOOKS", "1")
    load("thing")
    assert "hf2q_quant_codecs" in caplog.text
