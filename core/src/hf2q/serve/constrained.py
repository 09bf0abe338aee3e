"""A `Constraint` as a generation uses it: whatever it does wrong is an error of that generation alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from hf2q.errors import Hf2qError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hf2q.serve.constraint import Constraint
    from hf2q.serve.masks import Later, MaskPool
    from hf2q.serve.sampling import Bools

T = TypeVar("T")


class Constrained:
    """The constraint of one generation over a vocabulary of `n_vocab` tokens.

    Errors of all: Hf2qError, also for what the constraint raises that is none.
    """

    def __init__(self, constraint: Constraint, n_vocab: int) -> None:
        self._constraint, self._n_vocab = constraint, n_vocab
        self.later: Later | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing can follow."""
        return bool(_asked("complete", lambda: self._constraint.complete))

    def compute(self, pool: MaskPool) -> None:
        """Have the next mask computed by another thread; `later` tells when `allowed` need not wait."""
        self.later = pool.submit(self._allowed)

    def allowed(self) -> Bools | None:
        """Which tokens may come next, (V,); None: all. Errors: Hf2qError for a mask of another size."""
        later, self.later = self.later, None
        found: Bools | None = self._allowed() if later is None else later.result()
        return found

    def _allowed(self) -> Bools | None:
        import numpy as np

        bits = _asked("allowed", lambda: self._constraint.allowed())
        if bits is None:
            return None
        words = -(-self._n_vocab // 32)
        if getattr(bits, "shape", None) != (words,) or bits.dtype != np.uint32:
            found = f"{getattr(bits, 'dtype', type(bits).__name__)} {getattr(bits, 'shape', '')}"
            raise Hf2qError(f"the constraint's mask is {found}, expected uint32 ({words},)")
        octets = bits.astype("<u4", copy=False).view(np.uint8)
        return np.unpackbits(octets, count=self._n_vocab, bitorder="little").view(np.bool_)

    def accept(self, token: int) -> None:
        """Tell it the token that was chosen."""
        _asked("accept", lambda: self._constraint.accept(token))


def _asked(what: str, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except Hf2qError:
        raise
    except Exception as error:
        raise Hf2qError(f"the constraint failed in {what}: {type(error).__name__}: {error}") from error
