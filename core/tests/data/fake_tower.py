"""A fake family with a vision tower, for the tests of projectors: the text side is that of `fake_family`."""

import fake_family
import msgspec
import numpy as np
from fake_family import PRE, tensors_of, write_checkpoint

from hf2q.errors import ConfigError
from hf2q.hookspecs import hookimpl
from hf2q.types import ArchEntry, MetadataField, ProjectorEntry, Record, TensorCatalog, TensorRule

HF2Q_PLUGIN_API = 1
WIDTH, DEPTH = 8, 2


class FakeTowerHParams(Record, frozen=True, kw_only=True):
    mean: float

    @classmethod
    def from_config(cls, config, tensors, *, mtp):
        if "mean" not in config["preprocessor_config"]:
            raise ConfigError("preprocessor_config.json gives no mean")
        return cls(mean=config["preprocessor_config"]["mean"])

    @classmethod
    def from_metadata(cls, metadata):
        raise NotImplementedError

    @property
    def layer_kinds(self):
        return ("block",) * DEPTH

    @property
    def symbols(self):
        return {"n_embd": WIDTH}

    def metadata(self):
        return (
            MetadataField.u32("general.file_type", 0),
            MetadataField.string("clip.projector_type", "fake_merger"),
            MetadataField.f32("clip.vision.mean", self.mean),
        )


TOWER = TensorCatalog(
    name="fake_merger",
    rules=(
        TensorRule(name="v.patch_embd.weight", hf=("vision.patch.weight",), shape=("n_embd", 3, 2, 2)),
        TensorRule(name="v.position_embd.weight", hf=("vision.pos",), shape=(4, "n_embd"), stored_as="F32"),
        TensorRule(
            name="v.blk.{i}.ffn_up.weight",
            hf=("vision.{i}.up.weight",),
            shape=("n_embd", "n_embd"),
            layers=("block",),
        ),
        TensorRule(name="v.blk.{i}.scale", hf=("vision.{i}.scale",), shape=(1, "n_embd"), layers=("block",)),
    ),
    ignore=((r"(embed|layers|head)\.", "text"),),
    strip=("model.",),
)


@hookimpl
def hf2q_arch_entries():
    yield ArchEntry(
        arch="fakevl",
        hf_architectures=("FakeVLForConditionalGeneration",),
        model_types=("fakevl",),
        hparams="fake_family:FakeHParams",
        catalog="fakevl",
        projector="fake_merger",
        pre_tokenizers=(PRE,),
    )
    yield ArchEntry(
        arch="fakefar",
        hf_architectures=("FakeFarForConditionalGeneration",),
        model_types=("fakefar",),
        hparams="fake_family:FakeHParams",
        catalog="fakevl",
        projector="gemma4v",
        pre_tokenizers=(PRE,),
    )


@hookimpl
def hf2q_projectors():
    yield ProjectorEntry(name="fake_merger", hparams="fake_tower:FakeTowerHParams", catalog="fake_merger")


@hookimpl
def hf2q_tensor_catalogs():
    yield msgspec.structs.replace(fake_family.CATALOG, name="fakevl")
    yield TOWER


def tower():
    """Random values of the tower under checkpoint names."""
    rng = np.random.default_rng(5)
    made = {"model.vision.patch.weight": rng.standard_normal((WIDTH, 3, 2, 2))}
    made["model.vision.pos"] = rng.standard_normal((4, WIDTH))
    for i in range(DEPTH):
        made[f"model.vision.{i}.up.weight"] = rng.standard_normal((WIDTH, WIDTH))
        made[f"model.vision.{i}.scale"] = rng.standard_normal((1, WIDTH))
    return {name: x.astype(np.float32) for name, x in made.items()}


def write(folder, *, tensors=None, **config):
    """A complete checkpoint with a tower."""
    base = {"architectures": ["FakeVLForConditionalGeneration"], "vision_config": {}}
    tensors = {**tensors_of(), **tower()} if tensors is None else tensors
    write_checkpoint(folder, tensors, **{**base, **config})
    (folder / "preprocessor_config.json").write_text('{"mean": 0.25}')
    return folder
