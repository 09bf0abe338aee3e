"""``POST /v1/embeddings``: texts, or tokens, become vectors of length 1."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Request, post
from litestar.response.base import ASGIResponse
from msgspec import Meta

from hf2q.errors import RequestError, UsageError
from hf2q.serve.api.accounts import note_prompt
from hf2q.serve.api.body import decode_as, decode_object, read_body
from hf2q.serve.api.completions_request import prompts_of
from hf2q.serve.api.compute import Compute, Turn
from hf2q.serve.api.disconnect import NOBODY, ClientGone, while_connected
from hf2q.serve.api.fields import Fields
from hf2q.serve.api.lease import Lease
from hf2q.serve.api.schema import encode
from hf2q.serve.api.service import Service
from hf2q.serve.api.settings import ApiSettings
from hf2q.types import Record

if TYPE_CHECKING:
    from hf2q.serve.embedding import Embedder
    from hf2q.types import Float32

EMBEDDINGS = Fields(
    honoured={
        "model": "the model asked for, by an id of `/v1/models`: an embedding model, or a file that states a pooling",
        "input": "a text, a list of texts, token ids, or a list of lists of token ids; a prefix that the model wants "
        "is the client's to write, and what the context does not hold is refused",
        "encoding_format": "`float`, which holds without it, or `base64`: little-endian float32",
        "dimensions": "the width of the model's vectors; another one is refused, since no model file says that its "
        "vectors may be cut",
    },
    hints=frozenset({"user"}),
)
"""What becomes of each field."""

GROUP = 32
"""Texts between two looks at whether anybody waits for them."""


class Body(msgspec.Struct, kw_only=True):
    """The request as it is sent; `EMBEDDINGS` says what each field does."""

    model: str
    input: Annotated[str, Meta(min_length=1)] | Annotated[list[Any], Meta(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    user: str | None = None


class Embedding(Record, frozen=True, kw_only=True):
    """The vector of one text: numbers, or base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Record, frozen=True, kw_only=True):
    """Token counts, special tokens around texts included."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(Record, frozen=True, kw_only=True):
    """A response; `data` is in the order of the texts."""

    object: Literal["list"] = "list"
    data: tuple[Embedding, ...]
    model: str
    usage: EmbeddingUsage


class EmbeddingRequest(Record, frozen=True, kw_only=True):
    """What a client asks for, checked."""

    model: str
    inputs: tuple[str | tuple[int, ...], ...]
    base64: bool
    dimensions: int | None


def parse_embedding_request(body: bytes, settings: ApiSettings) -> EmbeddingRequest:
    """The request in `body`. Errors: RequestError naming the field by its path."""
    EMBEDDINGS.check(decode_object(body))
    given = decode_as(body, Body)
    inputs = prompts_of(given.input, "input")
    if len(inputs) > settings.max_inputs:
        raise RequestError(
            f"input has {len(inputs)} texts, of which at most {settings.max_inputs} are taken",
            param="input",
            code="invalid_value",
        )
    for i, text in enumerate(inputs):
        if not text:
            raise RequestError(f"input[{i}] is empty", param=f"input[{i}]", code="invalid_value")
    return EmbeddingRequest(
        model=given.model, inputs=inputs, base64=given.encoding_format == "base64", dimensions=given.dimensions
    )


@post("/v1/embeddings", status_code=200)
async def embeddings(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Turn texts into vectors."""
    service: Service = request.app.state.service
    settings: ApiSettings = request.app.state.settings
    compute: Compute = request.app.state.compute
    service.check()
    try:
        body = await read_body(request, settings.max_body)
        asked = await asyncio.to_thread(parse_embedding_request, body, settings)
        lease = await while_connected(service.leased(asked.model, settings.load_wait_s), request.receive)
        try:
            embedder = _embedder(lease)
            _check_width(asked, lease)
            tokens = await asyncio.to_thread(_tokens, embedder, asked.inputs)
            note_prompt(sum(map(len, tokens)))
            work = compute.run(lease.model, lambda turn: _vectors(embedder, tokens, turn))
            vectors = await while_connected(work, request.receive)
        finally:
            lease.close()
    except ClientGone:
        return ASGIResponse(status_code=NOBODY)
    made = await asyncio.to_thread(_response, asked, vectors, sum(map(len, tokens)))
    return ASGIResponse(body=made, media_type="application/json")


def _embedder(lease: Lease) -> Embedder:
    try:
        embedder = lease.model.embedder()
        embedder.chosen(None)
    except UsageError as error:
        raise RequestError(
            f"the model {lease.model_id!r} gives no embeddings: its file states no pooling",
            hint="take an embedding model",
            param="model",
            code="model_not_supported",
        ) from error
    return embedder


def _check_width(asked: EmbeddingRequest, lease: Lease) -> None:
    width = lease.model.metadata.get(f"{lease.model.arch}.embedding_length")
    if asked.dimensions is not None and asked.dimensions != width:
        raise RequestError(
            f"dimensions is {asked.dimensions}, but the model's vectors have {width}, and its file does not say that "
            "they may be cut",
            param="dimensions",
            code="invalid_value",
        )


def _tokens(embedder: Embedder, inputs: Sequence[str | tuple[int, ...]]) -> list[Sequence[int]]:
    found: list[Sequence[int]] = []
    for i, given in enumerate(inputs):
        try:
            ids = embedder.tokens(given) if isinstance(given, str) else embedder.checked(given).tolist()
        except RequestError as error:
            error.param = f"input[{i}]" if len(inputs) > 1 else "input"
            raise
        found.append(ids)
    return found


def _vectors(embedder: Embedder, tokens: Sequence[Sequence[int]], turn: Turn) -> list[Float32]:
    """Vectors (C,) of all texts. A text's vector does not depend on those beside it, so they may go in groups."""
    found: list[Float32] = []
    for start in range(0, len(tokens), GROUP):
        turn.check()
        found += list(embedder.vectors(tokens[start : start + GROUP]))
    return found


def _response(asked: EmbeddingRequest, vectors: Sequence[Float32], tokens: int) -> bytes:
    data = tuple(
        Embedding(
            index=index,
            embedding=base64.b64encode(vector.astype("<f4").tobytes()).decode() if asked.base64 else vector.tolist(),
        )
        for index, vector in enumerate(vectors)
    )
    usage = EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens)
    return encode(Embeddings(data=data, model=asked.model, usage=usage))
