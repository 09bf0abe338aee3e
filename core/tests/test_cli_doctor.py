"""`hf2q doctor`: one line for each check, a remedy where one is needed, whatever a plugin or a library does."""

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from hf2q.cli import doctor, main
from hf2q.cli.examine import ask
from hf2q.cli.requirements import Requirement, parse
from hf2q.plugins import PluginInfo
from hf2q.probe import Problem, Report
from hf2q.testing.distributions import write_distribution


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for variable in ("HF2Q_PLUGINS", "HF2Q_DISABLE_PLUGINS", "HF2Q_STRICT_PLUGINS"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def examined(capsys):
    code = main(["doctor", "--json"])
    return code, json.loads(capsys.readouterr().out)["checks"]


def test_every_subject_is_there(place, capsys):
    _, checks = examined(capsys)
    names = {check["name"] for check in checks}
    assert {"python", "platform", "memory", "disk", "packages", "plugins", "hub cache"} <= names
    assert any(name.startswith("backend ") for name in names)
    (auto,) = (check["text"] for check in checks if check["name"] == "backend auto")
    assert re.match(r"takes \w+ \(.+\); it goes before .*reference \(numpy\)$", auto)
    for check in checks:
        assert check["state"] in ("PASS", "INFO", "WARN", "FAIL")
        assert check["text"]
        assert check["remedy"] or check["state"] in ("PASS", "INFO"), check


def test_text_has_a_line_for_each(place, capsys):
    code = main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert all(re.match(r"(PASS|INFO|WARN|FAIL)  \S|\s+→ ", line) for line in lines)
    assert code == (1 if any(line.startswith("FAIL") for line in lines) else 0)


def test_bad_plugins_are_warned_of_and_everything_else_is_checked(place, capsys):
    for name, source in {"crash": "import os; os._exit(0)", "broken": "import hf2q_gone"}.items():
        write_distribution(place, f"hf2q-{name}", {name: f"hf2q_fake_{name}"}, {f"hf2q_fake_{name}": source})
    code, checks = examined(capsys)
    found = {check["name"]: check for check in checks}
    assert found["plugin crash"]["state"] == found["plugin broken"]["state"] == "WARN"
    assert "HF2Q_DISABLE_PLUGINS=crash" in found["plugin crash"]["remedy"]
    assert found["backend reference"]["state"] == "PASS", "the crashing plugin is kept out of the later questions"
    assert code == (1 if any(check["state"] == "FAIL" for check in checks) else 0)


def test_a_fail_is_exit_code_1(monkeypatch, capsys):
    check = doctor.Check(name="x", state="FAIL", text="broken", remedy="mend it")
    monkeypatch.setattr(doctor, "examine", lambda: iter([check]))
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.splitlines() == ["FAIL  x  broken", "         → mend it"]


def test_a_warning_is_exit_code_0(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda: iter([doctor.Check(name="x", state="WARN", text="hm", remedy="r")]))
    assert main(["doctor"]) == 0


def packages(monkeypatch, versions, *wanted):
    monkeypatch.setattr(doctor, "installed", versions.get)
    return list(doctor.packages(wanted))


def test_packages_that_are_there_pass(monkeypatch):
    (check,) = packages(monkeypatch, {"numpy": "2.1"}, Requirement("numpy", ">=2.0", ""))
    assert (check.state, check.text) == ("PASS", "numpy 2.1")


def test_a_missing_base_package_fails(monkeypatch):
    (check,) = packages(monkeypatch, {}, Requirement("numpy", ">=2.0", ""))
    assert (check.state, check.text, check.remedy) == ("FAIL", "missing: numpy", "pip install --upgrade hf2q")


def test_a_missing_extra_warns_with_what_it_is_for(monkeypatch):
    (check,) = packages(monkeypatch, {}, Requirement("litestar", "", "serve"))
    assert check.state == "WARN"
    assert check.remedy == 'pip install "hf2q[serve]" (for running and serving models)'


def test_a_missing_plugin_is_information(monkeypatch):
    (check,) = packages(monkeypatch, {}, Requirement("hf2q-arch-qwen35", "", "qwen35"))
    assert (check.state, check.remedy) == ("INFO", 'pip install "hf2q[qwen35]"')


def test_another_version_than_pinned_warns(monkeypatch):
    (check,) = packages(monkeypatch, {"numba": "0.99"}, Requirement("numba", "==0.68.1", "simd"))
    assert check.state == "WARN"
    assert check.text == "unfit: numba 0.99 (wanted ==0.68.1)"


def test_extras_that_repeat_others_are_left_out(monkeypatch):
    assert packages(monkeypatch, {}, Requirement("hf2q-arch-qwen35", "", "all"), Requirement("mlx", "", "cuda")) == []


@pytest.mark.parametrize(
    ("wanted", "version", "fits"),
    [
        ("", "1", True),
        (">=2.0", "2.0", True),
        (">=2.0", "2.4.6", True),
        (">=2.0", "10.0", True),
        (">=2.0", "1.9", False),
        ("==0.68.1", "0.68.1", True),
        ("==0.68.1", "0.68.10", False),
        ("==0.50.*", "0.50.3", True),
        ("==0.50.*", "0.501", False),
        (">=0.1,<0.2", "0.1.5", True),
        (">=0.1,<0.2", "0.2", False),
        (">=1.0", "1.0rc1", True),
    ],
)
def test_versions_are_compared(wanted, version, fits):
    assert Requirement("x", wanted, "").accepts(version) is fits


def test_requirements_are_read_from_metadata_lines():
    lines = [
        "numpy>=2.0",
        'numba==0.68.1; extra == "simd"',
        "mlx>=0.30; (sys_platform == 'darwin') and extra == 'serve'",
        "mlx[cpu]>=0.30; (sys_platform == 'linux') and extra == 'serve'",
        "hf2q[serve]; extra == 'all'",
    ]
    assert list(parse(lines, "linux")) == [
        Requirement("numpy", ">=2.0", ""),
        Requirement("numba", "==0.68.1", "simd"),
        Requirement("mlx", ">=0.30", "serve"),
    ]
    assert [found.name for found in parse(lines, "win32")] == ["numpy", "numba"]


def test_the_extras_told_about_exist():
    """The words in doctor.py are those of pyproject.toml."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert set(doctor.PURPOSE) | set(doctor.REPEATING) <= set(project["optional-dependencies"])


def test_plugin_lines():
    def info(name, status, **more):
        return PluginInfo(name=name, distribution="d", version="1", module="m", status=status, **more)

    report = Report(
        plugins=(info("a", "loaded"), info("b", "disabled"), info("c", "failed", reason="why", hint="do")),
        problems=(Problem(message="clash", hint="disable one"),),
    )
    lines = [(check.state, check.text, check.remedy) for check in doctor.plugins(report)]
    assert lines == [
        ("PASS", "loaded: a 1", ""),
        ("INFO", "disabled: b", ""),
        ("WARN", "why", "do"),
        ("WARN", "clash", "disable one"),
    ]


def test_little_disk_is_warned_of(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10**12, 0, 5 * 10**9))
    check = doctor._disk(tmp_path)
    assert (check.state, check.text) == ("WARN", f"5.0 GB free at {tmp_path}")
    assert check.remedy


def test_a_cache_that_cannot_be_written_is_warned_of(tmp_path):
    (tmp_path / "file").touch()
    assert doctor._writable("c", tmp_path / "new" / "deep", "V").state == "PASS"
    assert doctor._writable("c", tmp_path / "file" / "deep", "V").state == "WARN"
    assert not (tmp_path / "new").exists(), "asking creates nothing"


def test_questions_are_answered_in_a_child():
    answer, error = ask("backends")
    assert error == ""
    assert {"mlx", "reference"} <= {entry["name"] for entry in answer}


def test_a_question_that_hangs_or_crashes_is_no_end(place):
    for source, told in [("import time; time.sleep(60)", "no answer within 2 s"), ("import os; os._exit(3)", "code 3")]:
        shutil.rmtree(place, ignore_errors=True)
        write_distribution(place, "hf2q-odd", {"odd": "hf2q_fake_odd"}, {"hf2q_fake_odd": source})
        answer, error = ask("backends", seconds=2)
        assert answer is None
        assert told in error


def test_a_question_that_raises_tells_why(monkeypatch):
    monkeypatch.setenv("HF2Q_PLUGINS", "thong")
    assert "not installed: thong" in ask("backends")[1]
