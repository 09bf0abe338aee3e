"""`Guided`: the `Constraint` over one compiled grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hf2q.errors import Hf2qError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Guided:
    """Follows one generation through a grammar; see `hf2q.serve.constraint.Constraint`.

    Parameters: `matcher` an `llguidance.LLMatcher` at its beginning, used by nobody else; `n_vocab` its tokens.
    """

    def __init__(self, matcher: Any, n_vocab: int) -> None:
        self._matcher = matcher
        self._mask: NDArray[np.uint32] = np.zeros((n_vocab + 31) // 32, np.uint32)

    def allowed(self) -> NDArray[np.uint32]:
        """The mask of the next token. Errors: Hf2qError when working it out exceeds the limits."""
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        self._check()
        return self._mask

    def accept(self, token: int) -> None:
        """Take note of a token. Errors: Hf2qError for one that was not allowed."""
        if not self._matcher.consume_token(token):
            self._check()
            raise Hf2qError(f"token {token} was chosen, which the form of the answer does not allow")

    @property
    def complete(self) -> bool:
        """Whether only the end can follow."""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            why = " ".join(self._matcher.get_error().split())[:300]
            raise Hf2qError(
                f"the answer cannot be held to its form any further: {why}",
                hint="a simpler schema or grammar may work: fewer alternatives, shorter patterns",
            )
