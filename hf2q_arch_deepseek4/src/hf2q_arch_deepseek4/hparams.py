"""What is known of one DeepSeek-V4 model: nothing yet, and therefore a refusal instead of a guess."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from hf2q.errors import ConfigError, LoadError
from hf2q.types import TensorInfo

HINT = "this family needs a later version: pip install --upgrade hf2q hf2q-arch-deepseek4"


class HParams:
    """Refuses both ways in."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], tensors: Iterable[TensorInfo], *, mtp: bool) -> NoReturn:
        """Errors: ConfigError, always."""
        raise ConfigError(
            "hf2q-arch-deepseek4 0.1 recognises DeepSeek-V4 checkpoints but cannot convert them", hint=HINT
        )

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> NoReturn:
        """Errors: LoadError, always."""
        raise LoadError("hf2q-arch-deepseek4 0.1 recognises DeepSeek-V4 files but cannot run them", hint=HINT)
