"""The example plugin and the template of `hf2q plugins new --kind arch` are the same thing under two names."""

from pathlib import Path

from hf2q.scaffold import names, render

EXAMPLE = Path(__file__).parents[1] / "plugins" / "hf2q_example_arch"


def rendered():
    values = {**names("example", "arch"), "package": "hf2q_example_arch", "distribution": "hf2q-example-arch"}
    return render("arch", values)


def test_they_are_equal():
    own = ("README.md", "pyproject.toml")  # the example's tell what it is for; the workspace configures its tools
    for path, content in rendered().items():
        if path not in own:
            assert (EXAMPLE / path).read_bytes() == content, path


def test_the_example_has_nothing_more():
    files = {str(path.relative_to(EXAMPLE)) for path in EXAMPLE.rglob("*") if path.is_file()}
    files = {path for path in files if "__pycache__" not in path and ".egg-info" not in path}
    assert files == set(rendered())


def test_the_example_is_under_300_lines():
    """Of Python and its pyproject, as the tutorial promises."""
    counted = [*EXAMPLE.rglob("*.py"), EXAMPLE / "pyproject.toml"]
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in counted) < 300
