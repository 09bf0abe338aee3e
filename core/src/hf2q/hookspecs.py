"""Every door into hf2q. This file is the contract with plugin authors and the reference page of the hooks.

    when plugins are loaded, once each
      hf2q_arch_entries        families: which checkpoints and GGUF archs, their hparams and tokenizers
      hf2q_tensor_catalogs     how checkpoint tensors become GGUF tensors
      hf2q_projectors          vision towers that become files of their own
      hf2q_quant_codecs        one storage type each: encode, decode, repack
      hf2q_recipes             file-level type policies (what --quant names)
      hf2q_writers             output formats
      hf2q_forward_graphs      forward passes
      hf2q_chat_formats        reasoning markers and turn ends
      hf2q_backends            what a graph computes with
      hf2q_cli_commands        extra commands

A plugin is a module named by an entry point of the group ``hf2q``. It states ``HF2Q_PLUGIN_API = 1`` and implements
any of the hooks with `hookimpl`. Each hook yields frozen, cheap records; whatever is heavy is a ``"module:attribute"``
string in them. Records of one kind need distinct names over all plugins: a name that two provide is refused, naming
both distributions, and neither wins. Nothing here runs a model: behaviour lives in what the records refer to.

The order in which plugins are loaded never decides anything. Since: 0.1 for all hooks, unless stated.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from hf2q.codec import QuantCodec
    from hf2q.types import (
        ArchEntry,
        BackendEntry,
        ChatFormat,
        CommandEntry,
        GraphEntry,
        ProjectorEntry,
        Recipe,
        TensorCatalog,
        WriterEntry,
    )

PLUGIN_API = 1
"""The version of this contract. A plugin that states another one is refused before it is registered."""

hookspec = pluggy.HookspecMarker("hf2q")
hookimpl = pluggy.HookimplMarker("hf2q")


@hookspec
def hf2q_arch_entries() -> Iterable[ArchEntry]:
    """Yield the families this plugin brings, one entry for each GGUF architecture.

    Called: once, when plugins are loaded; by convert, info, load and serve.
    Returns: entries with distinct `arch`; `hf_architectures` must not overlap with another entry's.
    Errors: `hparams.from_config` raises ConfigError for a key it neither reads nor knows to be harmless.
    Source: each number transcribed from elsewhere cites project, file and function where it stands.
    Example: docs/how-to/write-an-arch-plugin.md, and the plugin hf2q-example-arch.
    """
    raise NotImplementedError


@hookspec
def hf2q_tensor_catalogs() -> Iterable[TensorCatalog]:
    """Yield tensor catalogs, each named as the arch it serves.

    Called: once, when plugins are loaded.
    Returns: catalogs whose expansion names every GGUF tensor once and claims every checkpoint name once.
    Shapes: numpy order (rows first), in the symbols that the family's hparams define.
    Errors: TensorMismatchError at plan time for tensors left over, missing, or of another shape.
    """
    raise NotImplementedError


@hookspec
def hf2q_projectors() -> Iterable[ProjectorEntry]:
    """Yield multimodal projectors, which arch entries name: what ``--mmproj`` writes.

    Called: once, when plugins are loaded; by convert when a projector is asked for, and by load when one is given. An
        entry with a graph can be run, one without can only be converted.
    Returns: entries with distinct `name`, GGUF's ``clip.projector_type``. The catalog is yielded by
        `hf2q_tensor_catalogs` as any other.
    Errors: as for arch entries.
    """
    raise NotImplementedError


@hookspec
def hf2q_quant_codecs() -> Iterable[QuantCodec]:
    """Yield codecs, one for each storage type.

    Called: once, when plugins are loaded.
    Returns: codecs with distinct `name`, the ggml spelling in capitals (``Q4_K``).
    Shapes: the encoder gets float32 (rows, columns), C-contiguous, columns a multiple of `block_size`, all finite, and
        fills uint8 (rows, columns // block_size * type_size); the decoder goes the other way. Pure: any split of rows
        gives the same bytes, on every machine.
    Units: sizes in bytes; `importance` is a mean squared activation for each column, dimensionless.
    Errors: EncodeError for what the type cannot hold; never a silent zero.
    Source: `QuantCodec.source` says where the layout is defined.
    """
    raise NotImplementedError


@hookspec
def hf2q_recipes() -> Iterable[Recipe]:
    """Yield file-level recipes: the names that ``--quant`` takes.

    Called: once, when plugins are loaded.
    Returns: recipes with distinct names and aliases. A policy is pure and sees all tensors of the file in file order;
        it returns a choice for each with the rule that made it, which ``--dry-run`` prints.
    """
    raise NotImplementedError


@hookspec
def hf2q_writers() -> Iterable[WriterEntry]:
    """Yield output formats.

    Called: once, when plugins are loaded.
    Returns: entries whose class follows `hf2q.types.Writer`: nothing carries the final name before `close`.
    """
    raise NotImplementedError


@hookspec
def hf2q_forward_graphs() -> Iterable[GraphEntry]:
    """Yield forward graphs, one for each arch, written against `hf2q.backends.ops.Ops`.

    Called: once, when plugins are loaded; the graph's module is imported when a model of that arch is loaded.
    Shapes: token ids int32 (B, T); logits float32 (B, T, V), of an encoder (task ``embed``) vectors float32 (B, T, C).
    """
    raise NotImplementedError


@hookspec
def hf2q_chat_formats() -> Iterable[ChatFormat]:
    """Yield chat formats, which arch entries name: how a family marks reasoning and ends a turn.

    Called: once, when plugins are loaded; used by the server to split reasoning from content.
    """
    raise NotImplementedError


@hookspec
def hf2q_backends() -> Iterable[BackendEntry]:
    """Yield compute backends: implementations of the op vocabulary `hf2q.backends.ops.Ops`.

    Called: once, when plugins are loaded; `available` and `priority` are asked when a model is loaded.
    """
    raise NotImplementedError


@hookspec
def hf2q_cli_commands() -> Iterable[CommandEntry]:
    """Yield extra commands of the ``hf2q`` program.

    Called: once, when a command outside core's own is asked for, or commands are listed.
    Returns: entries whose names are not core's own commands.
    """
    raise NotImplementedError
