"""Whether a model file still answers as its manifest says: greedy, without any seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from hf2q.errors import FormatError, QualityError
from hf2q.quality.parity_manifest import Manifest, ModelFile, Reference, same_files
from hf2q.types import Record

if TYPE_CHECKING:
    from hf2q.serve.model import Model

MAX_TOKENS = 32
"""Of references that are made from a family's smoke prompts."""

Report = Callable[[str, int, int], None]


class Answer(Record, frozen=True, kw_only=True):
    """What a model answers: text, token ids with the one that ended it, and the digest of the prompt's last logits."""

    text: str
    tokens: tuple[int, ...]
    logits_sha256: str = ""


class Check(Record, frozen=True, kw_only=True):
    """One reference against the answer.

    prefix    bytes that the answer and the reference's text have in common from the start
    expected  bytes of the reference's text, or its floor
    problem   what is wrong, "" for nothing
    """

    name: str
    prefix: int
    expected: int
    problem: str

    @property
    def passed(self) -> bool:
        """Whether the answer is as it should be."""
        return not self.problem


def common_prefix(a: bytes, b: bytes) -> int:
    """Bytes that two texts have in common from the start."""
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def compare(reference: Reference, answer: Answer) -> Check:
    """Pure: a reference against an answer. Errors: QualityError for a reference that expects nothing."""
    if reference.text is None:
        raise QualityError(
            f"the reference {reference.name!r} has no expected text", hint="--update records what the file answers"
        )
    wanted, found = reference.text.encode(), answer.text.encode()
    prefix = common_prefix(wanted, found)
    expected = len(wanted) if reference.floor is None else reference.floor
    return Check(name=reference.name, prefix=prefix, expected=expected, problem=_problem(reference, answer, prefix))


def _problem(reference: Reference, answer: Answer, prefix: int) -> str:
    wanted = reference.text or ""
    if reference.floor is not None:
        if prefix >= reference.floor:
            return ""
        return f"the texts part after {prefix} bytes, expected at least {reference.floor}"
    if answer.text != wanted:
        length = len(wanted.encode())
        return f"the texts part after {prefix} bytes of {length}; {_around(wanted, answer.text, prefix)}"
    if reference.tokens is not None and reference.tokens != answer.tokens:
        pairs = enumerate(zip(reference.tokens, answer.tokens, strict=False))
        shorter = min(len(reference.tokens), len(answer.tokens))
        place = next((i for i, (a, b) in pairs if a != b), shorter)
        return (
            f"the texts are equal, the tokens part at {place}: {_at(answer.tokens, place)}, expected "
            f"{_at(reference.tokens, place)}"
        )
    if reference.logits_sha256 is not None and reference.logits_sha256 != answer.logits_sha256:
        return f"the logits after the prompt have the digest {answer.logits_sha256[:16]}…, expected " + (
            f"{reference.logits_sha256[:16]}… (they differ from backend to backend)"
        )
    return ""


def _around(wanted: str, found: str, prefix: int) -> str:
    def shown(text: str) -> str:
        return repr(text.encode()[prefix : prefix + 24].decode(errors="replace"))

    return f"then {shown(found)}, expected {shown(wanted)}"


def _at(tokens: tuple[int, ...], place: int) -> str:
    return str(tokens[place]) if place < len(tokens) else "the end"


def answer_of(model: Model, prompt: str, max_tokens: int, *, logits: bool) -> Answer:
    """The greedy answer to a prompt, without a chat template. Errors: as `Model.generate`."""
    ids = model.tokenizer.encode(prompt, add_bos=model.tokenizer.add_bos)
    digest = hashlib.sha256(_last_logits(model, ids)).hexdigest() if logits else ""
    events = list(model.generate(ids, max_tokens=max_tokens))
    return Answer(
        text="".join(event.text for event in events),
        tokens=tuple(event.token for event in events if event.token is not None),
        logits_sha256=digest,
    )


def _last_logits(model: Model, ids: list[int]) -> bytes:
    return np.ascontiguousarray(model.sequence().next_logits(ids), "<f4").tobytes()


def check(model: Model, manifest: Manifest, report: Report | None = None) -> tuple[Check, ...]:
    """Every reference of a manifest, whose files are this model's. Errors: as `compare` and `answer_of`."""
    for reference in manifest.references:
        compare(reference, Answer(text="", tokens=()))  # refuses one without a text before anything runs
    found = []
    for number, one in enumerate(manifest.references):
        if report is not None:
            report(one.name, number, len(manifest.references))
        logits = one.logits_sha256 is not None
        found.append(compare(one, answer_of(model, one.prompt, one.max_tokens, logits=logits)))
    return tuple(found)


def fresh(prompts: tuple[str, ...], arch: str) -> Manifest:
    """A manifest of prompts, nothing recorded yet. Errors: QualityError for a family without any."""
    if not prompts:
        raise QualityError(
            f"the family {arch} has no smoke prompts to begin a manifest with",
            hint='write one: {"references": [{"name": "…", "prompt": "…", "max_tokens": 32}]}',
        )
    return Manifest(
        references=tuple(
            Reference(name=f"smoke-{number}", prompt=prompt, max_tokens=MAX_TOKENS)
            for number, prompt in enumerate(prompts, 1)
        )
    )


def update(
    model: Model,
    manifest: Manifest,
    files: tuple[ModelFile, ...],
    *,
    logits: bool = False,
    report: Report | None = None,
) -> Manifest:
    """The manifest with this file's digest and its own answers; another program's texts stay as they are.

    logits  record digests of logits; those that are there already are recorded anew in any case
    Errors: FormatError when such a text was locked for another file; as `answer_of`.
    """
    locked = [one.name for one in manifest.references if one.floor is not None]
    if locked and manifest.files and not same_files(manifest.files, files):
        raise FormatError(
            f"the reference {locked[0]!r} holds another program's answer of another model file",
            hint="take its answer of this file, with its floor, and clear files in the manifest; or remove it",
        )
    found = []
    for number, one in enumerate(manifest.references):
        if report is not None:
            report(one.name, number, len(manifest.references))
        found.append(one if one.floor is not None else _recorded(model, one, logits=logits))
    return msgspec.structs.replace(manifest, references=tuple(found), files=files)


def _recorded(model: Model, one: Reference, *, logits: bool) -> Reference:
    logits = logits or one.logits_sha256 is not None
    answer = answer_of(model, one.prompt, one.max_tokens, logits=logits)
    return msgspec.structs.replace(
        one, text=answer.text, tokens=answer.tokens, logits_sha256=answer.logits_sha256 or None
    )
