"""From a checked request to its generations: one for each choice, all or none."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from litestar import Request

from hf2q.errors import RequestError
from hf2q.serve.api.disconnect import while_connected
from hf2q.serve.api.images import Images, read_images
from hf2q.serve.events import GenerateRequest
from hf2q.serve.handle import Handle
from hf2q.types import Record

if TYPE_CHECKING:
    from hf2q.backends.media import PlacedImage
    from hf2q.serve.api.chat_messages import ImageRef
    from hf2q.serve.api.compute import Compute
    from hf2q.serve.api.lease import Lease
    from hf2q.serve.chat import Chat, ChatQuery, Prepared
    from hf2q.serve.engine import Engine
    from hf2q.serve.model import Model


class ChatPrompt(Record, frozen=True, kw_only=True):
    """A question to a chat, in tokens and images."""

    prepared: Prepared
    ids: tuple[int, ...]
    images: tuple[PlacedImage, ...] = ()


def chat_prompt(
    chat: Chat, model: Model, query: ChatQuery, images: Images, check: Callable[[], None] | None = None
) -> ChatPrompt:
    """The prompt of `query`. Takes a while: for a thread. `check` is called before each image, and may raise.

    Errors: RequestError naming what the model or its template cannot do, or the image that is none.
    """
    prepared = chat.prepare(query)
    # the template writes BOS where the model wants it
    ids = tuple(model.tokenizer.encode(prepared.text, add_bos=False))
    if not ids:
        raise RequestError("the chat template makes an empty prompt of these messages", param="messages")
    if not len(images):
        return ChatPrompt(prepared=prepared, ids=ids)
    if model.vision is None:  # was refused before the images were read
        raise no_projector("messages")
    ids, placed = model.vision.place(ids, images.checked(check))
    return ChatPrompt(prepared=prepared, ids=ids, images=placed)


async def prompt_of(
    query: ChatQuery, images: Sequence[ImageRef], lease: Lease, request: Request[Any, Any, Any]
) -> tuple[ChatPrompt, Images]:
    """The prompt of `query`, and the images in it, worked out beside the event loop.

    Errors: RequestError as `chat_prompt` and `read_images`; ClientGone.
    """
    chat, model = lease.chat, lease.model
    if images and model.vision is None:
        raise no_projector(images[0].param)
    read = await asyncio.to_thread(read_images, images, request.app.state.settings)
    if not images:
        return await asyncio.to_thread(chat_prompt, chat, model, query, read), read
    compute: Compute = request.app.state.compute
    seen = compute.run(model, lambda turn: chat_prompt(chat, model, query, read, turn.check))
    return await while_connected(seen, request.receive), read


def no_projector(param: str) -> RequestError:
    """The refusal of images by a model that does not see."""
    return RequestError(
        "the model is served without a projector, so it cannot see images",
        hint="hf2q serve --mmproj, for a model that has one",
        param=param,
        code="no_mmproj_loaded",
    )


def submit_all(engine: Engine, requests: Sequence[GenerateRequest]) -> list[Handle]:
    """Hand over all of them. Errors: as `Engine.submit`; then none of them runs."""
    handles: list[Handle] = []
    try:
        for request in requests:
            handles.append(engine.submit(request))  # noqa: PERF401  (those before one that is refused are needed)
    except BaseException:
        for handle in handles:
            handle.cancel()
        raise
    return handles


def cache_scope(*, tenant: str, model_id: str, salt: str | None, images: str = "") -> str:
    """Who may share what was computed for a prompt: requests of one tenant, for one model, with one salt.

    images  a digest: where the tokens are the same, what they stand for may not be
    """
    found = hashlib.sha256()
    for part in (tenant, model_id, "" if salt is None else f"={salt}", images):
        data = part.encode("utf-8", "surrogatepass")
        found.update(len(data).to_bytes(8, "little") + data)
    return found.hexdigest()


def choice_id(id: str, index: int, count: int) -> str:
    """The name of a choice in the log: the request's, and its number where there are several."""
    return id if count == 1 else f"{id}/{index}"
