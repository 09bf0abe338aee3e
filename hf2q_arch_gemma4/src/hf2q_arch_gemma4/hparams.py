"""`Gemma4HParams`: the sizes of one Gemma 4 text model, from ``config.json`` or from GGUF metadata.

Source of the keys and their order: llama.cpp, conversion/base.py `TextModel.set_gguf_parameters` and
conversion/gemma.py `Gemma3Model`, `Gemma4Model`, `set_gguf_parameters`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hf2q.errors import ConfigError, LoadError
from hf2q.types import MetadataField, Record, TensorInfo, ValueType
from hf2q_arch_gemma4.checkpoint import read_config
from hf2q_arch_gemma4.families import ARCH, FULL, FULL_SHARED, SLIDING, SLIDING_SHARED
from hf2q_arch_gemma4.keys import read_metadata


class Gemma4HParams(Record, frozen=True, kw_only=True):
    """Sizes of one model. ``_full`` and ``_swa`` tell blocks of full attention from those of a sliding window.

    n_layer        blocks in the file; the last `n_shared_kv` attend to keys and values of earlier blocks
    sliding        for each block: whether its attention is a sliding window of `n_window` tokens
    n_ff           width of the dense FFN, which `double_wide` doubles in the blocks that share keys and values
    n_ple          width of the per-layer inputs, 0 for a model without
    softcap        bound c of the logits, c·tanh(logits / c); None for unbounded ones
    rope_base_*    base of the rotation; full attention rotates `rotated_pairs` of its head's pairs (known when
                   converting; a file says so by the tensor rope_freqs), a sliding window all of them
    n_expert …     experts beside the dense FFN, 0 without; `n_ff_expert` is the width of one
    causal         whether a token sees earlier ones only
    suppressed     ids of tokens that are never generated; converting only
    """

    n_layer: int
    n_vocab: int
    n_ctx: int
    n_embd: int
    n_ff: int
    double_wide: bool
    n_head: int
    n_head_kv_full: int
    n_head_kv_swa: int
    head_dim_full: int
    head_dim_swa: int
    sliding: tuple[bool, ...]
    n_window: int
    n_shared_kv: int
    n_ple: int
    rope_base_full: float
    rope_base_swa: float
    rms_eps: float
    softcap: float | None = None
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_expert: int = 0
    causal: bool = True
    rotated_pairs: int | None = None
    suppressed: tuple[int, ...] | None = None

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], tensors: Iterable[TensorInfo], *, mtp: bool = True
    ) -> Gemma4HParams:
        """From the parsed ``config.json`` and the checkpoint's tensor list. `mtp` means nothing: there are no blocks.

        Errors: ConfigError for what the family does not know; TensorMismatchError when config and tensors disagree
        about a separate output head, or about values that are projected.
        """
        hparams = cls(**read_config(config, list(tensors)))
        problem = _disagreement(hparams)
        if problem:
            raise ConfigError(f"config.json: {problem}")
        return hparams

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Gemma4HParams:
        """From GGUF metadata. The vocabulary's size is the length of the token list.

        Errors: LoadError naming the key that is missing, of the wrong kind, or contradictory.
        """
        hparams = cls(**read_metadata(metadata))
        problem = _disagreement(hparams)
        if problem:
            raise LoadError(f"GGUF metadata of {ARCH}: {problem}")
        return hparams

    @property
    def images_both_ways(self) -> bool:
        """Whether the tokens of an image see each other where attention is sliding; see `graph_images`."""
        return not self.n_ple

    @property
    def n_own_kv(self) -> int:
        """Blocks with keys and values of their own: the first ones."""
        return self.n_layer - self.n_shared_kv

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        """``sliding_attention`` or ``full_attention``; with ``_shared_kv`` for blocks that share keys and values."""
        own = tuple(SLIDING if swa else FULL for swa in self.sliding[: self.n_own_kv])
        return own + tuple(SLIDING_SHARED if swa else FULL_SHARED for swa in self.sliding[self.n_own_kv :])

    @property
    def symbols(self) -> Mapping[str, int]:
        """Sizes by the symbols of the catalog's shapes."""
        return {
            "n_vocab": self.n_vocab,
            "n_embd": self.n_embd,
            "n_ff": self.n_ff,
            "n_ff_shared": self.n_ff * (2 if self.double_wide else 1),
            "n_q_full": self.n_head * self.head_dim_full,
            "n_kv_full": self.n_head_kv_full * self.head_dim_full,
            "head_dim_full": self.head_dim_full,
            "n_pairs": self.head_dim_full // 2,
            "n_q_swa": self.n_head * self.head_dim_swa,
            "n_kv_swa": self.n_head_kv_swa * self.head_dim_swa,
            "head_dim_swa": self.head_dim_swa,
            "n_ple": self.n_ple,
            "n_ple_all": self.n_ple * self.n_layer,
            "n_expert": self.n_expert,
            "n_ff_expert": self.n_ff_expert,
            "n_ff_expert_2": 2 * self.n_ff_expert,
        }

    def metadata(self) -> tuple[MetadataField, ...]:
        """The arch's GGUF keys in the order of llama.cpp's converter, ``general.file_type`` among them as 0."""
        u32, f32, array = MetadataField.u32, MetadataField.f32, MetadataField.array
        width, heads = f"{ARCH}.feed_forward_length", f"{ARCH}.attention.head_count_kv"
        widths = [self.n_ff * (2 if i >= self.n_own_kv else 1) for i in range(self.n_layer)]
        each = [self.n_head_kv_swa if swa else self.n_head_kv_full for swa in self.sliding]
        listed = self.n_head_kv_swa != self.n_head_kv_full
        fields = [
            u32(f"{ARCH}.block_count", self.n_layer),
            u32(f"{ARCH}.context_length", self.n_ctx),
            u32(f"{ARCH}.embedding_length", self.n_embd),
            array(width, ValueType.INT32, widths) if self.double_wide else u32(width, self.n_ff),
            u32(f"{ARCH}.attention.head_count", self.n_head),
            array(heads, ValueType.INT32, each) if listed else u32(heads, self.n_head_kv_swa),
            *([] if self.causal else [MetadataField.boolean(f"{ARCH}.attention.causal", False)]),
            f32(f"{ARCH}.rope.freq_base", self.rope_base_full),
            f32(f"{ARCH}.rope.freq_base_swa", self.rope_base_swa),
            f32(f"{ARCH}.attention.layer_norm_rms_epsilon", self.rms_eps),
        ]
        if self.n_expert:
            fields += [
                u32(f"{ARCH}.expert_count", self.n_expert),
                u32(f"{ARCH}.expert_used_count", self.n_expert_used),
            ]
        fields += [
            u32(f"{ARCH}.attention.key_length", self.head_dim_full),
            u32(f"{ARCH}.attention.value_length", self.head_dim_full),
            u32("general.file_type", 0),
        ]
        if self.softcap is not None:
            fields.append(f32(f"{ARCH}.final_logit_softcapping", self.softcap))
        fields += [
            u32(f"{ARCH}.attention.sliding_window", self.n_window),
            u32(f"{ARCH}.attention.shared_kv_layers", self.n_shared_kv),
            u32(f"{ARCH}.embedding_length_per_layer_input", self.n_ple),
            array(f"{ARCH}.attention.sliding_window_pattern", ValueType.BOOL, self.sliding),
            u32(f"{ARCH}.attention.key_length_swa", self.head_dim_swa),
            u32(f"{ARCH}.attention.value_length_swa", self.head_dim_swa),
        ]
        if self.n_expert:
            fields.append(u32(f"{ARCH}.expert_feed_forward_length", self.n_ff_expert))
        fields += [
            u32(f"{ARCH}.rope.dimension_count", self.head_dim_full),
            u32(f"{ARCH}.rope.dimension_count_swa", self.head_dim_swa),
        ]
        if self.suppressed is not None:
            fields.append(array("tokenizer.ggml.suppress_tokens", ValueType.INT32, self.suppressed))
        return tuple(fields)


def _disagreement(h: Gemma4HParams) -> str | None:
    """What is impossible or unsupported about these sizes together, or None."""
    for part, heads, size in (
        ("full", h.n_head_kv_full, h.head_dim_full),
        ("sliding", h.n_head_kv_swa, h.head_dim_swa),
    ):
        if h.n_head % heads:
            return f"{h.n_head} attention heads are no multiple of {heads} key/value heads ({part} attention)"
        if size % 2:
            return f"heads of {size} values ({part} attention), expected an even number"
    if len(h.sliding) != h.n_layer:
        return f"kinds of {len(h.sliding)} blocks given for {h.n_layer}"
    if h.rotated_pairs is not None and not 0 <= h.rotated_pairs <= h.head_dim_full // 2:
        return f"{h.rotated_pairs} rotated pairs of a head of {h.head_dim_full}"
    if h.n_expert_used > h.n_expert:
        return f"{h.n_expert_used} experts used of {h.n_expert}"
    if h.n_shared_kv >= h.n_layer:
        return f"{h.n_shared_kv} of {h.n_layer} blocks share keys and values, which leaves none that has any"
    own = set(h.sliding[: h.n_own_kv])
    for swa in h.sliding[h.n_own_kv :]:
        if swa not in own:
            kind = SLIDING if swa else FULL
            return f"a {kind} block shares keys and values, but no earlier block of that kind has any"
    return None
