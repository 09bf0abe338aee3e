"""`ArchContract`: what a family's entry, hparams and catalog must keep, from config.json to a file opened again."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from hf2q.catalog import claim
from hf2q.config import HARMLESS
from hf2q.errors import ConfigError, Hf2qError, LoadError, TensorMismatchError
from hf2q.formats.gguf import GgufFile, open_gguf
from hf2q.testing.checkpoints import Shapes, TinyCheckpoint
from hf2q.testing.contract import Contract, not_checked
from hf2q.types import HParams, MetadataField, TensorInfo, resolve

UNKNOWN_KEY = "a_key_that_no_model_has"
SECTIONS = ("text_config", "rope_parameters", "rope_scaling")


class FamilyContract(Contract):
    """What the suites of a family share: the tiny configuration, and the checkpoint made from it.

    arch       the GGUF architecture
    config     a tiny ``config.json``: its path, or the parsed object. Small sizes, all different, so that a swapped
               pair shows; a vocabulary of 265 or more
    shapes, leave_out, mtp   what the catalog alone does not tell about the checkpoint, see `TinyCheckpoint`
    """

    arch: ClassVar[str] = ""
    config: ClassVar[Path | str | Mapping[str, Any] | None] = None
    shapes: ClassVar[Shapes | None] = None
    leave_out: ClassVar[Collection[str]] = ()
    mtp: ClassVar[bool] = False

    @classmethod
    def parsed(cls) -> dict[str, Any]:
        """The configuration; ends the test when there is none."""
        if cls.config is None:
            not_checked("no tiny configuration; set `config`")
        if isinstance(cls.config, Mapping):
            return dict(cls.config)
        found: dict[str, Any] = json.loads(Path(cls.config).read_text(encoding="utf-8"))
        return found

    @classmethod
    def checkpoint(cls) -> TinyCheckpoint:
        """The tiny random checkpoint."""
        return TinyCheckpoint(
            cls.plugins(), cls.arch, cls.parsed(), shapes=cls.shapes, leave_out=cls.leave_out, mtp=cls.mtp
        )


class ArchContract(FamilyContract):
    """Subclass it, set `plugin`, `arch` and `config`, and pytest runs the checks.

    harmless  config keys that the family knows to change nothing, beyond those of `hf2q.config.HARMLESS`; a dotted
              name is a key of a section (``rope_parameters.type``)
    """

    harmless: ClassVar[Collection[str]] = ()

    # ------------------------------------------------------------------------------------------------- the records

    def test_the_entry_is_complete(self) -> None:
        """Names by which checkpoints are recognised, and records that the entry refers to."""
        plugins = self.plugins()
        entry = plugins.arch(self.arch)
        assert entry.hf_architectures, "no checkpoint class leads to this family"
        assert entry.model_types, "no model type is named"
        assert entry.pre_tokenizers, "no pre-tokenizer is known: no tokenizer could be converted"
        assert plugins.catalog(entry.catalog).rules
        if entry.chat_format:
            plugins.chat_format(entry.chat_format)
        hparams = resolve(entry.hparams)
        for name in ("from_config", "from_metadata", "layer_kinds", "symbols", "metadata"):
            assert hasattr(hparams, name), f"{entry.hparams} has no {name}"
        for name in entry.hf_architectures:
            assert plugins.arch_for(name) is entry

    def test_sources_are_cited(self) -> None:
        """Every rule and every pre-tokenizer says where it was read."""
        plugins = self.plugins()
        entry = plugins.arch(self.arch)
        bare = [rule.name for rule in plugins.catalog(entry.catalog).rules if not rule.source.strip()]
        bare += [f"pre-tokenizer {pre.name}" for pre in entry.pre_tokenizers if not pre.source.strip()]
        assert not bare, f"no source is cited for {bare}"

    def test_transforms_can_be_imported(self) -> None:
        """Every rule that changes values names a function that is there."""
        for rule in self.plugins().catalog(self.plugins().arch(self.arch).catalog).rules:
            if rule.transform:
                assert callable(resolve(rule.transform)), rule.name

    def test_ignore_rules_give_reasons_and_hide_nothing(self) -> None:
        """No pattern is invalid, without a reason, or matches a tensor that a rule maps."""
        checkpoint = self.checkpoint()
        for pattern, reason in checkpoint.catalog.ignore:
            assert reason.strip(), f"no reason is given for ignoring {pattern!r}"
            compiled = re.compile(pattern)
            hidden = [name for name in checkpoint.tensors if compiled.match(name)]
            assert not hidden, f"{pattern!r} also ignores {hidden[:3]}, which rules map"

    # ------------------------------------------------------------------------------------------------ the expansion

    def test_every_gguf_name_is_made_once(self) -> None:
        """The expansion names each tensor once, with sizes that are all positive."""
        checkpoint = self.checkpoint()
        names = [spec.name for spec in checkpoint.specs]
        assert names
        assert len(set(names)) == len(names)
        for spec in checkpoint.specs:
            assert spec.shape, f"{spec.name} has no dimensions"
            assert all(size > 0 for size in spec.shape), f"{spec.name} has the shape {spec.shape}"
            assert "{" not in spec.name, f"a placeholder is left in {spec.name}"
            assert len(spec.name.encode()) < 64, f"{spec.name} is too long for GGUF"

    def test_every_checkpoint_name_is_claimed_once(self) -> None:
        """One checkpoint tensor becomes one GGUF tensor, or is split by transforms; none is copied twice."""
        checkpoint = self.checkpoint()
        claims = claim(checkpoint.catalog, checkpoint.specs, checkpoint.infos(), mtp=self.mtp)
        users = defaultdict(list)
        for one in claims.claimed:
            for name in one.inputs:
                users[name].append(one.spec)
        for name, specs in users.items():
            copied = [spec.name for spec in specs if not spec.rule.transform]
            assert len(specs) == 1 or not copied, f"{name} is claimed by {[spec.name for spec in specs]}"
        assert not claims.ignored

    def test_a_missing_tensor_is_named(self) -> None:
        """Leaving out any tensor that is not optional stops the conversion with its name."""
        checkpoint = self.checkpoint()
        infos = checkpoint.infos()
        optional = {name for spec in checkpoint.specs if spec.optional for name in spec.inputs[0]}
        for info in infos:
            if info.name in optional:
                continue
            rest = [other for other in infos if other is not info]
            with pytest.raises(TensorMismatchError, match=re.escape(info.name)):
                claim(checkpoint.catalog, checkpoint.specs, rest, mtp=self.mtp)

    def test_a_left_over_tensor_is_named(self) -> None:
        """A tensor that the family does not know is not dropped."""
        checkpoint = self.checkpoint()
        for name in ("layers.0.self_attn.surprise.weight", "surprise.weight", "layers.99.mlp.down_proj.weight"):
            extra = TensorInfo(name=name, shape=(1,), dtype="F32", file="model.safetensors", offset=0, nbytes=4)
            with pytest.raises(TensorMismatchError, match=re.escape(name)):
                claim(checkpoint.catalog, checkpoint.specs, [*checkpoint.infos(), extra], mtp=self.mtp)

    # --------------------------------------------------------------------------------------------------- config.json

    def hparams(self, config: Mapping[str, Any]) -> HParams:
        """Hparams from a config, with the tiny checkpoint's tensors."""
        checkpoint = self.checkpoint()
        found: HParams = resolve(checkpoint.entry.hparams).from_config(config, checkpoint.infos(), mtp=self.mtp)
        return found

    def places(self) -> Iterator[tuple[str, ...]]:
        """The config itself and its sections, as paths."""
        yield ()
        config = self.checkpoint().config
        for section in SECTIONS:
            inner = config.get(section)
            if isinstance(inner, Mapping):
                yield (section,)
                yield from ((section, key) for key in SECTIONS if isinstance(inner.get(key), Mapping))

    def test_an_unknown_config_key_is_refused(self) -> None:
        """A key that the family does not know may change what the model computes."""
        for place in self.places():
            config = replaced(self.checkpoint().config, (*place, UNKNOWN_KEY), 3)
            with pytest.raises(ConfigError, match=UNKNOWN_KEY):
                self.hparams(config)

    def test_every_config_key_is_read_or_harmless(self) -> None:
        """Another value changes the hparams or is refused, unless the key is on the list of harmless ones."""
        checkpoint = self.checkpoint()
        harmless = {*HARMLESS, *self.harmless}
        silent = []
        for place in self.places():
            section = at(checkpoint.config, place)
            for key, value in section.items():
                name = ".".join((*(part for part in place if part != "text_config"), key))
                if key in HARMLESS or name in harmless or isinstance(value, Mapping):
                    continue
                if all(self.unmoved(checkpoint, (*place, key), other) for other in others(value)):
                    silent.append(name)
        assert not silent, f"config keys without any effect: {silent}; read them, refuse them, or list them as harmless"

    def unmoved(self, checkpoint: TinyCheckpoint, path: tuple[str, ...], other: Any) -> bool:
        """Whether the hparams stay the same when the key at `path` has another value."""
        try:
            return self.hparams(replaced(checkpoint.config, path, other)) == checkpoint.hparams
        except Hf2qError:
            return False

    # ------------------------------------------------------------------------------------------------------ metadata

    def test_metadata_is_well_formed(self) -> None:
        """Keys occur once and are the arch's own; ``general.file_type`` is a u32 0."""
        fields = self.checkpoint().hparams.metadata()
        keys = [field.key for field in fields]
        assert len(set(keys)) == len(keys), "a key occurs twice"
        strange = [key for key in keys if not key.startswith(f"{self.arch}.") and key != "general.file_type"]
        assert not strange, f"keys outside {self.arch}.*: {strange}"
        assert MetadataField.u32("general.file_type", 0) in fields
        for key in ("block_count", "context_length", "embedding_length"):
            assert f"{self.arch}.{key}" in keys, f"every reader needs {self.arch}.{key}"

    @pytest.mark.parametrize("recipe", ["f32", "bf16"])
    def test_a_converted_file_opens_again(self, recipe: str, tmp_path: Path) -> None:
        """Convert, open: the hparams of the file expand to exactly the tensors in it; untouched values are equal."""
        checkpoint = self.checkpoint()
        with self.converted(recipe, tmp_path) as file:
            reopened: HParams = resolve(checkpoint.entry.hparams).from_metadata(file.metadata)
            assert reopened.layer_kinds == checkpoint.hparams.layer_kinds
            assert dict(reopened.symbols) == dict(checkpoint.hparams.symbols)
            expected = {spec.name: spec.shape for spec in checkpoint.catalog.expand(reopened)}
            found = {name: tensor.shape for name, tensor in file.tensors.items()}
            assert {name: expected.get(name) for name in found} == found
            optional = {spec.name for spec in checkpoint.catalog.expand(reopened) if spec.optional}
            assert set(expected) - set(found) <= optional
            for field in checkpoint.hparams.metadata():
                if field.key != "general.file_type":
                    assert comparable(file.metadata[field.key]) == comparable(field.value), field.key
            if recipe == "f32":
                arrays = checkpoint.arrays()
                for spec in checkpoint.specs:
                    if not spec.rule.transform:
                        stored = file.rows(spec.name).tobytes()
                        assert stored == arrays[spec.inputs[0][0]].tobytes(), f"{spec.name}: other values"

    def converted(self, recipe: str, folder: Path) -> GgufFile:
        """The tiny checkpoint, converted and opened."""
        from hf2q.convert import convert

        source = self.checkpoint().write(folder / "checkpoint")
        output = folder / f"{recipe}.gguf"
        convert(source, recipe, output, mtp=self.mtp, plugins=self.plugins())
        return open_gguf(output)

    def test_metadata_that_is_missing_or_absurd_is_refused(self, tmp_path: Path) -> None:
        """Loading refuses with LoadError, or does not need the key; nothing else is raised."""
        checkpoint = self.checkpoint()
        make = resolve(checkpoint.entry.hparams).from_metadata
        with self.converted("f32", tmp_path) as file:
            metadata = {key: file.metadata[key] for key in file.metadata}

        def refusal(changed: Mapping[str, Any]) -> str | None:
            try:
                make(changed)
            except LoadError as error:
                return error.message
            return None

        needed = 0
        for field in checkpoint.hparams.metadata():
            rest = {key: value for key, value in metadata.items() if key != field.key}
            message = refusal(rest)
            if message is not None:
                needed += 1
                assert field.key in message, f"without {field.key} the message does not name it"
            for absurd in ("text", [1, "x"], -1, 0):
                refusal({**rest, field.key: absurd})
        assert needed, "hparams need no key of the file: where do they come from?"


def replaced(config: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """`config` with another value at a path of keys."""
    head, *rest = path
    inner = replaced(config[head], tuple(rest), value) if rest else value
    return {**config, head: inner}


def at(config: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    """The object at a path of keys."""
    for key in path:
        config = config[key]
    return config


def others(value: Any) -> list[Any]:
    """Values unlike `value`, of its kind."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value + 2, value + 1]
    if isinstance(value, float):
        return [2 * value + 1, value / 3]
    if isinstance(value, list):
        return [[*value, *value[:1]], value[:-1], value[::-1]] if value else [[0], ["other"]]
    return [f"{value}_other"]


def comparable(value: Any) -> Any:
    """A metadata value as the file keeps it: floats in 32 bits, arrays as tuples."""
    if isinstance(value, float):
        return float(np.float32(value))
    if isinstance(value, list | tuple):
        return tuple(comparable(item) for item in value)
    return value
