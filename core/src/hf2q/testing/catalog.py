"""`CatalogContract`: what any hparams and catalog must keep, a text model's or a projector's."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import pytest

from hf2q.catalog import claim
from hf2q.config import HARMLESS
from hf2q.errors import ConfigError, Hf2qError, LoadError, TensorMismatchError
from hf2q.formats.gguf import GgufFile
from hf2q.testing.checkpoints import TinyCheckpoint, template_of
from hf2q.testing.contract import not_checked
from hf2q.testing.family import FamilyContract, at, comparable, others, replaced
from hf2q.types import HParams, TensorCatalog, TensorInfo, TensorSpec, resolve

if TYPE_CHECKING:
    from hf2q.types import Float32

    Inverse: TypeAlias = Callable[[Mapping[str, Float32], HParams], Float32]

UNKNOWN_KEY = "a_key_that_no_model_has"
ROOTS = ("text_config", "vision_config")
"""Sections whose keys are called by their bare names."""


class CatalogContract(FamilyContract):
    """The checks that `ArchContract` and `ProjectorContract` share.

    harmless  config keys that the family knows to change nothing, beyond those of `hf2q.config.HARMLESS`; a dotted
              name is a key of a section (``rope_parameters.type``)
    inverses  for each checkpoint tensor that a transform changes, by its name in the rule, a function that makes it
              again: ({name in the rule: float32 array of the GGUF tensor}, hparams) -> float32 array. The names are of
              all rules that the tensor feeds; for a tensor of one expert the function makes the stack of all
    roundoff  how far what an inverse makes may be from the original, for transforms that round
    """

    harmless: ClassVar[Collection[str]] = ()
    inverses: ClassVar[Mapping[str, Inverse]] = {}
    roundoff: ClassVar[float] = 0.0

    def catalog(self) -> TensorCatalog:
        """The catalog under test."""
        raise NotImplementedError

    def converted(self, recipe: str, folder: Path) -> GgufFile:
        """The tiny checkpoint, converted and opened."""
        raise NotImplementedError

    def strangers(self, checkpoint: TinyCheckpoint) -> Iterable[str]:
        """Names of tensors that a checkpoint of this kind could have, and that nobody knows."""
        raise NotImplementedError

    def test_sources_are_cited(self) -> None:
        """Every rule says where it was read."""
        bare = [rule.name for rule in self.catalog().rules if not rule.source.strip()]
        assert not bare, f"no source is cited for {bare}"

    def test_transforms_can_be_imported(self) -> None:
        """Every rule that changes values names a function that is there."""
        for rule in self.catalog().rules:
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
        for name in self.strangers(checkpoint):
            extra = TensorInfo(name=name, shape=(1,), dtype="F32", file="model.safetensors", offset=0, nbytes=4)
            with pytest.raises(TensorMismatchError, match=re.escape(name)):
                claim(checkpoint.catalog, checkpoint.specs, [*checkpoint.infos(), extra], mtp=self.mtp)

    # --------------------------------------------------------------------------------------------------- config.json

    def hparams(self, config: Mapping[str, Any]) -> HParams:
        """Hparams from a config, with the tiny checkpoint's tensors."""
        checkpoint = self.checkpoint()
        found: HParams = checkpoint.kind.from_config(config, checkpoint.infos(), mtp=self.mtp)
        return found

    def places(self) -> Iterator[tuple[str, ...]]:
        """The objects of the configuration that must be read whole, as paths of keys."""
        raise NotImplementedError

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
                name = ".".join((*(part for part in place if part not in ROOTS), key))
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

    # ------------------------------------------------------------------------------------------------- converted files

    @pytest.mark.parametrize("recipe", ["f32", "bf16"])
    def test_a_converted_file_opens_again(self, recipe: str, tmp_path: Path) -> None:
        """Convert, open: the hparams of the file expand to exactly the tensors in it; untouched values are equal."""
        checkpoint = self.checkpoint()
        with self.converted(recipe, tmp_path) as file:
            reopened: HParams = checkpoint.kind.from_metadata(file.metadata)
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

    def test_every_tensor_can_be_made_again(self, tmp_path: Path) -> None:
        """The inverse of each transform gives back the tensors of the checkpoint, so nothing is lost on the way."""
        checkpoint = self.checkpoint()
        users: dict[str, list[TensorSpec]] = defaultdict(list)
        for spec in checkpoint.specs:
            for name in spec.inputs[0] if spec.inputs and spec.rule.transform else ():
                users[name].append(spec)
        templates = {name: template_of(specs[0], name) for name, specs in users.items()}
        lacking = sorted({template for template in templates.values() if template not in self.inverses})
        if lacking:
            not_checked(f"no inverse is known for {', '.join(lacking)}; set `inverses`")
        arrays = checkpoint.arrays()
        with self.converted("f32", tmp_path) as file:
            for name, specs in users.items():
                parts = {
                    spec.rule.name: np.frombuffer(file.rows(spec.name).tobytes(), "<f4").reshape(spec.shape)
                    for spec in specs
                }
                made = self.inverses[templates[name]](parts, checkpoint.hparams)
                if "{e}" in templates[name]:
                    made = made[specs[0].inputs[0].index(name)]
                assert made.shape == arrays[name].shape, f"{name} comes back with another shape"
                worst = float(np.abs(made - arrays[name]).max())
                assert worst <= self.roundoff, f"{name} comes back with errors of up to {worst}"

    def test_metadata_that_is_missing_or_absurd_is_refused(self, tmp_path: Path) -> None:
        """Loading refuses with LoadError, or does not need the key; nothing else is raised."""
        checkpoint = self.checkpoint()
        make = checkpoint.kind.from_metadata
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
