"""The matrix of eight conversions against a peer: which cells there are, what measurements mean, and the table.

Pure: `bench/peer_matrix.py` measures. A cell passes when each of our figures is at most the tolerance times the peer's.
What could not be measured (no model, no program) is neither a pass nor a failure, and says why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from hf2q.types import Record

COLUMNS = (
    "Model",
    "Backend",
    "Calibrator",
    "Peer",
    "hf2q wall (s)",
    "peer wall (s)",
    "speed ratio",
    "hf2q RSS (B)",
    "peer RSS (B)",
    "RSS ratio",
    "Verdict",
    "hf2q PPL",
    "peer PPL",
    "PPL ratio",
)
NOTHING = "n/a"
NO_PERPLEXITY = "—"


class Cell(Record, frozen=True, kw_only=True):
    """One conversion: what of, into what, by which recipe, against whom; and tolerances, as factors of the peer's."""

    model: str
    backend: str
    calibrator: str
    recipe: str
    peer: str
    speed: float
    rss: float
    ppl: float


def cells() -> tuple[Cell, ...]:
    """All eight, in order."""
    rows = (
        ("GGUF", "None", "q4_k_m", "llama.cpp uncalibrated Q4_K_M", 1.10, 1.10, 1.02),
        ("GGUF", "Imatrix", "imatrix-q4_k_m", "llama.cpp imatrix Q4_K_M", 1.10, 1.10, 1.02),
        ("safetensors", "DWQ", "dwq-4-6", "mlx-lm DWQ", 1.10, 1.10, 1.02),
        ("GGUF", "DWQ", "dwq-4-6", "own current pipeline", 1.0, 0.50, 1.0),
    )
    return tuple(
        Cell(
            model=model,
            backend=backend,
            calibrator=calibrator,
            recipe=recipe,
            peer=peer,
            speed=speed,
            rss=rss,
            ppl=ppl,
        )
        for model in ("27B dense", "apex MoE")
        for backend, calibrator, recipe, peer, speed, rss, ppl in rows
    )


class Figures(Record, frozen=True, kw_only=True):
    """One side of a cell: seconds, bytes of the largest resident set, perplexity. None for what was not measured."""

    wall: float | None = None
    rss: float | None = None
    ppl: float | None = None


class Outcome(Record, frozen=True, kw_only=True):
    """A verdict, with its reason unless it is a pass."""

    verdict: Literal["Pass", "Fail", "NotMeasured"]
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.verdict}({self.reason})" if self.reason else self.verdict


class Result(Record, frozen=True, kw_only=True):
    """A cell, what was measured of it, and, where measuring was not possible, why."""

    cell: Cell
    own: Figures = Figures()
    peer: Figures = Figures()
    not_measured: str = ""

    @property
    def outcome(self) -> Outcome:
        """See `verdict`."""
        return verdict(self)


def verdict(result: Result) -> Outcome:
    """What the figures of a cell mean. A bound that is broken counts before a figure that is missing."""
    if result.not_measured:
        return Outcome(verdict="NotMeasured", reason=result.not_measured)
    broken: list[str] = []
    missing: list[str] = []
    cell = result.cell
    for name, tolerance, own, peer in (
        ("wall", cell.speed, result.own.wall, result.peer.wall),
        ("RSS", cell.rss, result.own.rss, result.peer.rss),
        ("PPL", cell.ppl, result.own.ppl, result.peer.ppl),
    ):
        absent = [f"{who} {name}" for who, value in (("hf2q", own), ("peer", peer)) if _absent(value)]
        nonsense = [
            f"{who} {name} is {value:g}"
            for who, value in (("hf2q", own), ("peer", peer))
            if value is not None and not math.isnan(value) and not 0 < value < math.inf
        ]
        missing += absent
        broken += nonsense
        if not absent and not nonsense and own is not None and peer is not None and own > tolerance * peer:
            broken.append(f"{name} ratio {own / peer:.3f} > {tolerance:.2f}")
    if broken:
        return Outcome(verdict="Fail", reason="; ".join(broken))
    if missing:
        return Outcome(verdict="NotMeasured", reason=f"no {', no '.join(missing)}")
    return Outcome(verdict="Pass")


def markdown(results: Sequence[Result], hardware: str, sha: str) -> str:
    """The whole document: a title, the machine, the commit, and the table of 14 columns."""
    lines = [
        "# Peer parity",
        "",
        f"Hardware: {_text(hardware)}",
        "",
        f"SHA: {_text(sha)}",
        "",
        _line(COLUMNS),
        _line(["---"] * len(COLUMNS)),
        *(_line(_row(result)) for result in results),
    ]
    if not results:
        lines.append(_line(["no cells", *[NOTHING] * 10, NO_PERPLEXITY, NO_PERPLEXITY, NOTHING]))
    return "\n".join(lines) + "\n"


def _row(result: Result) -> list[str]:
    cell, own, peer = result.cell, result.own, result.peer
    return [
        _text(cell.model),
        _text(cell.backend),
        _text(f"{cell.calibrator} (`{cell.recipe}`)"),
        _text(cell.peer),
        _number(own.wall),
        _number(peer.wall),
        _number(_ratio(own.wall, peer.wall)),
        _number(own.rss, places=0),
        _number(peer.rss, places=0),
        _number(_ratio(own.rss, peer.rss)),
        _text(str(result.outcome)),
        _number(own.ppl, places=4, nothing=NO_PERPLEXITY),
        _number(peer.ppl, places=4, nothing=NO_PERPLEXITY),
        _number(_ratio(own.ppl, peer.ppl)),
    ]


def _absent(value: float | None) -> bool:
    return value is None or math.isnan(value)


def _ratio(own: float | None, peer: float | None) -> float | None:
    if own is None or peer is None or not (0 < own < math.inf and 0 < peer < math.inf):
        return None
    return own / peer


def _number(value: float | None, *, places: int = 3, nothing: str = NOTHING) -> str:
    """A figure that can be one; what is no number, or not above 0, is `nothing`."""
    return nothing if value is None or not 0 < value < math.inf else f"{value:.{places}f}"


def _text(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
