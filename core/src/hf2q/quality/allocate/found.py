"""What a search of types comes to."""

from __future__ import annotations

from hf2q.quality.allocate.types_file import pattern_for
from hf2q.types import Record, Shape


class Tried(Record, frozen=True, kw_only=True):
    """A tensor in one type: bytes, and the share that is lost."""

    qtype: str
    nbytes: int
    loss: float


class Chosen(Record, frozen=True, kw_only=True):
    """One tensor of the output. `tried` is empty where there was no choice; `loss` counts `weight` times."""

    name: str
    shape: Shape
    qtype: str
    nbytes: int
    loss: float = 0.0
    weight: float = 1.0
    tried: tuple[Tried, ...] = ()


class Rival(Record, frozen=True, kw_only=True):
    """A fixed mix that keeps to the budget (`hf2q.quality.allocate.mixes`).

    loss  as `Found.loss`;  divergence  over the text in nats for each token, None when it was not measured
    """

    name: str
    nbytes: int
    loss: float
    divergence: float | None = None


class Found(Record, frozen=True, kw_only=True):
    """What a search came to.

    asked    as it was asked for;  recipe  whose name and file type the output has
    tensors  in file order;  budget  bytes that all of them might take;  nbytes  that they take
    loss     the sum over tensors;  bound  what no choice within the budget can be below;  exact  nor below `loss`
    name     the usual name of the output, without its ending
    rivals   fixed mixes that keep to the budget, the best first
    divergence, winner  over the text, None and "" without one: of the choice, and which of those compared it is
    """

    asked: str
    recipe: str
    tensors: tuple[Chosen, ...]
    budget: int
    nbytes: int
    parameters: int
    loss: float
    bound: float
    exact: bool
    name: str
    rivals: tuple[Rival, ...] = ()
    divergence: float | None = None
    winner: str = ""

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The choice as `PolicyOptions.tensor_types`."""
        return tuple((pattern_for(one.name), one.qtype) for one in self.tensors if one.tried)
