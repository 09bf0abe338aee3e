"""`TokenizerContract` on the models that are no byte-level BPE: honest ones pass, and faults put in by hand do not."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from hf2q.testing import TokenizerContract
from hf2q.types import PreTokenizer

pytest.importorskip("tokenizers")

DATA = Path(__file__).parent / "tokenizer" / "data"
GEMMA4 = PreTokenizer(name="gemma4", model="gemma4", normalizer="Replace")
BERT = PreTokenizer(name="bert-bge", model="bert", normalizer="BertNormalizer")
LARGE = PreTokenizer(name="large", model="bert", normalizer="BertNormalizer", n_tokens=400)


def family(*records):
    entry = SimpleNamespace(pre_tokenizers=records)

    class WithRecords(TokenizerContract):
        __test__ = False
        arch = "family"

        @classmethod
        def plugins(cls):
            return SimpleNamespace(arch=lambda name: entry)

    return WithRecords


CHECKS = [name for name in vars(TokenizerContract) if name.startswith("test_")]
FAMILIES = {"gemma4": ((GEMMA4,), 2048), "bert": ((LARGE, BERT), 1000)}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", FAMILIES)
def test_honest_families_pass(name, check, tmp_path):
    records, n_vocab = FAMILIES[name]
    suite = family(*records)
    suite.tokenizer, suite.n_vocab = DATA / name, n_vocab
    arguments = () if check == "test_a_real_tokenizer_was_tried" else (tmp_path,)
    getattr(suite(), check)(*arguments)


def test_records_that_are_alike_are_caught(tmp_path):
    twin = PreTokenizer(name="twin", model="bert", normalizer="BertNormalizer")
    with pytest.raises(AssertionError):
        family(BERT, twin)().test_every_structure_is_recognised(tmp_path)


def test_marks_around_a_text_that_differ_are_caught(tmp_path):
    folder = tmp_path / "real"
    folder.mkdir()
    for path in (DATA / "bert").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    tokenizer["post_processor"] = None  # a reader of GGUF puts [CLS] and [SEP] there all the same
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    suite = family(BERT)
    suite.tokenizer, suite.n_vocab = folder, 1000
    with pytest.raises(AssertionError, match="real"):
        suite().test_what_is_put_around_a_text_is_that_of_the_source(tmp_path)
