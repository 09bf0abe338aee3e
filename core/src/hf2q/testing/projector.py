"""`ProjectorContract`: what a projector's hparams and catalog must keep, from a tower to a file opened again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from hf2q.errors import ConfigError, UsageError
from hf2q.formats.gguf import GgufFile, open_gguf
from hf2q.testing.catalog import CatalogContract
from hf2q.testing.checkpoints import TinyCheckpoint
from hf2q.testing.family import replaced
from hf2q.types import MetadataField, TensorCatalog, resolve

TOWERS = ("vision_config", "audio_config")
SECTIONS = ("rope_parameters",)


class ProjectorContract(CatalogContract):
    """Subclass it, set `plugin`, `arch` and `config`, and pytest runs the checks.

    arch      the family whose entry names the projector
    config    a tiny ``config.json`` with a vision tower; under ``preprocessor_config``, which is written as a file of
              its own, how images are prepared

    What else can be set is in `CatalogContract`.
    """

    projector: ClassVar[bool] = True

    def catalog(self) -> TensorCatalog:
        """The projector's."""
        plugins = self.plugins()
        return plugins.catalog(plugins.projector(plugins.arch(self.arch).projector).catalog)

    def strangers(self, checkpoint: TinyCheckpoint) -> Iterable[str]:
        """Beside each tensor of the tower, and outside of it."""
        return ("surprise.weight", *(f"{name}_surprise" for name in checkpoint.tensors))

    def places(self) -> Iterator[tuple[str, ...]]:
        """The configs of the towers, as paths; the rest of config.json is the text model's to check."""
        config = self.checkpoint().config
        for tower in TOWERS:
            inner = config.get(tower)
            if isinstance(inner, Mapping):
                yield (tower,)
                yield from ((tower, key) for key in SECTIONS if isinstance(inner.get(key), Mapping))

    def converted(self, recipe: str, folder: Path) -> GgufFile:
        """The tower alone, converted and opened."""
        from hf2q.convert import convert

        source = self.checkpoint().write(folder / "checkpoint")
        output = folder / f"mmproj-{recipe}.gguf"
        convert(source, recipe, output, mmproj=True, plugins=self.plugins())
        return open_gguf(output)

    def test_the_entry_is_complete(self) -> None:
        """The family names the projector, which names hparams and a catalog."""
        plugins = self.plugins()
        entry = plugins.projector(plugins.arch(self.arch).projector)
        assert plugins.catalog(entry.catalog).rules
        hparams = resolve(entry.hparams)
        for name in ("from_config", "from_metadata", "layer_kinds", "symbols", "metadata"):
            assert hasattr(hparams, name), f"{entry.hparams} has no {name}"

    def test_metadata_is_well_formed(self) -> None:
        """Keys occur once and are those of clip; it says what kind of projector it is, and how wide the text model."""
        fields = self.checkpoint().hparams.metadata()
        keys = [field.key for field in fields]
        assert len(set(keys)) == len(keys), "a key occurs twice"
        strange = [key for key in keys if not key.startswith("clip.") and key != "general.file_type"]
        assert not strange, f"keys outside clip.*: {strange}"
        assert MetadataField.u32("general.file_type", 0) in fields
        assert any(key.endswith("projector_type") for key in keys), "every reader needs a projector_type"
        assert any(key.endswith("projection_dim") for key in keys), "every reader needs a projection_dim"

    @pytest.mark.parametrize("recipe", ["f32", "f16", "bf16"])
    def test_the_file_is_a_projector(self, recipe: str, tmp_path: Path) -> None:
        """The arch, the type and the projector's name are as loaders look for them; there is no tokenizer."""
        plugins = self.plugins()
        with self.converted(recipe, tmp_path) as file:
            keys = set(file.metadata)
            assert file.metadata["general.architecture"] == "clip"
            assert file.metadata["general.type"] == "mmproj"
            named = [file.metadata[key] for key in keys if key.endswith("projector_type")]
            assert plugins.arch(self.arch).projector in named
            assert not [key for key in keys if key.startswith("tokenizer.")]
            kinds = {tensor.qtype for tensor in file.tensors.values()}
            assert kinds <= {"F32", recipe.upper()}
            assert recipe.upper() in kinds

    def test_a_checkpoint_without_a_tower_is_refused(self, tmp_path: Path) -> None:
        """Without its configuration, and without its tensors."""
        from hf2q.convert import convert

        checkpoint = self.checkpoint()
        source = checkpoint.write(tmp_path / "checkpoint")
        checkpoint.tensors = {"model.norm.weight": (4,)}
        checkpoint.write(source)
        with pytest.raises(UsageError, match="no vision tower"):
            convert(source, "f16", tmp_path / "mmproj-x.gguf", mmproj=True, plugins=self.plugins())
        checkpoint.config = {key: value for key, value in checkpoint.config.items() if key not in TOWERS}
        checkpoint.write(source)
        with pytest.raises(UsageError, match="no vision tower"):
            convert(source, "f16", tmp_path / "mmproj-x.gguf", mmproj=True, plugins=self.plugins())
        assert not (tmp_path / "mmproj-x.gguf").exists()

    def test_how_images_are_prepared_is_needed(self) -> None:
        """Without the processor's numbers the hparams are refused, or do not use them."""
        checkpoint = self.checkpoint()
        for key in checkpoint.config.get("preprocessor_config", {}):
            config = replaced(checkpoint.config, ("preprocessor_config", key), None)
            message = ""
            try:
                made = self.hparams(config)
            except ConfigError as error:
                message = error.message
            assert key in message or (not message and made == checkpoint.hparams), (
                f"without {key} another value is made up, or the error does not name it: {message}"
            )
