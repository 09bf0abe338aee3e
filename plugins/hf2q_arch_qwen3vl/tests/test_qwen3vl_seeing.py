"""Text model and tower together: what transformers computes from the same weights, and the laws of a sequence that has
images in it."""

import json
import re

import numpy as np
import pytest
from PIL import Image
from qwen3vl_checkpoints import VARIANTS, write

from hf2q.backends.media import PlacedImage, mrope_positions
from hf2q.backends.weights import Weights
from hf2q.convert import convert
from hf2q.errors import LoadError, RequestError, UnknownNameError, UsageError
from hf2q.formats.gguf import open_gguf
from hf2q.formats.gguf.patch import patched_fields, write_patched
from hf2q.plugins import Plugins
from hf2q.serve.load import load
from hf2q.testing.contract import not_checked
from hf2q.types import MetadataField, ValueType, resolve
from hf2q_arch_qwen3vl.graph import Qwen3VLGraph
from hf2q_arch_qwen3vl.hf2q_contract import REFERENCE
from hf2q_arch_qwen3vl.hparams import Qwen3VLHParams
from hf2q_arch_qwen3vl.vision import TowerHParams
from hf2q_arch_qwen3vl.vision_graph import Qwen3VLTower

PLUGINS = Plugins.load()
PLACEHOLDER = "<|image_pad|>"


def made(folder, name, variant="dense", *, placeholder=True):
    """A text model and its projector, as files."""
    source = write(folder / name, *VARIANTS[variant])
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    if placeholder:
        last = tokenizer["added_tokens"][-1]
        tokenizer["added_tokens"].append({**last, "id": last["id"] + 1, "content": PLACEHOLDER})
        (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    convert(source, "f32", folder / f"{name}.gguf", mmproj=True, plugins=PLUGINS, sidecars=False, receipt=False)
    return folder / f"{name}.gguf", folder / f"mmproj-{name}.gguf"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return made(tmp_path_factory.mktemp("seeing"), "m")


@pytest.fixture(scope="module")
def recorded():
    with np.load(REFERENCE / "seen.npz") as held:
        return dict(held)


class Pair:
    """Both graphs on one backend."""

    def __init__(self, files, backend):
        entry = PLUGINS.backend(backend)
        reason = resolve(entry.available)()
        if reason is not None:
            not_checked(f"the backend {backend} cannot run here: {reason}")
        self.ops = resolve(entry.backend)(threads=1)
        self.text = self.graph(files[0], Qwen3VLHParams, Qwen3VLGraph)
        self.tower = self.graph(files[1], TowerHParams, Qwen3VLTower)

    def graph(self, path, hparams, kind):
        with open_gguf(path) as file:
            return kind(hparams.from_metadata(file.metadata), Weights(file, PLUGINS.codec, self.ops), self.ops)

    def images(self, recorded):
        """Those of the record, in their places of its prompt."""
        found = [self.tower.embed(patches, tuple(grid)) for patches, grid in self.inputs(recorded)]
        ids = recorded["ids"]
        starts = np.flatnonzero((ids == 270) & (np.roll(ids, 1) != 270))
        return [PlacedImage(int(at), image) for at, image in zip(starts, found, strict=True)]

    def inputs(self, recorded):
        return list(zip(recorded["patches"], recorded["grids"].tolist(), strict=True))

    def logits(self, ids, caches, media=None):
        ids = np.atleast_2d(np.asarray(ids, np.int32))
        found = self.text.head(self.text.hidden(ids, caches, media))
        self.ops.eval(found, *(array for cache in caches for array in cache.arrays()))
        return self.ops.to_numpy(found)


@pytest.fixture(scope="module", params=["reference", "mlx"])
def pair(request, files):
    return Pair(files, request.param)


def close(found, expected, tolerance=1e-4):
    assert found.shape == expected.shape
    off = np.abs(found - expected).max() / np.abs(expected).max()
    assert off <= tolerance, f"the numbers differ by {off:.2e} of the largest"


def test_the_tower_equals_the_reference(pair, recorded):
    for number, (patches, grid) in enumerate(pair.inputs(recorded)):
        found = pair.tower.embed(patches, tuple(grid))
        assert found.grid == (grid[0] // 2, grid[1] // 2)
        close(pair.ops.to_numpy(found.embeddings), recorded["embeddings"][number])
        for level, features in enumerate(found.deepstack):
            close(pair.ops.to_numpy(features), recorded["deepstack"][level, number])


@pytest.mark.parametrize("key", ["clip.has_vision_encoder", "clip.use_gelu"])
@pytest.mark.parametrize("value", [False, 1, None])
def test_a_file_that_says_otherwise_of_its_tower_is_refused(files, key, value):
    with open_gguf(files[1]) as file:
        metadata = {**file.metadata, key: value}
    with pytest.raises(LoadError, match=re.escape(f"{key} is {value}, expected True")):
        TowerHParams.from_metadata(metadata)


def test_a_prompt_with_images_equals_the_reference(pair, recorded):
    cache, media = pair.text.new_cache(), [pair.images(recorded)]
    assert (mrope_positions([cache], len(recorded["ids"]), media)[0] == recorded["positions"]).all()
    close(pair.logits(recorded["ids"], [cache], media)[0], recorded["logits"])
    assert cache.rope_offset == recorded["positions"][-1, 0] + 1 - len(recorded["ids"])


def test_images_and_features_matter(pair, recorded):
    """A graph that ignored them could not pass the test above; this says which part would be missing."""
    images = pair.images(recorded)
    last = pair.logits(recorded["ids"], [pair.text.new_cache()], [images])[0, -1]
    for part in ({"embeddings": images[1].image.embeddings}, {"deepstack": images[1].image.deepstack}):
        other = [images[0]._replace(image=images[0].image._replace(**part)), images[1]]
        changed = pair.logits(recorded["ids"], [pair.text.new_cache()], [other])[0, -1]
        assert np.abs(changed - last).max() > 1e-3 * np.abs(last).max()


@pytest.mark.parametrize("sizes", [[1] * 24, [3, 3, 5, 13], [7, 17], [20, 4]])
def test_however_the_prompt_is_cut(pair, recorded, sizes):
    cache, at, parts = pair.text.new_cache(), 0, []
    images = pair.images(recorded)
    for size in sizes:
        media = [images] if at < images[-1].end else None  # what follows the last image needs none
        parts.append(pair.logits(recorded["ids"][at : at + size], [cache], media))
        at += size
    close(np.concatenate(parts, 1)[0], recorded["logits"])


def test_rows_with_images_and_without_go_together(pair, recorded):
    ids = np.random.RandomState(3).randint(0, 256, (3, 24)).astype(np.int32)
    ids[1] = recorded["ids"]
    caches = [pair.text.new_cache() for _ in range(3)]
    pair.logits(ids[2, :5], [caches[2]])
    found = pair.logits(ids, caches, [(), pair.images(recorded), ()])
    close(found[1], recorded["logits"])
    close(found[0], pair.logits(ids[0], [pair.text.new_cache()])[0])
    whole = pair.logits(np.concatenate([ids[2, :5], ids[2]]), [pair.text.new_cache()])
    close(found[2], whole[0, 5:])
    more = ids[:, :4]
    after = pair.logits(more, caches)
    together = np.concatenate([recorded["ids"], more[1]])
    close(after[1], pair.logits(together, [pair.text.new_cache()], [pair.images(recorded)])[0, 24:])


def test_cutting_back_copying_and_restoring(pair, recorded):
    images, ids = pair.images(recorded), recorded["ids"]
    cache = pair.text.new_cache()
    pair.logits(ids, [cache], [images])
    copy, restored = cache.copy(), pair.text.new_cache()
    restored.restore(cache.save())
    with pytest.raises(UsageError):
        cache.trim(images[1].place + 2)
    cache.trim(images[0].end + 1)  # between the two
    close(pair.logits(ids[cache.position :], [cache], [images])[0], recorded["logits"][images[0].end + 1 :])
    following = np.array([8, 9, 10], np.int32)
    expected = pair.logits(np.concatenate([ids, following]), [pair.text.new_cache()], [images])[0, 24:]
    for one in (copy, restored):
        close(pair.logits(following, [one])[0], expected)


def test_an_image_must_go_in_as_a_whole(pair, recorded):
    cache = pair.text.new_cache()
    pair.logits(recorded["ids"][:6], [cache], [pair.images(recorded)])
    with pytest.raises(UsageError, match="ends inside an image"):
        pair.logits([1], [cache])


# ------------------------------------------------------------------------------------------------------ whole models


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    pixels = np.random.RandomState(4).randint(0, 256, (18, 30, 3)).astype(np.uint8)
    path = tmp_path_factory.mktemp("pictures") / "a.png"
    Image.fromarray(pixels).save(path)
    return path, pixels


def answer(model, prompt, images):
    events = list(model.generate(prompt, images=images, max_tokens=6, ignore_eos=True))
    return [event.token for event in events if event.token is not None], events[-1].usage.prompt_tokens


def test_a_model_answers_about_a_picture(files, picture):
    path, pixels = picture
    with load(files[0], mmproj=files[1], backend="reference") as model:
        prompt = f"see {PLACEHOLDER} now"
        plain = len(model.tokenizer.encode(prompt))
        found = [answer(model, prompt, [source]) for source in (path, path.read_bytes(), pixels)]
        assert found[0] == found[1] == found[2]
        assert found[0][1] == plain - 1 + 8  # 16 × 32 pixels are 8 tokens of 8 × 8
        image = model.vision.see(pixels)
        ids, placed = model.vision.place(model.tokenizer.encode(prompt), [pixels])
        assert (placed[0].image.grid, image.tokens) == ((2, 4), 8)
        assert [at for at, token in enumerate(ids) if token == model.vision.token] == list(
            range(placed[0].place, placed[0].end)
        )
        assert (
            answer(model, f"see {PLACEHOLDER} and {PLACEHOLDER}", [pixels, 255 - pixels])[1]
            == len(model.tokenizer.encode(f"see {PLACEHOLDER} and {PLACEHOLDER}")) - 2 + 16
        )


def test_images_that_have_no_place_are_refused(files, picture):
    with load(files[0], mmproj=files[1], backend="reference") as model:
        for prompt, images in (
            ("none", [picture[0]]),
            (PLACEHOLDER * 2, [picture[0]]),
            (PLACEHOLDER, [picture[0]] * 2),
        ):
            with pytest.raises(RequestError, match="places for them"):
                model.generate(prompt, images=images)
        with pytest.raises(RequestError, match="too narrow"):
            model.generate(PLACEHOLDER, images=[np.zeros((1, 201, 3), np.uint8)])
    with load(files[0], backend="reference") as model, pytest.raises(UsageError, match="without its projector"):
        model.generate(PLACEHOLDER, images=[picture[0]])


def changed(path, output, *fields, removed=()):
    """A copy of a file with other metadata."""
    with open_gguf(path) as file:
        write_patched(file, patched_fields(file, {field.key: field for field in fields}, removed), str(output))
    return output


TAPS = "clip.vision.is_deepstack_layers"


@pytest.mark.parametrize(
    ("fields", "removed", "said"),
    [
        ([MetadataField.u32("clip.vision.projection_dim", 64)], [], "have another shape: mm.2.bias"),
        ([MetadataField.u32("clip.vision.block_count", 6)], [TAPS], "12 tensors are missing"),
        ([], [TAPS], "12 tensors are not known to clip: v.deepstack.1"),
        ([], ["clip.vision.image_mean"], "lacks clip.vision.image_mean"),
        ([MetadataField.array("clip.vision.image_std", ValueType.FLOAT32, [0.5, 0.0, 1.0])], [], "can be divided by"),
        ([MetadataField.u32("clip.vision.image_min_pixels", 63)], [], "images of 63 to 262144 pixels"),
        ([MetadataField.u32("clip.vision.image_max_pixels", 100)], [], "images of 256 to 100 pixels"),
        ([MetadataField.u32("clip.vision.attention.head_count", 5)], [], "24 wide and has 5 heads"),
        ([MetadataField.string("clip.projector_type", "gemma4v")], [], "qwen3vl models need a qwen3vl_merger"),
        ([], ["clip.projector_type"], "clip.projector_type is None"),
    ],
)
def test_projectors_that_contradict_themselves_are_refused(files, tmp_path, fields, removed, said):
    wrong = changed(files[1], tmp_path / "mmproj-x.gguf", *fields, removed=removed)
    with pytest.raises(LoadError, match=said):
        load(files[0], mmproj=wrong, backend="reference")


def test_projectors_of_unknown_kinds_are_refused(files, tmp_path):
    wrong = changed(files[1], tmp_path / "mmproj-x.gguf", MetadataField.string("clip.projector_type", "new_merger"))
    with pytest.raises(UnknownNameError, match="new_merger"):
        load(files[0], mmproj=wrong, backend="reference")


def test_files_that_do_not_belong_together_are_refused(files, tmp_path):
    wide, _ = made(tmp_path, "wide", "dense-wide")
    with pytest.raises(LoadError, match="projection_dim is 48, the text model's embedding_length 256"):
        load(wide, mmproj=files[1], backend="reference")
    plain, _ = made(tmp_path, "plain", "dense-no-taps")
    with pytest.raises(LoadError, match="features for 2 layers of the text model, which takes them for 0"):
        load(plain, mmproj=files[1], backend="reference")
    blind, _ = made(tmp_path, "blind", placeholder=False)
    with pytest.raises(LoadError, match=r"vocabulary has no <\|image_pad\|>") as raised:
        load(blind, mmproj=files[1], backend="reference")
    assert "the same checkpoint" in raised.value.hint


def test_text_models_and_projectors_are_not_mistaken_for_each_other(files):
    with pytest.raises(LoadError, match=r"is no projector: .* is 'qwen3vl'"):
        load(files[0], mmproj=files[0], backend="reference")
    with pytest.raises(LoadError, match="is a projector, which is no model of its own"):
        load(files[1], backend="reference")
    with pytest.raises(UsageError, match="2 projectors for one model"):
        load(files[0], mmproj=[files[1], files[1]], backend="reference")


def test_a_file_may_bound_the_size_of_images(files, tmp_path):
    bounded = changed(files[1], tmp_path / "mmproj-x.gguf", MetadataField.u32("clip.vision.image_min_pixels", 4096))
    with load(files[0], mmproj=bounded, backend="reference") as model:
        assert model.vision.see(np.zeros((8, 8, 3), np.uint8)).grid == (8, 8)
