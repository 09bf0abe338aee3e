"""Which files a server may serve: those of a folder, their projectors, their names."""

import struct
from pathlib import Path

import pytest

from hf2q.errors import MissingFileError, UnknownNameError, UsageError
from hf2q.serve.api.registered import (
    ModelFile,
    bytes_of,
    merged,
    named_after,
    projector_of,
    scan,
    with_aliases,
)
from hf2q.types import GraphEntry


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(path, arch="toy", **numbers):
    """A GGUF file of nothing but a header; `numbers` are u16 keys."""
    fields = text("general.architecture") + struct.pack("<I", 8) + text(arch)
    for key, value in numbers.items():
        fields += text(key.replace("__", ".")) + struct.pack("<IH", 2, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1 + len(numbers)) + fields)
    return path


class Plugins:
    """Knows the family toy, and toy-embed."""

    def graph(self, arch):
        if not arch.startswith("toy"):
            raise UnknownNameError(f"no graph {arch!r}")
        return GraphEntry(arch=arch, graph="m:G", task="embed" if arch == "toy-embed" else "generate")


def test_a_folder(tmp_path):
    gguf(tmp_path / "b.gguf")
    gguf(tmp_path / "a.gguf", "toy-embed")
    gguf(tmp_path / "org" / "a.gguf")
    gguf(tmp_path / "mmproj-b.gguf", "clip")
    gguf(tmp_path / "mmproj-other.gguf", "clip")
    gguf(tmp_path / "new.gguf", "unheard-of")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\x03")
    (tmp_path / "notes.txt").write_text("no model")
    found = scan(tmp_path, Plugins())
    assert [(f.id, f.task, f.arch, f.initial) for f in found.models] == [
        ("a", "embed", "toy-embed", False),
        ("b", "generate", "toy", False),
        ("org/a", "generate", "toy", False),
    ]
    b = found.models[1]
    assert b.mmproj == tmp_path / "mmproj-b.gguf"
    assert b.nbytes == (tmp_path / "b.gguf").stat().st_size + b.mmproj.stat().st_size
    assert {path.name: why for path, why in found.others if path.name != "broken.gguf"} == {
        "new.gguf": "no graph 'unheard-of'",
        "mmproj-other.gguf": "a projector whose model is not beside it",
    }
    assert "broken.gguf" in {path.name for path, _ in found.others}


def test_no_folder(tmp_path):
    with pytest.raises(MissingFileError, match="there is no folder"):
        scan(tmp_path / "nowhere", Plugins())


def test_of_several_shards_the_first_stands_for_all(tmp_path):
    for index in range(2):
        keys = {"split__no": index, "split__count": 2}
        gguf(tmp_path / f"m-0000{index + 1}-of-00002.gguf", **keys)
    gguf(tmp_path / "n-00002-of-00002.gguf", split__no=1, split__count=2)
    found = scan(tmp_path, Plugins())
    (only,) = found.models
    assert (only.id, only.path.name) == ("m", "m-00001-of-00002.gguf")
    assert bytes_of(only.path) == sum(path.stat().st_size for path in tmp_path.glob("m-*"))


def test_a_folder_that_is_a_link_is_not_followed(tmp_path):
    gguf(tmp_path / "models" / "a.gguf")
    (tmp_path / "models" / "again").symlink_to(tmp_path / "models")
    (tmp_path / "models" / "b.gguf").symlink_to(gguf(tmp_path / "blob"))
    assert [file.id for file in scan(tmp_path / "models", Plugins()).models] == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "id"),
    [("m-00001-of-00003.gguf", "m"), ("m-1-of-3.gguf", "m-1-of-3"), ("a.b.gguf", "a.b"), ("mmproj.gguf", "mmproj")],
)
def test_names(name, id):
    assert named_after(Path(name)) == id


def test_the_projector_of_shards_has_their_common_name(tmp_path):
    (tmp_path / "mmproj-m.gguf").touch()
    assert projector_of(tmp_path / "m-00001-of-00002.gguf") == tmp_path / "mmproj-m.gguf"
    assert projector_of(tmp_path / "n.gguf") is None


def test_a_file_that_is_named_and_found_is_one(tmp_path):
    path = gguf(tmp_path / "a.gguf")
    named = ModelFile(id="a", path=path, initial=True)
    found = scan(tmp_path, Plugins()).models
    assert merged([named], found) == (named,)


def test_two_files_of_one_name(tmp_path):
    files = [ModelFile(id="a", path=tmp_path / folder / "a.gguf") for folder in "xy"]
    with pytest.raises(UsageError, match=r"x/a.gguf and .*y/a.gguf would both be served as 'a'"):
        merged(files, [])


def test_aliases():
    files = [ModelFile(id=id, path=Path(f"{id}.gguf")) for id in "ab"]
    made = with_aliases(files, {"x": "a", "y": "a"})
    assert [file.aliases for file in made] == [("x", "y"), ()]
    with pytest.raises(UsageError, match="no model 'c'"):
        with_aliases(files, {"x": "c"})
    with pytest.raises(UsageError, match="'b' is the name of a model"):
        with_aliases(files, {"b": "a"})
