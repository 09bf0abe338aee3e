"""``general.*`` keys. Expected values are those of llama.cpp's converter for the same directories."""

import logging

import pytest

from hf2q.convert.metadata import default_name, general_metadata, size_label
from hf2q.types import MetadataField, ValueType

MATRIX = [("blk.0.ffn_up.weight", (500, 1000))]
CARD = """---
language:
- en
- no
license: apache-2.0
base_model: Some-Org/Tiny-3B-Instruct
datasets:
- some-org/a-set
- https://huggingface.co/other/b-set
tags:
- test
pipeline_tag: text-generation
model_creator: Somebody
---
# Tiny
"""


def fields(folder, config=None, tensors=MATRIX):
    folder.mkdir(exist_ok=True)
    return {field.key: field.value for field in general_metadata(folder, config or {}, tensors)}


def test_a_bare_directory(tmp_path):
    assert fields(tmp_path / "qwen3_5") == {"general.name": "Qwen3_5", "general.size_label": "500K"}


def test_names_that_say_what_a_model_is(tmp_path):
    found = fields(tmp_path / "Some-Model-v1.5-7B-Instruct", tensors=[("a.weight", (7000, 1000000))])
    assert found == {
        "general.name": "Some Model v1.5 7B Instruct",
        "general.finetune": "Instruct",
        "general.basename": "Some-Model-v1.5",
        "general.size_label": "7B",
    }
    assert list(found)[1:] == ["general.finetune", "general.basename", "general.size_label"]


def test_the_config_may_know_the_name(tmp_path):
    found = fields(tmp_path / "snapshot", {"_name_or_path": "org/Tiny-500K-Base"})
    assert found["general.name"] == "Tiny 500K Base"
    assert found["general.organization"] == "Org"
    assert fields(tmp_path / "snapshot", {"_name_or_path": "/home/me/models/x"})["general.name"] == "Snapshot"


def test_an_empty_name_in_the_config_is_left_out_as_the_converter_does(tmp_path):
    assert fields(tmp_path / "m", {"_name_or_path": ""}) == {"general.size_label": "500K"}
    assert default_name(general_metadata(tmp_path / "m", {"_name_or_path": ""}, MATRIX), "f16") == "500K-F16"


@pytest.mark.parametrize("odd", [5, ["a/b"], {"a": 1}, None])
def test_an_origin_that_is_no_text_says_nothing(tmp_path, odd):
    assert fields(tmp_path / "m", {"_name_or_path": odd})["general.name"] == "M"


def test_empty_texts_of_a_card_are_left_out(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "README.md").write_text("---\nauthor: ''\nbase_model: /local/x\n---\n")
    (tmp_path / "m" / "generation_config.json").write_text('{"sequence": ""}')
    found = fields(tmp_path / "m")
    assert found["general.base_model.count"] == 1
    assert "" not in found.values()


def test_a_card_whose_aliases_unfold_without_end(tmp_path, caplog):
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 14)]
    (tmp_path / "m").mkdir()
    card = "\n".join(["---", *lines, "tags: *a13", "license: *a13", "author: *a13", "---", ""])
    (tmp_path / "m" / "README.md").write_text(card)
    assert fields(tmp_path / "m") == {"general.name": "M", "general.size_label": "500K"}
    assert len(caplog.text) < 2000


def test_text_of_a_card_that_is_not_unicode_is_left_out(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "README.md").write_text('---\nauthor: "\\ud800"\ntags: ["\\udfff", ok]\n---\n')
    assert fields(tmp_path / "m") == {"general.name": "M", "general.size_label": "500K", "general.tags": ("ok",)}


def test_a_model_card(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "README.md").write_text(CARD)
    found = fields(tmp_path / "m")
    assert list(found.items()) == [
        ("general.name", "M"),
        ("general.author", "Somebody"),
        ("general.size_label", "500K"),
        ("general.license", "apache-2.0"),
        ("general.base_model.count", 1),
        ("general.base_model.0.name", "Tiny 3B Instruct"),
        ("general.base_model.0.organization", "Some Org"),
        ("general.base_model.0.repo_url", "https://huggingface.co/Some-Org/Tiny-3B-Instruct"),
        ("general.dataset.count", 2),
        ("general.dataset.0.name", "A Set"),
        ("general.dataset.0.organization", "Some Org"),
        ("general.dataset.0.repo_url", "https://huggingface.co/some-org/a-set"),
        ("general.dataset.1.name", "B Set"),
        ("general.dataset.1.organization", "Other"),
        ("general.dataset.1.repo_url", "https://huggingface.co/other/b-set"),
        ("general.tags", ("test", "text-generation")),
        ("general.languages", ("en", "no")),
    ]


@pytest.mark.parametrize(
    "card", ["---\n\t: [\n---\n", "---\na: *b\n---\n", "---\n- 1\n---\n", b"---\nname: \xff\n---\n"]
)
def test_a_card_that_cannot_be_read_is_left_out_with_a_warning(tmp_path, caplog, card):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "README.md").write_bytes(card if isinstance(card, bytes) else card.encode())
    assert fields(tmp_path / "m") == {"general.name": "M", "general.size_label": "500K"}
    assert caplog.records


def test_values_of_a_card_that_are_no_text(tmp_path, caplog):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "README.md").write_text(
        "---\nname: [1]\nversion: 1.5\nauthor: {a: b}\ntags: [a, 2, {c: d}]\nlicense: [mit, isc]\nlanguage: []\n---\n"
    )
    found = fields(tmp_path / "m")
    assert found == {
        "general.name": "m",
        "general.version": "1.5",
        "general.size_label": "500K",
        "general.license": "mit,isc",
        "general.tags": ("a", "2"),
    }
    assert "author" in caplog.text


def test_sampling_settings(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "generation_config.json").write_text(
        '{"temperature": 1, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "repetition_penalty": 1.05, "do_sample": true}'
    )
    made = [f for f in general_metadata(tmp_path / "m", {}, MATRIX) if "sampling" in f.key]
    assert [(f.key.removeprefix("general.sampling."), f.type, f.value) for f in made] == [
        ("top_k", ValueType.INT32, 20),
        ("top_p", ValueType.FLOAT32, 0.95),
        ("min_p", ValueType.FLOAT32, 0.0),
        ("temp", ValueType.FLOAT32, 1.0),
        ("penalty_repeat", ValueType.FLOAT32, 1.05),
    ]
    assert isinstance(made[3].value, float)


@pytest.mark.parametrize(
    "text",
    ['{"top_k": 20.5}', '{"top_k": true}', '{"top_p": "high"}', '{"top_p": 1e300}', '{"top_k": null}', "[]", "{", ""],
)
def test_sampling_settings_that_mean_nothing(tmp_path, caplog, text):
    caplog.set_level(logging.WARNING)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "generation_config.json").write_text(text)
    assert not [key for key in fields(tmp_path / "m") if "sampling" in key]
    assert bool(caplog.records) == (text not in ("[]", '{"top_k": null}'))


@pytest.mark.parametrize(
    ("count", "label"),
    [(999, "1.0K"), (12_345, "12K"), (6_584_624, "6.6M"), (26_900_000_000, "27B"), (1_050_000_000_000, "1.1T")],
)
def test_labels_of_size(count, label):
    assert size_label([("a.weight", (count,))]) == (count, label)


def test_the_label_of_a_mixture_counts_one_expert():
    tensors = [("a.weight", (1000, 500)), ("ffn_up_exps.weight", (8, 100, 50)), ("ffn_down_exps.weight", (8, 50, 100))]
    assert size_label(tensors) == (580_000, "8x510K")


def test_default_names():
    def name(**values):
        made = [MetadataField.string(f"general.{key}", value) for key, value in values.items()]
        return default_name(made, "q4_k_m")

    assert name(name="Qwen3_5", size_label="6.6M") == "Qwen3_5-6.6M-Q4_K_M"
    full = {"name": "x", "basename": "Some Model", "size_label": "7B", "finetune": "Instruct", "version": "v1.5"}
    assert name(**full) == "Some-Model-7B-Instruct-v1.5-Q4_K_M"
    # a card decides these words: none of them may lead out of the directory, or hide the file
    assert name(name="../../etc/x", version="a/b\\c\0d\n") == "-..-etc-x-a-b-c-d-Q4_K_M"
    assert name(name=".hidden") == "hidden-Q4_K_M"
