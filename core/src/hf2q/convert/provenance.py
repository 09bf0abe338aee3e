"""What a file says about its own making: the keys ``hf2q.*`` at the end of its metadata.

They are the only keys that llama.cpp's tools would not have written. `verify` reads them back when there is no receipt.
docs/reference/provenance.md describes each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from hf2q.errors import FormatError
from hf2q.formats.gguf import GgufFile
from hf2q.formats.gguf.encode import encode_field
from hf2q.formats.gguf.shards import SPLIT_KEYS
from hf2q.types import MetadataField, PolicyOptions, Record, ValueType

PREFIX = "hf2q."
VERSION = "hf2q.version"
SOURCE_KIND = "hf2q.source.kind"
SOURCE_NAME = "hf2q.source.name"
SOURCE_REVISION = "hf2q.source.revision"
RECIPE = "hf2q.recipe"
VIA = "hf2q.via"
OPTIONS = "hf2q.options"
IMATRIX = "hf2q.imatrix.sha256"
RECIPE_DIGEST = "hf2q.recipe_digest"
DIGEST = "hf2q.digest"


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What was asked of a conversion besides recipe and importance matrix, as far as it changes the output.

    Named as in `hf2q.types.PolicyOptions` and `hf2q.convert.convert`; defaults are left out where it is written down.
    `via` is what was asked for: ``auto`` may be another thing than naming the type that it comes to.
    """

    pure: bool = False
    output_tensor_type: str | None = None
    token_embedding_type: str | None = None
    tensor_types: tuple[tuple[str, str], ...] = ()
    leave_output_tensor: bool = False
    via: str = "auto"
    include_weights: tuple[str, ...] = ()
    exclude_weights: tuple[str, ...] = ()
    mtp: bool = True
    pre: str | None = None
    keep_split: bool = False

    def policy(self, *, has_imatrix: bool) -> PolicyOptions:
        """What a recipe is asked."""
        return PolicyOptions(
            pure=self.pure,
            output_tensor_type=self.output_tensor_type,
            token_embedding_type=self.token_embedding_type,
            tensor_types=self.tensor_types,
            leave_output_tensor=self.leave_output_tensor,
            has_imatrix=has_imatrix,
        )


class SourceName(Record, frozen=True, kw_only=True):
    """Which source, without its content.

    kind      ``local`` (a directory), ``hub`` or ``gguf``
    name      the directory's or the file's own name; the id of the repository
    revision  the exact commit of a repository, "" where there is none
    """

    kind: str
    name: str
    revision: str = ""


class Provenance(Record, frozen=True, kw_only=True):
    """How one file was made.

    recipe   as it was asked for;  via  the intermediate type, "" for a GGUF source
    imatrix  SHA-256 of the importance matrix, "" without one
    """

    version: str
    source: SourceName
    recipe: str
    via: str
    settings: Settings
    imatrix: str = ""

    @property
    def recipe_digest(self) -> str:
        """SHA-256 over the canonical JSON of all that decides how values become bytes."""
        decided = {
            "imatrix": self.imatrix or None,
            "options": msgspec.to_builtins(self.settings),
            "recipe": self.recipe,
            "via": self.via,
        }
        return hashlib.sha256(canonical(decided)).hexdigest()


def readable(name: str) -> str:
    """A name as text that UTF-8 holds; bytes that are none become question marks."""
    return name.encode("utf-8", "replace").decode("utf-8")


def canonical(value: object) -> bytes:
    """JSON with sorted keys and no white space: the same value, the same bytes."""
    return msgspec.json.encode(value, order="sorted")


def with_provenance(fields: Sequence[MetadataField], made: Provenance) -> tuple[MetadataField, ...]:
    """`fields` with the keys of `made` at the end, in place of any that an earlier conversion wrote."""
    options = canonical(made.settings).decode()
    texts = (
        (VERSION, made.version),
        (SOURCE_KIND, made.source.kind),
        (SOURCE_NAME, made.source.name),
        (SOURCE_REVISION, made.source.revision),
        (RECIPE, made.recipe),
        (VIA, made.via),
        (OPTIONS, "" if options == "{}" else options),
        (IMATRIX, made.imatrix),
        (RECIPE_DIGEST, made.recipe_digest),
    )
    own = [MetadataField.string(key, text) for key, text in texts if text]
    all_but_last = (*without_provenance(fields), *own)
    return (*all_but_last, MetadataField.string(DIGEST, metadata_digest(all_but_last)))


def without_provenance(fields: Sequence[MetadataField]) -> tuple[MetadataField, ...]:
    """`fields` without the keys that an earlier conversion by hf2q wrote, which would not be true of a new file."""
    return tuple(field for field in fields if not field.key.startswith(PREFIX))


def metadata_digest(fields: Sequence[MetadataField]) -> str:
    """SHA-256 over the encoded keys, less those that say which shard a file is."""
    found = hashlib.sha256()
    for field in fields:
        if field.key not in SPLIT_KEYS and field.key != DIGEST:
            found.update(encode_field(field))
    return found.hexdigest()


def read_provenance(file: GgufFile) -> Provenance | None:
    """What the file says of itself; None when it has none of our keys.

    That `DIGEST` and `RECIPE_DIGEST` are right is not checked here. Errors: FormatError for keys that are missing, of
    another type, or not understood.
    """
    if not any(key.startswith(PREFIX) for key in file.metadata):
        return None

    def text(key: str, *, required: bool = False) -> str:
        if key not in file.metadata:
            if required:
                raise FormatError(f"{file.path}: there is no key {key!r}, though there are others that begin with hf2q")
            return ""
        if file.metadata.type_of(key) is not ValueType.STRING:
            raise FormatError(f"{file.path}: {key} is {file.metadata.type_of(key).name}, expected STRING")
        return str(file.metadata[key])

    try:
        settings = msgspec.json.decode(text(OPTIONS) or "{}", type=Settings)
    except msgspec.DecodeError as error:
        raise FormatError(f"{file.path}: {OPTIONS} is not understood: {error}") from None
    return Provenance(
        version=text(VERSION, required=True),
        source=SourceName(
            kind=text(SOURCE_KIND, required=True),
            name=text(SOURCE_NAME, required=True),
            revision=text(SOURCE_REVISION),
        ),
        recipe=text(RECIPE, required=True),
        via=text(VIA),
        settings=settings,
        imatrix=text(IMATRIX),
    )
