"""`hf2q plugins`: lists everything, whatever a plugin does; `check` says no when it should."""

import json
import os
import subprocess
import sys

import pytest

from hf2q.cli import main
from hf2q.testing.distributions import write_distribution

CODEC = """
    from hf2q.codec import QuantCodec
    from hf2q.hookspecs import hookimpl
    HF2Q_PLUGIN_API = 1

    @hookimpl
    def hf2q_quant_codecs():
        yield QuantCodec(name="{name}", ggml_type=99, block_size=32, type_size=18, encoder="{kernels}:encode",
                         decoder="{kernels}:decode", source="made up")
"""
KERNELS = """
    def encode(x, out, importance):
        out[...] = {fill}

    def decode(data, out):
        out[...] = 0
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Fake distributions in tmp_path are installed for child processes."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for variable in ("HF2Q_PLUGINS", "HF2Q_DISABLE_PLUGINS", "HF2Q_STRICT_PLUGINS"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def install(place, name, source, **modules):
    write_distribution(place, f"hf2q-{name}", {name: f"hf2q_fake_{name}"}, {f"hf2q_fake_{name}": source, **modules})


def listed(capsys, *words):
    """Exit code and the parsed JSON."""
    code = main([*words, "plugins", "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_list_says_what_each_provides(place, capsys):
    install(place, "mine", CODEC.format(name="Q9_X", kernels="hf2q_fake_kernels"))
    assert main(["plugins"]) == 0
    out = capsys.readouterr().out
    assert "mine  1.0  hf2q-mine  loaded\n    codec:          Q9_X\n" in out
    assert "builtin" in out
    assert "F32, F16, BF16" in out


def test_the_list_as_json(place, capsys):
    install(place, "mine", CODEC.format(name="Q9_X", kernels="hf2q_fake_kernels"))
    code, told = listed(capsys)
    assert code == 0
    assert set(told) == {"plugins", "problems"}
    (mine,) = (plugin for plugin in told["plugins"] if plugin["name"] == "mine")
    assert mine == {
        "name": "mine",
        "distribution": "hf2q-mine",
        "version": "1.0",
        "module": "hf2q_fake_mine",
        "status": "loaded",
        "provides": {"codec": ["Q9_X"]},
        "reason": "",
        "hint": None,
    }


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import hf2q_gone", "No module named 'hf2q_gone'"),
        ("def f(:", "SyntaxError"),
        ("import sys; sys.exit(1)", "SystemExit: 1"),
        ("import os; os._exit(0)", "ended the process"),
        ("HF2Q_PLUGIN_API = 99", "HF2Q_PLUGIN_API = 99"),
    ],
)
def test_a_failure_is_listed_with_reason_and_hint(place, capsys, source, told):
    install(place, "bad", source)
    assert main(["plugins"]) == 0
    out = capsys.readouterr().out
    assert "bad  1.0  hf2q-bad  failed" in out
    assert told in out
    assert "hint:" in out
    assert "F32, F16, BF16" in out, "the rest is still listed"


def test_a_clash_is_a_problem(place, capsys):
    for name in ("one", "two"):
        install(place, name, CODEC.format(name="Q9_X", kernels="k"))
    _, told = listed(capsys)
    (problem,) = told["problems"]
    assert "codec 'Q9_X' is provided by hf2q-one and hf2q-two" in problem["message"]
    assert "HF2Q_DISABLE_PLUGINS=hf2q-two" in problem["hint"]


def test_a_plugin_that_provides_nothing_is_told(place, capsys):
    install(place, "empty", "HF2Q_PLUGIN_API = 1")
    main(["plugins"])
    assert "empty  1.0  hf2q-empty  loaded\n    provides nothing\n" in capsys.readouterr().out


def test_strict_mode_lists_and_fails(place, capsys):
    install(place, "bad", "1 / 0")
    code, told = listed(capsys, "--strict-plugins")
    assert code == 1
    assert any(plugin["status"] == "failed" for plugin in told["plugins"])


def test_strict_mode_without_failures_is_content(place, capsys):
    assert listed(capsys, "--plugins", "builtin", "--strict-plugins")[0] == 0


def test_the_allow_list_holds(place, capsys):
    install(place, "one", "HF2Q_PLUGIN_API = 1")
    install(place, "two", "HF2Q_PLUGIN_API = 1")
    _, told = listed(capsys, "--plugins", "two")
    status = {plugin["name"]: plugin["status"] for plugin in told["plugins"]}
    assert (status["builtin"], status["one"], status["two"]) == ("loaded", "disabled", "loaded")


def test_an_allow_list_with_an_unknown_name_still_lists(place, capsys):
    code, told = listed(capsys, "--plugins", "thong")
    assert code == 0
    assert "not installed: thong" in told["problems"][0]["message"]
    assert told["plugins"]


# ---------------------------------------------------------------------------------------------------------------- check


def test_check_catches_a_faulty_codec(place, capsys):
    install(
        place,
        "faulty",
        CODEC.format(name="Q9_X", kernels="hf2q_fake_kernels"),
        hf2q_fake_kernels=KERNELS.format(fill=0),
    )
    assert main(["plugins", "check", "hf2q-faulty"]) == 1
    out = capsys.readouterr().out
    assert "codec Q9_X" in out
    assert "FAIL         the error is that of as many bits" in out
    assert "relative error 1.00000" in out
    assert "assert 1.0 <= " in out, "the suites' asserts are rewritten, so that failures show values"
    assert "PASS         the size law" in out
    assert "NOT CHECKED  golden blocks" in out
    assert "hf2q-faulty 1.0: " in out


def test_check_runs_the_author_s_own_suites(place, capsys):
    """A package with hf2q_contract: its classes run, and no generated one about the same codec."""
    package = place / "hf2q_fake_own"
    package.mkdir()
    (package / "hf2q_contract.py").write_text(
        "from hf2q.testing import CodecContract\n"
        "class Mine(CodecContract):\n"
        "    plugin, name = 'own', 'Q9_X'\n"
        "    def test_my_own_law(self):\n"
        "        assert 1 == 2, 'broken law'\n"
    )
    from textwrap import dedent

    (package / "__init__.py").write_text(dedent(CODEC.format(name="Q9_X", kernels="k")))
    write_distribution(place, "hf2q-own", {"own": "hf2q_fake_own"}, {})
    assert main(["plugins", "check", "own", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    names = [check["check"] for check in told["checks"]]
    assert names.count("test_the_size_law") == 1
    (mine,) = (check for check in told["checks"] if check["check"] == "test_my_own_law")
    assert (mine["verdict"], mine["subject"]) == ("failed", "codec Q9_X")
    assert "broken law" in mine["reason"]


def test_check_of_a_contract_module_that_does_not_import(place, capsys):
    package = place / "hf2q_fake_torn"
    package.mkdir()
    (package / "__init__.py").write_text("HF2Q_PLUGIN_API = 1\n")
    (package / "hf2q_contract.py").write_text("import hf2q_gone\n")
    write_distribution(place, "hf2q-torn", {"torn": "hf2q_fake_torn"}, {})
    assert main(["plugins", "check", "torn"]) == 1
    out = capsys.readouterr().out
    assert "FAIL" in out
    assert "hf2q_gone" in out


def test_check_of_a_plugin_that_does_not_load(place, capsys):
    install(place, "bad", "1 / 0")
    assert main(["plugins", "check", "bad"]) == 1
    out = capsys.readouterr().out
    assert "FAIL         the plugin loads" in out
    assert "ZeroDivisionError" in out


def test_check_of_kernels_that_end_the_process(place, capsys):
    install(
        place,
        "crash",
        CODEC.format(name="Q9_X", kernels="hf2q_fake_kernels"),
        hf2q_fake_kernels="import os; os._exit(0)",
    )
    assert main(["plugins", "check", "crash"]) == 1
    assert "the suites run to their end" in capsys.readouterr().out


def test_check_of_what_no_contract_covers(place, capsys):
    source = """
    from hf2q.hookspecs import hookimpl
    from hf2q.types import ChatFormat
    HF2Q_PLUGIN_API = 1

    @hookimpl
    def hf2q_chat_formats():
        yield ChatFormat(name="mine")
    """
    install(place, "talk", source)
    code = main(["plugins", "check", "talk"])
    out = capsys.readouterr().out
    assert "chat format mine\n  NOT CHECKED" in out
    assert "plugin hf2q-talk\n  PASS         the plugin loads" in out
    assert "2 passed, 0 failed, 1 not checked" in out
    assert code == 0


def test_check_of_an_unknown_distribution(place, capsys):
    assert main(["plugins", "check", "hf2q-nope"]) == 3
    err = capsys.readouterr().err
    assert "no plugin of a distribution 'hf2q-nope'; installed: hf2q" in err


def test_check_without_pytest_says_what_to_install(place):
    """In a process where pytest cannot be found."""
    code = (
        "import sys, importlib.util as u\n"
        "real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'pytest' else real(name, *a)\n"
        "from hf2q.cli import main\n"
        "sys.exit(main(['plugins', 'check', 'hf2q']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 3
    assert "hint: pip install pytest" in done.stderr
