"""Which tokens end a generation: those a GGUF file names, and those known by their text.

Source: llama.cpp src/llama-vocab.cpp, `llama_vocab::impl::load`, "maintain a list of tokens that cause
end-of-generation". Where llama.cpp goes by the text alone, a token of type NORMAL does not count here: it is a piece of
ordinary text (``</s>`` in a vocabulary learnt from HTML), and a converter marks tokens that are more than that.
"""

from __future__ import annotations

from collections.abc import Mapping

_NAMES = frozenset(
    [
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "[e~[",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    ]
)

# fill-in-the-middle: padding, repository name and file separator end what one completion may contain
_FIM_NAMES = frozenset(
    [
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",
        "[PAD]",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
        "<|file_sep|>",
    ]
)

KEYS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
"""Roles whose ``tokenizer.ggml.ROLE_token_id`` ends a generation."""


def ending_ids(marked: Mapping[str, int], stated: frozenset[int]) -> frozenset[int]:
    """Ids that end a generation.

    marked  ids by text, of the tokens that are not ordinary text (types CONTROL, USER_DEFINED, UNKNOWN)
    stated  ids that the file's metadata gives for the roles of `KEYS`
    """
    found = {text for text in marked if text in _NAMES}
    if "<|end|>" in found and (found >= {"<|return|>", "<|call|>"} or _solar(found)):
        found.discard("<|end|>")
    if "<|tool_response>" in found or "<|plamo:eos|>" in marked:
        found.discard("</s>")
    found |= {text for text in marked if text in _FIM_NAMES}
    return stated | {marked[text] for text in found}


def _solar(found: set[str]) -> bool:
    return "<|flush|>" in found and bool(found & {"<|call|>", "<|calls|>"})
