"""Text model and tower together: what transformers computes from the same weights, and the laws of a sequence that has
images in it."""

import logging
from itertools import pairwise

import numpy as np
import pytest
from gemma4_pairs import MARKS, PAIRS, POSITIONS, write
from PIL import Image

from hf2q.backends.media import PlacedImage
from hf2q.backends.weights import Weights
from hf2q.convert import convert
from hf2q.errors import LoadError, RequestError, UnknownNameError, UsageError
from hf2q.formats.gguf import open_gguf
from hf2q.formats.gguf.patch import patched_fields, write_patched
from hf2q.plugins import Plugins
from hf2q.serve.events import GenerateRequest
from hf2q.serve.generation import Generation
from hf2q.serve.load import load
from hf2q.serve.sampling import SamplingParams
from hf2q.testing.contract import not_checked
from hf2q.types import MetadataField, TensorInfo, ValueType, resolve
from hf2q_arch_gemma4.graph import Gemma4Graph
from hf2q_arch_gemma4.graph_tower import Gemma4Tower
from hf2q_arch_gemma4.hf2q_contract import REFERENCE, TOLERANCE
from hf2q_arch_gemma4.hparams import Gemma4HParams
from hf2q_arch_gemma4.images import in_blocks
from hf2q_arch_gemma4.vision import Gemma4TowerHParams

PLUGINS = Plugins.load()
BEGIN, END, IMAGE = 270, 271, 272
PLACEHOLDER = MARKS[2]


def made(folder, name, **options):
    """A text model and its projector, as files."""
    source = write(folder / name, name, **options)
    convert(source, "f32", folder / f"{name}.gguf", mmproj=True, plugins=PLUGINS, sidecars=False, receipt=False)
    return folder / f"{name}.gguf", folder / f"mmproj-{name}.gguf"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeing")
    return {name: made(folder, name) for name in PAIRS}


class Pair:
    """Both graphs on one backend, and what was recorded of them."""

    def __init__(self, files, name, backend):
        entry = PLUGINS.backend(backend)
        reason = resolve(entry.available)()
        if reason is not None:
            not_checked(f"the backend {backend} cannot run here: {reason}")
        self.ops = resolve(entry.backend)(threads=1)
        self.text = self.graph(files[name][0], Gemma4HParams, Gemma4Graph)
        self.tower = self.graph(files[name][1], Gemma4TowerHParams, Gemma4Tower)
        with np.load(REFERENCE / f"seen_{name}.npz") as held:
            self.recorded = dict(held)
        self.ids = self.recorded["ids"]
        self.images = self.placed()
        self.whole = self.text.whole_images

    def graph(self, path, hparams, kind):
        with open_gguf(path) as file:
            return kind(hparams.from_metadata(file.metadata), Weights(file, PLUGINS.codec, self.ops), self.ops)

    def placed(self):
        """The images of the record, in their places of its prompt."""
        at, found = 0, []
        starts = np.flatnonzero((self.ids == IMAGE) & (np.roll(self.ids, 1) != IMAGE))
        for start, grid in zip(starts, self.recorded["grids"].tolist(), strict=True):
            patches = self.recorded["pixels"][at : at + grid[0] * grid[1]].reshape(*grid, -1)
            at += grid[0] * grid[1]
            found.append(PlacedImage(int(start), self.tower.embed(in_blocks(patches, 3), tuple(grid))))
        return found

    def logits(self, ids, caches, media=None):
        ids = np.atleast_2d(np.asarray(ids, np.int32))
        found = self.text.head(self.text.hidden(ids, caches, media))
        self.ops.eval(found, *(array for cache in caches for array in cache.arrays()))
        return self.ops.to_numpy(found)


@pytest.fixture(scope="module", params=[(name, backend) for name in PAIRS for backend in ("reference", "mlx")])
def both(request, files):
    return Pair(files, *request.param)


def close(found, expected, tolerance=TOLERANCE):
    assert found.shape == expected.shape
    off = np.abs(found - expected).max() / np.abs(expected).max()
    assert off <= tolerance, f"the numbers differ by {off:.2e} of the largest"


def test_the_tower_equals_the_reference(both):
    found = [both.ops.to_numpy(placed.image.embeddings) for placed in both.images]
    assert [placed.image.grid for placed in both.images] == [(2, 3), (4, 5)]
    close(np.concatenate(found), both.recorded["embeddings"])


def test_a_prompt_with_images_equals_the_reference(both):
    """An image takes as many positions as it has tokens, two windows of them."""
    cache = both.text.new_cache()
    close(both.logits(both.ids, [cache], [both.images])[0], both.recorded["logits"])
    assert (cache.rope_offset, cache.unfinished, len(cache.images)) == (0, None, 2)


def test_tokens_of_an_image_see_later_ones_in_large_models_only(both):
    """Another last row of the second image changes what comes out at its first token, or does not."""
    first, second = both.images
    image = second.image
    mixed = both.ops.concat([image.embeddings[:15], image.embeddings[:5]], 0)
    other = [first, second._replace(image=image._replace(embeddings=mixed))]
    plain, changed = (both.logits(both.ids, [both.text.new_cache()], [images])[0] for images in (both.images, other))
    assert np.array_equal(changed[: second.place], plain[: second.place])
    early = slice(second.place, second.place + 15)
    assert np.array_equal(changed[early], plain[early]) == (not both.whole)
    assert np.abs(changed[second.end :] - plain[second.end :]).max() > 1e-3 * np.abs(plain).max()


def test_the_ids_at_an_image_do_not_matter(both):
    ids = np.where(both.ids == IMAGE, 33, both.ids)
    again = both.logits(ids, [both.text.new_cache()], [both.images])
    assert np.array_equal(again, both.logits(both.ids, [both.text.new_cache()], [both.images]))


@pytest.mark.parametrize("sizes", [[1, 2, 1, 6, 1, 1, 2, 20, 1, 5, 7], [3, 9, 22, 13], [10, 37], [46, 1]])
def test_however_the_prompt_is_cut_around_images(both, sizes):
    cache, parts = both.text.new_cache(), []
    for start, end in pairwise(np.cumsum([0, *sizes])):
        parts.append(both.logits(both.ids[start:end], [cache], [both.images]))
    close(np.concatenate(parts, 1)[0], both.recorded["logits"])


def test_whether_an_image_may_be_cut(both):
    cache = both.text.new_cache()
    if both.whole:
        with pytest.raises(UsageError, match="tokens 0 to 2 of an image of 6 go in alone"):
            both.logits(both.ids[:6], [cache], [both.images])
        return
    parts = [both.logits(both.ids[k : k + 1], [cache], [both.images]) for k in range(len(both.ids))]
    close(np.concatenate(parts, 1)[0], both.recorded["logits"])
    other = both.text.new_cache()
    both.logits(both.ids[:6], [other], [both.images])
    with pytest.raises(UsageError, match="ends inside an image"):
        both.logits([1], [other])


def test_rows_with_images_and_without_go_together(both):
    count = len(both.ids)
    ids = np.random.RandomState(3).randint(7, 250, (3, count)).astype(np.int32)
    ids[1] = both.ids
    caches = [both.text.new_cache() for _ in range(3)]
    both.logits(ids[2, :5], [caches[2]])
    found = both.logits(ids, caches, [(), both.images, ()])
    close(found[1], both.recorded["logits"])
    close(found[0], both.logits(ids[0], [both.text.new_cache()])[0])
    whole = both.logits(np.concatenate([ids[2, :5], ids[2]]), [both.text.new_cache()])
    close(found[2], whole[0, 5:])
    after = both.logits(ids[:, :4], caches)
    together = np.concatenate([both.ids, ids[1, :4]])
    close(after[1], both.logits(together, [both.text.new_cache()], [both.images])[0, count:])


def test_cutting_back_copying_and_restoring(both):
    cache, images, ids = both.text.new_cache(), both.images, both.ids
    both.logits(ids, [cache], [images])
    copy, restored = cache.copy(), both.text.new_cache()
    restored.restore(cache.save())
    with pytest.raises(UsageError):
        cache.trim(images[1].place + 2)
    cache.trim(images[0].end + 1)  # between the two
    close(both.logits(ids[cache.position :], [cache], [images])[0], both.recorded["logits"][images[0].end + 1 :])
    following = np.array([8, 9, 10], np.int32)
    expected = both.logits(np.concatenate([ids, following]), [both.text.new_cache()], [images])[0, len(ids) :]
    for one in (copy, restored):
        close(both.logits(following, [one])[0], expected)


# ------------------------------------------------------------------------------------------------------ whole models


@pytest.fixture(scope="module")
def pixels():
    return np.random.RandomState(4).randint(0, 256, (50, 110, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def bounded(files, tmp_path_factory):
    """The projectors with at most 70 tokens for an image."""
    folder = tmp_path_factory.mktemp("bounded")
    field = MetadataField.u32("clip.vision.image_max_pixels", 70 * 144)
    return {name: changed(files[name][1], folder / f"mmproj-{name}.gguf", field) for name in files}


def changed(path, output, *fields, removed=()):
    """A copy of a file with other metadata."""
    with open_gguf(path) as file:
        write_patched(file, patched_fields(file, {field.key: field for field in fields}, removed), str(output))
    return output


@pytest.mark.parametrize("name", PAIRS)
def test_a_model_answers_about_a_picture(files, bounded, pixels, name, tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(pixels).save(path)
    with load(files[name][0], mmproj=bounded[name], backend="reference") as model:
        prompt = f"see {PLACEHOLDER} now"
        plain = list(model.tokenizer.encode(prompt))
        ids, (placed,) = model.vision.place(plain, [pixels])
        assert placed.image.grid == (5, 12)  # 60 × 144 pixels
        at = plain.index(IMAGE)
        assert list(ids) == [*plain[:at], BEGIN, *[IMAGE] * 60, END, *plain[at + 1 :]]
        assert placed.place == at + 1
        answers = []
        for source in (path, pixels):
            events = list(model.generate(prompt, images=[source], max_tokens=4, ignore_eos=True))
            assert events[-1].usage.prompt_tokens == len(plain) + 61
            answers.append([event.token for event in events])
        assert answers[0] == answers[1]


@pytest.mark.parametrize("name", PAIRS)
def test_a_prompt_is_not_cut_inside_an_image_that_must_be_whole(files, bounded, pixels, name):
    """However small the pieces are that the engine feeds."""
    with load(files[name][0], mmproj=bounded[name], backend="reference") as model:
        ids, placed = model.vision.place(model.tokenizer.encode(f"a {PLACEHOLDER} b {PLACEHOLDER} c"), [pixels] * 2)
        request = GenerateRequest(
            prompt_ids=ids, images=placed, sampling=SamplingParams(temperature=0), max_tokens=3, ignore_eos=True
        )
        answers = []
        for chunk in (512, 7):
            generation, events, fed = Generation(model, request, chunk=chunk), [], []
            while not generation.done:
                events += generation.step()
                fed.append(generation.position)
            answers.append([event.token for event in events])
        assert answers[0] == answers[1]
        inside = [at for at in fed if any(image.place < at < image.end for image in placed)]
        assert bool(inside) == (name == "small")


def test_images_that_are_too_narrow_are_refused(files):
    """With the default of 280 tokens a strip becomes longer than the tiny tower's tables of positions."""
    with load(files["large"][0], mmproj=files["large"][1], backend="reference") as model:
        assert model.vision.see(np.zeros((12, 12, 3), np.uint8)).grid == (16, 16)
        narrow = f"12 × 300 pixels is too narrow: it becomes 36 × 996, and .* {POSITIONS} patches of 4 pixels"
        with pytest.raises(RequestError, match=narrow):
            model.vision.see(np.zeros((300, 12, 3), np.uint8))


PIXELS = "clip.vision.image_max_pixels"
EPSILON = "clip.vision.attention.layer_norm_epsilon"


@pytest.mark.parametrize(
    ("fields", "removed", "said"),
    [
        ([MetadataField.boolean("clip.has_audio_encoder", True)], [], "audio tower"),
        ([MetadataField.u32("clip.vision.image_min_pixels", 144)], [], "no least size"),
        ([MetadataField.u32(PIXELS, 71 * 144)], [], "expected 70, 140, 280, 560 or 1120 times 144"),
        ([MetadataField.string(PIXELS, "many")], [], "image_max_pixels is 'many'"),
        ([MetadataField.u32("clip.vision.projector.scale_factor", 2)], [], "scale_factor is 2, expected 3"),
        ([MetadataField.f32(EPSILON, 0.0)], [], "layer_norm_epsilon is 0.0"),
        ([], [EPSILON], "layer_norm_epsilon is None"),
        ([MetadataField.array("clip.vision.image_std", ValueType.FLOAT32, [0.5, 0.0, 1.0])], [], "can be divided by"),
        ([MetadataField.u32("clip.vision.attention.head_count", 4)], [], "another shape: .*attn_q_norm"),
        ([MetadataField.u32("clip.vision.projection_dim", 64)], [], "another shape: mm.input_projection"),
        ([MetadataField.string("clip.vision.projector_type", "gemma4uv")], [], "no projector 'gemma4uv'"),
    ],
)
def test_projectors_that_cannot_be_run_are_refused(files, tmp_path, fields, removed, said):
    wrong = changed(files["large"][1], tmp_path / "mmproj-x.gguf", *fields, removed=removed)
    with pytest.raises((LoadError, UnknownNameError), match=said):
        load(files["large"][0], mmproj=wrong, backend="reference")


def test_the_epsilon_of_a_file_counts(files, tmp_path):
    path = changed(files["small"][1], tmp_path / "mmproj-x.gguf", MetadataField.f32(EPSILON, 0.25))
    found = []
    for projector in (path, files["small"][1]):
        with load(files["small"][0], mmproj=projector, backend="reference") as model:
            found.append(model.vision.see(np.zeros((12, 12, 3), np.uint8)).embeddings)
    assert np.abs(found[0] - found[1]).max() > 1e-3 * np.abs(found[1]).max()


def test_a_vocabulary_without_the_marks_is_refused(tmp_path):
    text, projector = made(tmp_path, "small", marks=MARKS[1:])
    with pytest.raises(LoadError, match=r"vocabulary has no <\|image>, which marks an image"):
        load(text, mmproj=projector, backend="reference")


def test_what_gguf_cannot_say_about_images_is_said_when_converting(caplog):
    """Published configs and readers agree; one that differs is converted, with a warning."""
    images = {"preprocessor_config": {"image_mean": [0, 0, 0], "image_std": [1, 1, 1]}}

    def warned(name, direction):
        caplog.clear()
        config = PAIRS[name][0]
        text = {**config["text_config"], "use_bidirectional_attention": direction}
        names = [TensorInfo(name="", shape=(), dtype="F32", file="", offset=0, nbytes=0)]
        with caplog.at_level(logging.WARNING):
            Gemma4TowerHParams.from_config({**config, **images, "text_config": text}, names)
        return caplog.text

    assert not warned("large", "vision")
    assert not warned("small", None)
    assert "see each other in a model without per-layer inputs" in warned("large", None)
    assert "see earlier ones only in a model with per-layer inputs" in warned("small", "vision")
