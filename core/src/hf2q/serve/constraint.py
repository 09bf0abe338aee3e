"""`Constraint`: what holds one generation to a form. The engine asks it before each token and tells it each token.

Implementations live above (`hf2q.serve.grammar`); the engine and the sampler know only this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Constraint(Protocol):
    """Of one generation, and used up by it. Not thread-safe; any thread may call it next."""

    def allowed(self) -> NDArray[np.uint32] | None:
        """The tokens that may come next: bit t % 32 of word t // 32 for token t, (ceil(V / 32),); None: all of them.

        Tokens that end a generation are allowed only where the form is complete. The array may be used again by the
        next call.
        """
        ...

    def accept(self, token: int) -> None:
        """Take note of the token that was chosen. Errors: Hf2qError for one that was not allowed."""
        ...

    @property
    def complete(self) -> bool:
        """Whether nothing can follow any more: the generation ends here, as if the model had ended it."""
        ...
