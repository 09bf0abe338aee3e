"""The family is recognised, and refused in words that say what to do."""

import pytest

from hf2q.errors import ConfigError, LoadError
from hf2q.plugins import Plugins
from hf2q.types import resolve


@pytest.mark.parametrize(
    "hf_architecture", ["Gemma4ForConditionalGeneration", "Gemma4ForCausalLM", "Gemma4UnifiedForConditionalGeneration"]
)
def test_checkpoints_are_recognised_and_refused(hf_architecture):
    entry = Plugins.load().arch_for(hf_architecture)
    assert entry.arch == "gemma4"
    with pytest.raises(ConfigError, match="cannot convert") as refusal:
        resolve(entry.hparams).from_config({}, [], mtp=True)
    assert "upgrade" in refusal.value.hint


def test_files_are_recognised_and_refused():
    with pytest.raises(LoadError, match="cannot run"):
        resolve(Plugins.load().arch("gemma4").hparams).from_metadata({})
