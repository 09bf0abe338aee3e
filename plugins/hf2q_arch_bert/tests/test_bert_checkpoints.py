"""Layouts that amount to the same model, side files, and what is refused by name."""

import json

import numpy as np
import pytest

from hf2q import rows
from hf2q.convert import convert
from hf2q.errors import ConfigError, LoadError, TensorMismatchError, UnknownNameError
from hf2q.formats.gguf import open_gguf
from hf2q.plugins import Plugins
from hf2q_arch_bert.hparams import BertHParams
from hf2q_arch_bert.pooling import read_pooling
from hf2q_arch_bert.tokenizer import PRE_TOKENIZERS
from hf2q_arch_bert.transforms import split_qkv

POOL = "sentence_transformers.models.Pooling"


@pytest.fixture(scope="module")
def plugins():
    return Plugins.load()


@pytest.fixture
def run(plugins, tmp_path):
    """`run(folder)` converts to F32 and gives the file's path."""

    def go(folder, name="out.gguf", recipe="f32"):
        made = convert(
            folder, recipe, tmp_path / name, provenance=False, sidecars=False, receipt=False, plugins=plugins
        )
        return made.output

    return go


@pytest.fixture
def bert(variants, tmp_path):
    """`bert(**changes)` writes a BERT checkpoint into a folder called bert."""

    def make(shapes=None, arrays=None, pooling=None, modules=None, **changes):
        config = variants.bert_config(**changes)
        arrays = variants.random_arrays(variants.bert_shapes(config, **(shapes or {}))) if arrays is None else arrays
        return variants.write_checkpoint(tmp_path / "bert", config, arrays, pooling=pooling, modules=modules)

    return make


def test_every_layout_of_nomic_gives_the_same_file(variants, run, tmp_path):
    config = variants.nomic_config()
    arrays = variants.random_arrays(variants.nomic_shapes(config))
    files = []
    for keys in (config, variants.native_config(), {**variants.native_config(), **config}):
        for place, named in enumerate((arrays, variants.native_names(arrays))):
            folder = variants.write_checkpoint(tmp_path / f"{len(files)}{place}" / "nomic", keys, named)
            with open_gguf(run(folder, f"{len(files)}.gguf")) as file:
                tensors = {name: file.rows(name).tobytes() for name in file.tensors}
                files.append((tensors, {key: file.metadata[key] for key in file.metadata}))
    assert all(file == files[0] for file in files)
    assert files[0][1]["nomic-bert.context_length"] == 2048


def test_fused_projections_are_taken_apart_again(variants, run, tmp_path):
    """The inverse of the one transform, on a file read back."""
    config = variants.native_config()
    arrays = variants.native_names(variants.random_arrays(variants.nomic_shapes(variants.nomic_config())))
    folder = variants.write_checkpoint(tmp_path / "nomic", config, arrays)
    with open_gguf(run(folder)) as file:
        hparams = BertHParams.from_metadata(file.metadata)
        fused = rows.from_array(np.array(file.rows("blk.1.attn_qkv.weight")).view(np.float32))
        for part, found in zip("qkv", split_qkv(fused, hparams), strict=True):
            assert np.array_equal(found.read(0, 64), arrays[f"layers.1.self_attn.{part}_proj.weight"])


def test_ignored_tensors_are_named_with_reasons(variants, plugins, tmp_path):
    folder = variants.VARIANTS["masked"](tmp_path / "masked")
    plan = convert(folder, "f32", tmp_path / "x.gguf", dry_run=True, plugins=plugins).plan
    reasons = dict(plan.ignored)
    assert set(reasons) == {
        "bert.embeddings.position_ids",
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
        "cls.predictions.bias",
        "cls.predictions.transform.dense.weight",
        "cls.predictions.transform.dense.bias",
        "cls.seq_relationship.weight",
        "cls.seq_relationship.bias",
    }
    assert all(reasons.values())


def test_a_table_of_positions_with_other_rows_is_refused(bert, variants, run):
    arrays = variants.random_arrays(variants.bert_shapes(variants.bert_config(max_position_embeddings=50)))
    with pytest.raises(TensorMismatchError, match=r"position_embd\.weight.*\(50, 64\), expected \(48, 64\)"):
        run(bert(arrays=arrays))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hidden_act": "relu"}, "hidden_act is 'relu', expected 'gelu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"type_vocab_size": 0}, "type_vocab_size is 0"),
        ({"num_attention_heads": 5}, "a width of 64 is no multiple of 5 heads"),
        ({"num_labels": 4, "id2label": {"0": "a"}}, "num_labels is 4, id2label has 1"),
        ({"id2label": {"a": "b"}}, "id2label is"),
        ({"surprise": 1}, "surprise = 1"),
        ({"modules.json": []}, "a key 'modules.json'"),
    ],
)
def test_configs_that_are_refused(bert, run, changes, told):
    with pytest.raises(ConfigError) as error:
        run(bert(shapes={}, **changes))
    assert told in error.value.message


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"moe_every_n_layers": 2}, "nomic-bert-moe"),
        ({"activation_function": "gelu"}, "activation_function is 'gelu', expected 'swiglu'"),
        ({"causal": True}, "causal is True"),
        ({"qkv_proj_bias": True}, "qkv_proj_bias is True"),
        ({"mlp_fc2_bias": True}, "mlp_fc2_bias is True"),
        ({"prenorm": True}, "prenorm is True"),
        ({"rotary_emb_fraction": 0.5}, "rotary_emb_fraction is 0.5"),
        ({"rotary_emb_interleaved": True}, "rotary_emb_interleaved is True"),
        ({"rotary_emb_scale_base": 512}, "rotary_emb_scale_base is 512"),
        ({"use_rms_norm": True}, "use_rms_norm is True"),
        ({"n_positions": 4096}, "n_positions is 4096 and max_trained_positions 2048"),
        ({"hidden_size": 768}, "states n_embd twice: 64 in Nomic's own keys, 768"),
        ({"head_dim": 32}, "4 heads of 32 for a width of 64"),
    ],
)
def test_nomic_configs_that_are_refused(variants, run, tmp_path, changes, told):
    config = variants.nomic_config(**changes)
    arrays = variants.random_arrays(variants.nomic_shapes(config))
    with pytest.raises(ConfigError) as error:
        run(variants.write_checkpoint(tmp_path / "nomic", config, arrays))
    assert told in error.value.message


@pytest.mark.parametrize("key", ["causal", "qkv_proj_bias", "activation_function", "rotary_emb_fraction"])
def test_nomic_keys_whose_defaults_are_others_must_be_there(variants, run, tmp_path, key):
    config = variants.nomic_config()
    del config[key]
    arrays = variants.random_arrays(variants.nomic_shapes(config))
    with pytest.raises(ConfigError, match=f"{key} is None"):
        run(variants.write_checkpoint(tmp_path / "nomic", config, arrays))


def test_a_head_behind_a_pooler_is_refused(bert, run):
    folder = bert(shapes={"labels": 3, "heads": True}, id2label={"0": "a", "1": "b", "2": "c"})
    with pytest.raises(TensorMismatchError, match="behind a pooler"):
        run(folder)


def test_a_head_without_classes_is_refused(bert, run):
    with pytest.raises(TensorMismatchError, match="names no classes"):
        run(bert(shapes={"labels": 2}, architectures=["BertForSequenceClassification"]))


@pytest.mark.parametrize(
    "name", ["XLMRobertaModel", "RobertaModel", "CamembertModel", "DistilBertModel", "JinaBertModel"]
)
def test_relatives_are_refused_by_name(bert, run, name):
    with pytest.raises(UnknownNameError, match=name):
        run(bert(architectures=[name]))


@pytest.mark.parametrize(
    ("config", "value"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, 1),
        ({"pooling_mode_cls_token": True, "word_embedding_dimension": 64}, 2),
        ({"pooling_mode_lasttoken": True, "include_prompt": True}, 3),
        ({"pooling_mode": "mean", "embedding_dimension": 64}, 1),
        ({"pooling_mode": "lasttoken"}, 3),
        ({"pooling_mode": ["cls"]}, 2),
    ],
)
def test_pooling(bert, run, config, value):
    with open_gguf(run(bert(pooling=config))) as file:
        assert file.metadata["bert.pooling_type"] == value


def test_without_side_files_pooling_is_not_stated(bert, run):
    with open_gguf(run(bert())) as file:
        assert "bert.pooling_type" not in file.metadata


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"pooling_mode_max_tokens": True}, "pooling_mode_max_tokens"),
        ({"pooling_mode_weightedmean_tokens": True}, "pooling_mode_weightedmean_tokens"),
        (
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            "pooling_mode_mean_tokens, pooling_mode_cls",
        ),
        ({"pooling_mode": "max"}, "pooling_mode = 'max'"),
        ({"pooling_mode": ["cls", "mean"]}, "['cls', 'mean']"),
        ({}, "pooling_mode = None"),
        ({"pooling_mode": "mean", "include_prompt": False}, "include_prompt is False"),
        ({"pooling_mode": "mean", "attention": 1}, "attention = 1"),
        ({"pooling_mode_mean_tokens": 1}, "pooling_mode_mean_tokens is 1"),
    ],
)
def test_pooling_that_is_refused(config, told):
    with pytest.raises(ConfigError) as error:
        read_pooling([{"type": POOL, "path": "1_Pooling", "config": config}])
    assert told in error.value.message
    assert "1_Pooling/config.json" in error.value.message


@pytest.mark.parametrize("kind", ["Dense", "CNN", "SpladePooling", "WeightedLayerPooling"])
def test_modules_that_would_be_dropped_are_refused(bert, variants, run, kind):
    modules = [
        *variants.MODULES,
        {"idx": 3, "name": "3", "path": "3_X", "type": f"sentence_transformers.models.{kind}"},
    ]
    with pytest.raises(ConfigError, match=rf"modules\.json has a module sentence_transformers\.models\.{kind}"):
        run(bert(pooling={"pooling_mode": "mean"}, modules=modules))


def test_two_or_no_configurations_of_pooling_are_refused():
    mean = {"type": POOL, "path": "1_Pooling", "config": {"pooling_mode": "mean"}}
    with pytest.raises(ConfigError, match="two Pooling modules"):
        read_pooling([mean, mean])
    with pytest.raises(ConfigError, match=r"1_Pooling/config\.json is missing"):
        read_pooling([{**mean, "config": None}])


def test_metadata_that_cannot_be_run_is_refused(bert, run):
    with open_gguf(run(bert(pooling={"pooling_mode": "cls"}))) as file:
        metadata = {key: file.metadata[key] for key in file.metadata}
    assert BertHParams.from_metadata(metadata).pooling == 2
    for key, value in (
        ("bert.attention.causal", True),
        ("bert.pooling_type", 9),
        ("tokenizer.ggml.token_type_count", 0),
        ("general.architecture", "nomic-bert-moe"),
        ("bert.attention.head_count", 5),
    ):
        with pytest.raises(LoadError):
            BertHParams.from_metadata({**metadata, key: value})


def test_names_of_vocabularies(bert, run):
    """30,522 tokens are those of bert-base-uncased, 21,128 those of bert-base-chinese, for the converter too."""
    assert [(pre.name, pre.n_tokens) for pre in PRE_TOKENIZERS] == [
        ("jina-v2-en", 30522),
        ("bert-bge-large", 21128),
        ("bert-bge", 0),
    ]
    for size, name in ((30522, "jina-v2-en"), (21128, "bert-bge-large"), (120, "bert-bge")):
        folder = bert(vocab_size=size, hidden_size=8, intermediate_size=8, num_hidden_layers=1)
        with open_gguf(run(folder, f"{size}.gguf", "f16")) as file:
            assert file.metadata["tokenizer.ggml.pre"] == name


def test_a_folder_outside_of_the_checkpoint_is_refused(bert, variants, run):
    folder = bert(pooling={"pooling_mode": "mean"})
    for path in ("../1_Pooling", "/tmp", "a\\..\\b"):
        modules = [{**module, "path": path} for module in variants.MODULES]
        (folder / "modules.json").write_text(json.dumps(modules))
        with pytest.raises(ConfigError, match="expected a folder of the checkpoint"):
            run(folder)
