"""The family's transforms, made again by `verify`: reordered heads, exponentials, stacked experts, MTP."""

import random

import pytest

from hf2q.convert import convert
from hf2q.convert.verify import verify
from hf2q.formats.gguf import open_gguf
from hf2q.plugins import Plugins


@pytest.fixture(scope="module")
def plugins():
    return Plugins.load()


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_every_tensor_is_made_again(request, write, plugins, tmp_path, kind):
    config = request.getfixturevalue(kind)(linear_num_key_heads=2, linear_num_value_heads=4)
    folder = write(tmp_path / "tiny", config, experts="single", shards=2)
    for mtp in (True, False):
        made = convert(folder, "bf16", tmp_path / f"{mtp}.gguf", mtp=mtp, plugins=plugins)
        found = verify(made.output, folder, plugins=plugins)
        assert found.equal, (found.wrong, found.keys, found.problems)
        assert len(found.tensors) == len(made.plan.tensors)


@pytest.mark.parametrize("seed", range(5))
def test_a_flipped_byte_is_named(write, moe, plugins, tmp_path, seed):
    folder = write(tmp_path / "tiny", moe(), experts="single")
    made = convert(folder, "f16", tmp_path / "m.gguf", receipt=False, plugins=plugins)
    path = tmp_path / "m.gguf"
    with open_gguf(made.output) as file:
        tensor = random.Random(seed).choice(list(file.tensors.values()))
    offset = random.Random(seed).randrange(tensor.nbytes)
    data = bytearray(path.read_bytes())
    data[tensor.offset + offset] ^= 1
    path.write_bytes(data)
    found = verify(path, folder, plugins=plugins)
    [wrong] = found.wrong
    assert (wrong.name, wrong.status, wrong.difference.offset) == (tensor.name, "differs", offset)
    assert (found.keys, found.problems) == ((), ())
