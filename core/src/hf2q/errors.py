"""The exceptions that hf2q raises on purpose, and the exit code of each class.

::

    Hf2qError                     anything hf2q refuses; carries `hint`, the next thing to do
    ├── PluginError               the plugin system
    │   ├── PluginLoadError       a plugin could not be found, imported or registered
    │   ├── DuplicateNameError    two providers of one name
    │   └── ContractError         a plugin yielded something its hook does not allow
    ├── UnknownNameError          no plugin provides the named arch, codec, recipe, writer or backend
    ├── UsageError                options that contradict each other or cannot be honoured
    ├── SourceError               what is to be converted is not usable
    │   ├── MissingFileError      a file that must be there is not
    │   ├── ConfigError           a config or tokenizer file says something not understood
    │   ├── FormatError           a file breaks its own format (GGUF, safetensors, JSON)
    │   ├── TensorMismatchError   tensors missing, left over or of the wrong shape
    │   └── HubError              a hub cannot be reached, or gives something else than it announced
    │       └── AccessError       a hub does not let this user read a repository
    ├── EncodeError               values that a codec cannot encode
    ├── WriteError                the output could not be written
    ├── LoadError                 a model file cannot be run
    ├── QualityError              a measurement that cannot be made
    ├── ThresholdError            a measurement beyond what is allowed; exit code 2
    ├── AnswerError               a model's answer is not what was required of it
    └── RequestError              a generation or HTTP request that is refused
        ├── ContextLengthError    the request does not fit the context
        └── OverloadedError       no capacity now; trying later may work

This module imports nothing of hf2q. A message names the thing, the place, what was found and what was expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Hf2qError(Exception):
    """Root of the tree.

    Parameters: `message` says what is wrong and where; `hint` says what to do about it.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class PluginError(Hf2qError):
    """The plugin system could not do what was asked."""


class PluginLoadError(PluginError):
    """A plugin could not be found, imported or registered."""


class DuplicateNameError(PluginError):
    """Two distributions provide the same name."""


class ContractError(PluginError):
    """A plugin yielded something that its hook does not allow."""


class UnknownNameError(Hf2qError):
    """No loaded plugin provides the named thing."""

    exit_code = 3


class UsageError(Hf2qError):
    """Options that contradict each other or that cannot be honoured."""

    exit_code = 3


class SourceError(Hf2qError):
    """What is to be read is not usable."""

    exit_code = 3


class MissingFileError(SourceError):
    """A file that must be there is not."""


class ConfigError(SourceError):
    """A configuration or tokenizer file says something that is not understood."""


class FormatError(SourceError):
    """A file breaks its own format."""


class TensorMismatchError(SourceError):
    """Tensors are missing, left over, or of the wrong shape or type."""


class HubError(SourceError):
    """A hub cannot be reached, or gives something else than it announced."""

    exit_code = 1


class AccessError(HubError):
    """A hub does not let this user read a repository."""

    exit_code = 3


class EncodeError(Hf2qError):
    """Values that a codec cannot encode."""


class WriteError(Hf2qError):
    """The output could not be written; nothing carries the final name."""


class LoadError(Hf2qError):
    """A model file is well formed but cannot be run."""


class QualityError(Hf2qError):
    """A measurement of quality that cannot be made: numbers that are not finite, a text that is too short."""


class ThresholdError(Hf2qError):
    """A measurement was made, and is beyond what is allowed."""

    exit_code = 2


class AnswerError(Hf2qError):
    """A model's answer is not what was required of it; `code` says what it lacks."""

    def __init__(self, message: str, *, hint: str | None = None, code: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class RequestError(Hf2qError):
    """A request that is refused; `param` names the offending field in OpenAI's terms."""

    exit_code = 3

    def __init__(
        self, message: str, *, hint: str | None = None, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.param = param
        self.code = code


class ContextLengthError(RequestError):
    """Prompt and answer do not fit the context."""


class OverloadedError(RequestError):
    """No capacity now; trying again later may work."""

    exit_code = 1


@contextmanager
def about(place: object, kind: type[Hf2qError] = Hf2qError) -> Iterator[None]:
    """Errors of a `kind` raised inside begin with `place`, the file or folder they are about, unless they name it."""
    try:
        yield
    except kind as error:
        if str(place) not in error.message:
            error.message = f"{place}: {error.message}"
        raise


def listing(names: Iterable[str], limit: int = 10) -> str:
    """Sorted `names` for a message, cut after `limit` with the number left out."""
    ordered = sorted(names)
    shown = ", ".join(ordered[:limit])
    return shown if len(ordered) <= limit else f"{shown} and {len(ordered) - limit} more"
