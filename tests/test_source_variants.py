"""Every installed family, from checkpoints that are spelled otherwise, and from a config.json that is absurd."""

import math
import tracemalloc

import msgspec
import pytest

from hf2q.catalog import claim
from hf2q.convert.family import completed, family_of
from hf2q.convert.source import open_source
from hf2q.convert.tensors import build_rows, in_converter_order
from hf2q.errors import Hf2qError
from hf2q.plugins import Plugins
from hf2q.rows import View
from hf2q.testing import ArchContract
from hf2q.testing.checking import suites
from hf2q.testing.family import at, replaced

PLUGINS = Plugins.load()
BARE = ("", "model.", "language_model.", "model.language_model.", "language_model.model.")
PREFIXES = {"bert": ("", "bert.", "model."), "nomic-bert": ("", "bert.", "model.", "nomic_bert."), "example": ("",)}
"""What may stand before every name, in other families than those that may have a tower beside them."""

ABSURD = (10**9, 1 << 70, -1, 1.5, math.nan, "4", [], {})
MOST_BYTES = 32 << 20


def archs():
    for info in PLUGINS.infos:
        if info.status == "loaded" and info.name != "builtin":
            for name, suite in suites(info.distribution).items():
                if issubclass(suite, ArchContract) and suite.config is not None:
                    yield pytest.param(suite, id=f"{info.name}-{name}")


@pytest.fixture(params=archs())
def suite(request):
    return request.param


def claims_of(checkpoint, infos, mtp):
    found = claim(checkpoint.catalog, checkpoint.specs, infos, mtp=mtp)
    return [(one.spec.name, one.alternative, len(one.inputs)) for one in found.claimed]


def test_prefixes_are_resolved(suite):
    checkpoint = suite.checkpoint()
    infos = checkpoint.infos()
    expected = claims_of(checkpoint, infos, suite.mtp)
    for prefix in PREFIXES.get(suite.arch, BARE):
        named = [msgspec.structs.replace(info, name=prefix + info.name) for info in infos]
        assert claims_of(checkpoint, named, suite.mtp) == expected, prefix
        again = checkpoint.kind.from_config(checkpoint.config, named, mtp=suite.mtp)
        assert again == checkpoint.hparams, prefix


def test_a_config_without_a_class_is_told_by_its_model_type(suite, tmp_path, caplog):
    checkpoint = suite.checkpoint()
    folder = checkpoint.write(tmp_path / "m")
    with_class = open_source(str(folder))
    if "model_type" not in checkpoint.config:
        pytest.skip("the tiny configuration has no model_type")
    config = {key: value for key, value in checkpoint.config.items() if key != "architectures"}
    (folder / "config.json").write_bytes(msgspec.json.encode(config))
    without = open_source(str(folder))
    assert family_of(without, PLUGINS) is family_of(with_class, PLUGINS)
    assert not caplog.records
    filled = completed(without, PLUGINS)
    assert "has no architectures" in caplog.text
    again = checkpoint.kind.from_config(filled.config, checkpoint.infos(), mtp=suite.mtp)
    assert again == checkpoint.hparams


def test_absurd_sizes_are_refused_or_mean_nothing(suite):
    """No value of config.json raises anything but our errors, or takes memory by what it claims."""
    checkpoint = suite.checkpoint()
    infos = checkpoint.infos()
    known = {info.name: View(info.shape, "F32", None) for info in infos}

    class Headers:
        rows = staticmethod(known.__getitem__)

    def attempt(config):
        hparams = checkpoint.kind.from_config(config, infos, mtp=suite.mtp)
        claims = claim(checkpoint.catalog, checkpoint.catalog.expand(hparams), infos, mtp=suite.mtp)
        for one in in_converter_order(claims.claimed, known):
            build_rows(one, Headers, hparams)

    attempt(checkpoint.config)
    wrong = []
    tracemalloc.start()
    for path in numbers(checkpoint.config):
        for value in ABSURD:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                attempt(replaced(checkpoint.config, path, value))
            except Hf2qError as error:
                wrong += [] if error.exit_code == 3 else [f"{'.'.join(path)} = {value!r:.20}: {error!r}"]
            except Exception as error:
                wrong.append(f"{'.'.join(path)} = {value!r:.20}: {type(error).__name__}: {error}")
            used = tracemalloc.get_traced_memory()[1] - before
            if used > MOST_BYTES:
                wrong.append(f"{'.'.join(path)} = {value!r:.20}: {used >> 20} MiB")
    tracemalloc.stop()
    assert not wrong, "\n".join(wrong)


def numbers(config, path=()):
    for key, value in at(config, path).items():
        if isinstance(value, dict):
            yield from numbers(config, (*path, key))
        elif isinstance(value, int | float | list) and key != "architectures":
            yield (*path, key)
