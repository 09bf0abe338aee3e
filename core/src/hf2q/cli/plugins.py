"""``hf2q plugins``: what is installed and what it provides; ``check`` and ``new`` for plugin authors.

The list is made in a child process (`hf2q.probe`), so it works whatever a plugin does at import.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from hf2q.cli.app import COMMANDS
from hf2q.cli.output import print_json
from hf2q.probe import Problem, Report, probe

app = App(name="plugins", help="List, check and create plugins.", help_format="plaintext")


@app.default
def list_plugins(*, json: Annotated[bool, Parameter(help="Print JSON.")] = False) -> int:
    """List plugins: version, distribution, what each provides, and why it does not where it does not.

    Exit code 0, also when plugins failed to load; 1 under --strict-plugins when any did or names clash.
    """
    import os

    report = probe()
    problems = (*report.problems, *_shadowed(report))
    if json:
        print_json({"plugins": report.plugins, "problems": problems})
    else:
        _print(report, problems)
    strict = os.environ.get("HF2Q_STRICT_PLUGINS") == "1"
    return 1 if strict and (report.failures or problems) else 0


@app.command(name="check")
def check(
    dist: Annotated[str, Parameter(help="A distribution (hf2q-arch-mine) or the name of a plugin.")],
    /,
    *,
    json: Annotated[bool, Parameter(help="Print JSON.")] = False,
) -> int:
    """Run the contract suites over an installed plugin and print a verdict for each check.

    What only the author can supply (a tiny configuration, recorded logits, golden blocks) comes from the plugin's
    module `hf2q_contract` (see hf2q.testing); without it those are "not checked", which is not a pass. Exit code 1 when
    a check failed.
    """
    from hf2q.cli.contracts import check_distribution

    return check_distribution(dist, as_json=json)


@app.command(name="new")
def new(
    name: Annotated[str, Parameter(help="What it is called: lower-case letters, digits and _, e.g. llama or q3_mine.")],
    directory: Annotated[Path, Parameter(help="Where to write it; must not exist, or be empty.")],
    /,
    *,
    kind: Annotated[str, Parameter(help="arch, codec, writer or graph.")],
) -> None:
    """Write a complete, tested, installable plugin that passes its own suite as generated."""
    from hf2q.scaffold import create

    for path in create(name, kind, directory):
        print(path)
    print(f"\nnext: pip install --no-build-isolation -e {directory} && pytest {directory}")


def _shadowed(report: Report) -> list[Problem]:
    """Commands of plugins that core's own commands hide."""
    core = {name for name, _, _ in COMMANDS}
    return [
        Problem(
            message=f"the command {name!r} of {info.distribution} is not reachable: hf2q has a command of that name",
            hint=f"ask the authors of {info.distribution} to rename it",
        )
        for info in report.plugins
        for name in info.provides.get("command", ())
        if name in core
    ]


def _print(report: Report, problems: tuple[Problem, ...]) -> None:
    for info in report.plugins:
        print(f"{info.name}  {info.version or '(no version)'}  {info.distribution}  {info.status}")
        for kind, names in info.provides.items():
            print(f"    {kind + ':':15} {', '.join(names)}")
        if info.status == "loaded" and not info.provides:
            print("    provides nothing")
        if info.reason:
            print(f"    {'reason:':15} {info.reason}")
        if info.hint:
            print(f"    {'hint:':15} {info.hint}")
    for problem in problems:
        print(f"problem: {problem.message}")
        if problem.hint:
            print(f"    {'hint:':15} {problem.hint}")
