"""The policy against llama-quantize: the same type for every tensor of every recorded file; see data/PROVENANCE.md."""

import json

import pytest
from kquant_policy_models import MODELS, RECORDED, before, runs, shapes

from hf2q.errors import UsageError
from hf2q.plugins import Plugins
from hf2q.policy import parse_qtype, parse_tensor_type
from hf2q.types import ModelFacts, PolicyOptions, TensorChoiceInput
from hf2q_quant_kquant import RECIPES

PLUGINS = Plugins.load()
DATA = json.loads(RECORDED.read_text())
LETTERS = {letter: qtype for qtype, letter in DATA["letters"].items()}


def parsed(words):
    """PolicyOptions from the words that llama-quantize got."""
    given, patterns, words = {}, [], iter(words)
    for word in words:
        name = word.removeprefix("--").replace("-", "_")
        if word == "--imatrix":
            given["has_imatrix"] = True
        elif word == "--tensor-type":
            patterns.append(parse_tensor_type(next(words)))
        elif word in ("--pure", "--leave-output-tensor"):
            given[name] = True
        else:
            given[name] = parse_qtype(next(words), word)
    return PolicyOptions(**given, tensor_types=tuple(patterns))


def choose(name, recipe, options):
    model = MODELS[name]
    tensors = [TensorChoiceInput(name=n, shape=s, qtype=before(n, s)) for n, s in shapes(model).items()]
    facts = ModelFacts(
        arch=model["arch"],
        n_layer=model["L"],
        n_head=model["heads"],
        n_head_kv=model["keys"],
        n_expert=model["experts"],
    )
    return PLUGINS.recipe(recipe).choose(tensors, facts, parsed(options))


def test_everything_that_should_be_recorded_is():
    wanted = [(name, recipe, list(options)) for name, recipe, options in runs([row[0] for row in RECIPES])]
    assert [(run["model"], run["recipe"], run["options"]) for run in DATA["runs"]] == wanted


@pytest.mark.parametrize("name", MODELS)
def test_types_are_those_of_llama_quantize(name):
    for run in (run for run in DATA["runs"] if run["model"] == name):
        if run["chosen"] is None:  # llama-quantize refuses or aborts
            with pytest.raises(UsageError):
                choose(name, run["recipe"], run["options"])
            continue
        chosen = choose(name, run["recipe"], run["options"])
        wrong = {
            tensor: (choice.qtype, LETTERS[letter], choice.reason)
            for tensor, choice, letter in zip(shapes(MODELS[name]), chosen, run["chosen"], strict=True)
            if choice.qtype != LETTERS[letter]
        }
        assert not wrong, (run["recipe"], run["options"])
