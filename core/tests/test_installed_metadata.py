"""Distributions as read from their folders, against importlib-metadata."""

import importlib.metadata
import sys
import zipfile

import importlib_metadata
import pytest

from hf2q.installed import distributions, version_of
from hf2q.testing.distributions import write_distribution


def told(found, group):
    return [(point.name, point.value, point.dist.name, point.dist.version) for point in found.points(group)]


def all_told(group):
    return [each for found in distributions() if found.mentions(group) for each in told(found, group)]


@pytest.mark.parametrize("group", ["hf2q", "console_scripts", "pytest11"])
def test_what_is_installed_here_is_told_as_importlib_metadata_tells_it(group):
    expected = [
        (point.name, point.value, dist.name, dist.version)
        for dist in importlib_metadata.distributions()
        for point in dist.entry_points.select(group=group)
    ]
    assert expected
    assert sorted(all_told(group)) == sorted(expected)


@pytest.mark.parametrize(
    "listing",
    [
        "[hf2q]\na=m\n# b = n\n\n[other]\nc = o\n[hf2q]\nd = p:q.r\n",
        "[hf2q]\na = m [extra]\n",
        "[hf2q]\nwith space = m:n\n",
        "[ hf2q ]\na = m\n",
        "a = m\n[hf2q]\nb = n\n",
    ],
)
@pytest.mark.parametrize("metadata", ["Name: one\nVersion: 2\n\nName: two\n", "name: one\nVersion:  2\n"])
def test_plain_and_unusual_files_are_told_alike(monkeypatch, tmp_path, listing, metadata):
    info = tmp_path / "one-2.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(listing)
    (info / "METADATA").write_text(metadata)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    (found,) = distributions()
    whole = importlib_metadata.Distribution.at(info)
    assert (found.name, found.version) == (whole.name, whole.version) == ("one", "2")
    expected = [(point.name, point.value) for point in whole.entry_points.select(group="hf2q")]
    assert [(point.name, point.value) for point in found.points("hf2q")] == expected


def test_archives_and_finders_of_others_are_asked_too(monkeypatch, tmp_path):
    info = write_distribution(tmp_path / "source", "hf2q-packed", {"packed": "m"}, {})
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for part in info.iterdir():
            file.write(part, f"{info.name}/{part.name}")
    assert "packed" not in {name for name, *_ in all_told("hf2q")}
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(archive))
        assert ("packed", "m", "hf2q-packed", "1.0") in all_told("hf2q")

    class Finder:
        def find_spec(self, *_):
            return None

        def find_distributions(self, *_):
            yield importlib_metadata.Distribution.at(info)

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert ("packed", "m", "hf2q-packed", "1.0") in all_told("hf2q")


def test_the_version_of_a_distribution():
    assert version_of("numpy") == importlib_metadata.version("numpy")
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        version_of("nosuchthing")
