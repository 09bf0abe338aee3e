"""`ArchContract`: what a family's entry, hparams and catalog must keep, from config.json to a file opened again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from hf2q.formats.gguf import GgufFile, open_gguf
from hf2q.testing.catalog import CatalogContract
from hf2q.testing.checkpoints import TinyCheckpoint
from hf2q.types import MetadataField, TensorCatalog, resolve

SECTIONS = ("text_config", "rope_parameters", "rope_scaling")


class ArchContract(CatalogContract):
    """Subclass it, set `plugin`, `arch` and `config`, and pytest runs the checks.

    What else can be set is in `CatalogContract`.
    """

    def catalog(self) -> TensorCatalog:
        """The family's."""
        plugins = self.plugins()
        return plugins.catalog(plugins.arch(self.arch).catalog)

    def strangers(self, checkpoint: TinyCheckpoint) -> Iterable[str]:
        """In a block, outside of them, and in a block that is not there."""
        return ("layers.0.self_attn.surprise.weight", "surprise.weight", "layers.99.mlp.down_proj.weight")

    def places(self) -> Iterator[tuple[str, ...]]:
        """The config itself and its sections, as paths."""
        yield ()
        config = self.checkpoint().config
        for section in SECTIONS:
            inner = config.get(section)
            if isinstance(inner, Mapping):
                yield (section,)
                yield from ((section, key) for key in SECTIONS if isinstance(inner.get(key), Mapping))

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
        bare = [pre.name for pre in entry.pre_tokenizers if not pre.source.strip()]
        assert not bare, f"no source is cited for the pre-tokenizers {bare}"

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

    def converted(self, recipe: str, folder: Path) -> GgufFile:
        """The tiny checkpoint, converted and opened."""
        from hf2q.convert import convert

        source = self.checkpoint().write(folder / "checkpoint")
        output = folder / f"{recipe}.gguf"
        convert(source, recipe, output, mtp=self.mtp, plugins=self.plugins())
        return open_gguf(output)
