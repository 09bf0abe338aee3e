"""A trained Qwen 3.5 that is asked about an image, against transformers. Its tower is run by the plugin of Qwen 3-VL.

What was recorded is described in data/PROVENANCE.md.
"""

from pathlib import Path

import numpy as np
import pytest

import hf2q
from hf2q.convert import convert

DATA = Path(__file__).parent / "data"
PIXELS = np.random.RandomState(7).randint(0, 256, (64, 96, 3)).astype(np.uint8)
PROMPT = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What is this?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeing")
    convert(DATA / "qwen3_5", "f32", folder / "m.gguf", mmproj=True, sidecars=False, receipt=False)
    return folder / "m.gguf", folder / "mmproj-m.gguf"


@pytest.mark.parametrize("backend", ["reference", "mlx"])
def test_logits_after_an_image_equal_the_reference(files, backend):
    with np.load(DATA / "qwen3_5_image.npz") as held:
        recorded = dict(held)
    with hf2q.load(files[0], mmproj=files[1], backend=backend) as model:
        ids, images = model.vision.place(model.tokenizer.encode(PROMPT), [PIXELS])
        assert list(ids) == recorded["ids"].tolist()
        np.testing.assert_allclose(np.array(images[0].image.embeddings), recorded["embeddings"], atol=1e-5)
        for cuts in ([len(ids)], [7, len(ids)], [5, 6, 20, len(ids)]):
            sequence, at, parts = model.sequence(images), 0, []
            for end in cuts:
                parts.append(sequence.all_logits(ids[at:end]))
                at = end
            np.testing.assert_allclose(np.concatenate(parts)[-8:], recorded["logits"], atol=1e-3)
