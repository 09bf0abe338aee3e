"""`ArchContract`, `GraphContract` and `TokenizerContract`: an honest family passes, faults put in by hand are caught.

The family is the one that `hf2q plugins new --kind arch` writes; a fault is an edit of one of its files.
"""

import importlib
import sys
import tomllib

import numpy as np
import pytest

from hf2q.scaffold import create
from hf2q.testing.distributions import write_distribution
from hf2q.testing.verdicts import failures

PACKAGE = "hf2q_arch_fake"


@pytest.fixture
def family(tmp_path, monkeypatch):
    """A function that writes and installs the family with edits (file, old, new), and gives its suites' module."""
    folder = tmp_path / "plugin"
    before = set(sys.modules)

    def make(*edits):
        create("fake", "arch", folder)
        for name, old, new in edits:
            path = folder / "src" / PACKAGE / name
            text = path.read_text(encoding="utf-8")
            assert old in text, f"{name} has no {old!r}"
            path.write_text(text.replace(old, new), encoding="utf-8")
        project = tomllib.loads((folder / "pyproject.toml").read_text())
        write_distribution(tmp_path / "site", "hf2q-arch-fake", project["project"]["entry-points"]["hf2q"], {})
        monkeypatch.syspath_prepend(tmp_path / "site")
        monkeypatch.syspath_prepend(folder / "src")
        monkeypatch.setenv("PYTHONPATH", str(folder / "src"))  # for the check that imports it elsewhere
        return importlib.import_module(f"{PACKAGE}.hf2q_contract")

    yield make
    for name in set(sys.modules) - before:
        if name.startswith(PACKAGE):
            del sys.modules[name]


def test_an_honest_family_passes(family, tmp_path):
    suites = family()
    for suite in (suites.TestArch, suites.TestGraph, suites.TestTokenizer):
        assert failures(suite, tmp_path / suite.__name__) == {}


SOURCE = 'source = "llama.cpp, gguf-py/gguf/tensor_mapping.py, TensorNameMap"'
UP = '("blk.{i}.ffn_up.weight", "layers.{i}.mlp.up_proj.weight", ("n_ff", "n_embd")),'
ARCH_FAULTS = {
    "no source": ("catalog.py", SOURCE, 'source = ""', "sources_are_cited"),
    "no source of the pre-tokenizer": (
        "__init__.py",
        'source="tokenizers, pre',
        'source="" and "',
        "the_entry_is_complete",
    ),
    "a GGUF name twice": ("catalog.py", UP, f"{UP}\n    {UP}", "every_gguf_name_is_made_once"),
    "a checkpoint name twice": ("catalog.py", "mlp.up_proj", "mlp.gate_proj", "every_checkpoint_name_is_claimed_once"),
    "a placeholder left": ("catalog.py", '"blk.{i}.ffn_up', '"blk.{b}.ffn_up', "every_gguf_name_is_made_once"),
    "an unknown symbol": ("catalog.py", UP, UP.replace("n_ff", "n_fff"), "every_gguf_name_is_made_once"),
    "a transform that is not there": (
        "catalog.py",
        "optional=tied",
        f'optional=tied, transform="{PACKAGE}.graph:plus_one"',
        "transforms_can_be_imported",
    ),
    "an ignore rule that hides a tensor": (
        "catalog.py",
        'strip=("model.",)',
        'strip=("model.",), ignore=((r".*up_proj", "why"),)',
        "ignore_rules_give_reasons_and_hide_nothing",
    ),
    "an ignore rule without a reason": (
        "catalog.py",
        'strip=("model.",)',
        'strip=("model.",), ignore=((r"nothing", ""),)',
        "ignore_rules_give_reasons_and_hide_nothing",
    ),
    "everything unknown is ignored": (
        "catalog.py",
        'strip=("model.",)',
        'strip=("model.",), ignore=((r".*surprise", "why"),)',
        "a_left_over_tensor_is_named",
    ),
    "numpy at import": (
        "__init__.py",
        "HF2Q_PLUGIN_API = 1",
        "import numpy\nHF2Q_PLUGIN_API = 1",
        "importing_it_is_light",
    ),
    "mlx at import": ("catalog.py", "TENSORS = (", "import mlx.core\nTENSORS = (", "importing_it_is_light"),
    "unknown keys pass": ("hparams.py", "        c.done()\n", "", "an_unknown_config_key_is_refused"),
    "unknown keys of a section pass": ("hparams.py", "        rope.done()\n", "", "an_unknown_config_key_is_refused"),
    "a key is read and not used": (
        "hparams.py",
        'rms_eps=c.number("rms_norm_eps")',
        'rms_eps=c.number("rms_norm_eps") * 0 + 1e-5',
        "every_config_key_is_read_or_harmless",
    ),
    "a flag is read and not used": (
        "hparams.py",
        '("mlp_bias", False)):',
        '):\n            c.raw("mlp_bias")',
        "every_config_key_is_read_or_harmless",
    ),
    "a key of a section is not used": (
        "hparams.py",
        'rope_base=rope.number("rope_theta", c.number("rope_theta", 10000.0))',
        'rope_base=c.number("rope_theta", rope.number("rope_theta") * 0 + 10000.0)',
        "every_config_key_is_read_or_harmless",
    ),
    "a size read from another key": (
        "hparams.py",
        'metadata.get(f"{ARCH}.{key}")',
        'metadata.get(f"{ARCH}.{key}".replace("feed_forward", "embedding"))',
        "a_converted_file_opens_again",
    ),
    "a KeyError for a missing key": (
        "hparams.py",
        'metadata.get(f"{ARCH}.{key}")',
        'metadata[f"{ARCH}.{key}"]',
        "metadata_that_is_missing_or_absurd_is_refused",
    ),
    "absurd metadata is computed with": (
        "hparams.py",
        "if type(values[field]) is not kind or values[field] <= 0:",
        "if values[field] is None:",
        "metadata_that_is_missing_or_absurd_is_refused",
    ),
    "an error that does not name the key": (
        "hparams.py",
        'raise LoadError(f"GGUF key {ARCH}.{key} is {values[field]!r}, expected',
        'raise LoadError(f"a GGUF key is wrong, expected',
        "metadata_that_is_missing_or_absurd_is_refused",
    ),
    "a foreign key": ("hparams.py", 'f"{ARCH}.{key}", getattr', 'f"llama.{key}", getattr', "metadata_is_well_formed"),
    "no file type": (
        "hparams.py",
        'return (*fields, MetadataField.u32("general.file_type", 0))',
        "return tuple(fields)",
        "metadata_is_well_formed",
    ),
    "no pre-tokenizer": ("__init__.py", "pre_tokenizers=(PRE,)", "pre_tokenizers=()", "the_entry_is_complete"),
    "no catalog": ("__init__.py", "    yield CATALOG", "    yield from ()", "the_entry_is_complete"),
}


@pytest.mark.parametrize("fault", ARCH_FAULTS)
def test_a_fault_of_the_arch_is_caught(family, tmp_path, fault):
    name, old, new, check = ARCH_FAULTS[fault]
    assert failures(family((name, old, new)).TestArch, tmp_path, only=[f"test_{check}"])


GRAPH_FAULTS = {
    "positions begin at 0 in every call": (
        "places = positions(caches, tokens)",
        "places = positions(caches, tokens) - positions(caches, 1)",
        "token_by_token_equals_one_prefill",
    ),
    "positions are one too far": (
        "places = positions(caches, tokens)",
        "places = positions(caches, tokens) + (positions(caches, 1) > 0)",
        "chunked_prefill_equals_one_prefill",
    ),
    "the cache is not advanced": ("        advance(caches, tokens)\n", "", "token_by_token_equals_one_prefill"),
    "the cache is not used": (
        "*append(parts, k, v), h",
        "list(k.transpose(0, 2, 1, 3)), list(v.transpose(0, 2, 1, 3)), h",
        "token_by_token_equals_one_prefill",
    ),
    "keys without their positions are kept": (
        "append(parts, k, v)",
        "append(parts, v, v)",
        "every_tensor_matters",
    ),
    "one cache for all sequences": (
        "return Cache([KVCache(self.ops) for _ in self.blk])",
        'self.__dict__.setdefault("cache", Cache([KVCache(self.ops) for _ in self.blk])); return self.cache',
        "sequences_on_one_graph_do_not_meet",
    ),
    "rows are taken to be at one position": (
        "places = positions(caches, tokens)",
        "places = positions(caches, tokens) * 0 + positions(caches, tokens)[:1]",
        "rows_of_different_lengths_go_together",
    ),
    "the future is seen": (
        "advance(caches, tokens)",
        "advance(caches, tokens); x = x + x[:, -1:] * 0.01",
        "later_tokens_do_not_change_earlier_logits",
    ),
    "rows of a batch are mixed": (
        "advance(caches, tokens)",
        "advance(caches, tokens); x = x + x[:1] * 0.01",
        "rows_of_a_batch_are_independent",
    ),
    "only the last tokens are seen": (
        "*append(parts, k, v), h.n_rot**-0.5)",
        "*([x[:, -5:] for x in xs] for xs in append(parts, k, v)), h.n_rot**-0.5)",
        None,
    ),
    "a tensor for another": ('blk.{i}.ffn_up.weight"', 'blk.{i}.ffn_gate.weight"', "every_tensor_is_used"),
    "a tensor is loaded and not used": (
        "y = ops.rms_norm(x, self.ffn_norm, h.rms_eps)",
        "y = ops.rms_norm(x, None, h.rms_eps)",
        "every_tensor_matters",
    ),
    "a missing tensor is made up for": (
        'weights.array("output_norm.weight")',
        'weights.array("output_norm.weight") if "output_norm.weight" in weights else ops.zeros((64,))',
        "a_missing_tensor_is_named",
    ),
    "logits of the last position only": (
        "return self.ops.linear(hidden, self.output)",
        "return self.ops.linear(hidden[:, -1:], self.output)",
        "logits_have_the_right_form",
    ),
    "logits in another type": (
        "return self.ops.linear(hidden, self.output)",
        "return self.ops.linear(hidden, self.output).astype(np.float64)",
        "logits_have_the_right_form",
    ),
    # what only recorded logits show
    "no positions": (
        "places = positions(caches, tokens)",
        "places = positions(caches, tokens) * 0",
        "logits_equal_the_recorded_reference",
    ),
    "another epsilon": ("h.rms_eps", "(h.rms_eps / 10)", "logits_equal_the_recorded_reference"),
    "another scale": ("h.n_rot**-0.5", "h.n_rot**-0.51", "logits_equal_the_recorded_reference"),
    "another base": ("hparams.rope_base)", "hparams.rope_base * 1.1)", "logits_equal_the_recorded_reference"),
    "positions from 1": (
        "places = positions(caches, tokens)",
        "places = positions(caches, tokens) * 1.01",
        "logits_equal_the_recorded_reference",
    ),
    "another activation": (
        "(self.ffn_gate, self.ffn_up)",
        "(self.ffn_up, self.ffn_gate)",
        "logits_equal_the_recorded_reference",
    ),
    "rotation in pairs instead of halves": (
        "q = ops.rope(q.reshape(batch, tokens, h.n_head, h.n_rot), cos, sin)",
        "q = ops.rope(q.reshape(batch, tokens, h.n_head, h.n_rot)"
        "[..., [*range(0, 16, 2), *range(1, 16, 2)]], cos, sin)[..., [i // 2 + 8 * (i % 2) for i in range(16)]]",
        "logits_equal_the_recorded_reference",
    ),
    "heads share keys in turn": (
        "out = ops.attention(q, ",
        "out = ops.attention(q[:, :, [0, 4, 1, 5, 2, 6, 3, 7]], ",
        "logits_equal_the_recorded_reference",
    ),
}


@pytest.mark.parametrize("fault", GRAPH_FAULTS)
def test_a_fault_of_the_graph_is_caught(family, tmp_path, fault):
    old, new, check = GRAPH_FAULTS[fault]
    suite = family(("graph.py", old, new)).TestGraph
    if check is None:
        assert failures(suite, tmp_path)
    else:
        assert failures(suite, tmp_path, only=[f"test_{check}"])


def test_a_catalog_that_calls_everything_optional_is_caught(family, tmp_path):
    suite = family(("catalog.py", "optional=tied", "optional=True")).TestGraph
    assert failures(suite, tmp_path, only=["test_an_optional_tensor_can_be_left_out"])


def test_a_short_or_missing_reference_does_not_pass(family, tmp_path):
    suite = family().TestGraph

    class Bare(suite):
        reference = None

    class Short(suite):
        reference = tmp_path / "short.npz"

    np.savez(tmp_path / "short.npz", ids=np.zeros((1, 4), np.int32), logits=np.zeros((1, 4, 272), np.float32))
    assert "at least 16 tokens" in str(
        failures(Short, tmp_path / "a", only=["test_logits_equal_the_recorded_reference"])
    )
    model = Bare().build("reference", Bare().tensors(tmp_path))
    with pytest.raises(pytest.skip.Exception, match="not checked: no recorded logits"):
        Bare().test_logits_equal_the_recorded_reference(model)


def test_without_a_configuration_nothing_passes(family, tmp_path):
    suites = family()

    class Bare(suites.TestArch):
        config = None

    with pytest.raises(pytest.skip.Exception, match="not checked: no tiny configuration"):
        Bare().test_every_gguf_name_is_made_once()


TOKENIZER_FAULTS = {
    "two structures alike": (
        "pre_tokenizers=(PRE,)",
        'pre_tokenizers=(PRE, PreTokenizer(name="twin", split=PRE.split, source="x"))',
        "every_structure_is_recognised",
    ),
    "an expression that is none": ("split=(r\"'s|", "split=(r\"('s|", "every_structure_is_recognised"),
}


@pytest.mark.parametrize("fault", TOKENIZER_FAULTS)
def test_a_fault_of_the_tokenizer_is_caught(family, tmp_path, fault):
    old, new, check = TOKENIZER_FAULTS[fault]
    assert failures(family(("__init__.py", old, new)).TestTokenizer, tmp_path, only=[f"test_{check}"])
