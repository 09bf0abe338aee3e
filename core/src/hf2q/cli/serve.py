"""``hf2q serve``: a model file behind an OpenAI-compatible HTTP API."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators

from hf2q.cli.logs import show_by_default
from hf2q.cli.numbers import whole_number
from hf2q.cli.output import note
from hf2q.errors import LoadError, MissingFileError, UsageError

if TYPE_CHECKING:
    from hf2q.serve.chat import Chat
    from hf2q.serve.engine import Engine

_PORT = validators.Number(gte=0, lte=65535)
_POSITIVE = validators.Number(gte=1)
_LONGEST_DRAIN = 86_400.0


def command(
    *,
    model: Annotated[Path, Parameter(help="A GGUF file.")],
    host: Annotated[str, Parameter(help="Address to listen on; 0.0.0.0 for the whole network.")] = "127.0.0.1",
    port: Annotated[
        int, Parameter(help="Port to listen on; 0 takes a free one.", converter=whole_number, validator=_PORT)
    ] = 8080,
    backend: Annotated[str, Parameter(help="What to compute with.")] = "auto",
    chat_template_file: Annotated[
        Path | None, Parameter(help="A chat template to use instead of the model file's own.")
    ] = None,
    queue_capacity: Annotated[
        int,
        Parameter(
            help="Requests that may wait; more are refused with 429.", converter=whole_number, validator=_POSITIVE
        ),
    ] = 32,
    ignore_memory: Annotated[
        bool, Parameter(help="Load although it probably does not fit into memory.", negative=())
    ] = False,
    drain: Annotated[float, Parameter(help="Seconds that running answers get when the server stops.")] = 10.0,
) -> None:
    """Serve a model file over an OpenAI-compatible HTTP API.

    The model is named after its file. A request that leaves out temperature, top_p, top_k, min_p or repetition_penalty
    gets what the model file recommends (general.sampling.*), else temperature 1 and no limits. Ctrl-C or SIGTERM stops
    the server in good order.
    """
    try:
        from hf2q.serve.api import server
        from hf2q.serve.api.service import Service, served_name
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "hf2q":
            raise
        raise LoadError(f"serving needs the package {missing!r}", hint="pip install 'hf2q[serve]'") from error

    for path in (model, chat_template_file):
        if path is not None and not path.exists():
            raise MissingFileError(f"there is no file {path}")
    if model.is_dir():
        raise UsageError(
            f"{model} is a folder; serve takes a GGUF file", hint=f"hf2q convert {model} --quant q4_k_m makes one of it"
        )
    if not 0 <= drain <= _LONGEST_DRAIN:  # NaN is neither
        raise UsageError(f"--drain is {drain:g}, expected 0 to {_LONGEST_DRAIN:g} seconds")
    show_by_default("hf2q.serve", logging.INFO)  # a server tells of each request

    def load() -> tuple[Engine, Chat]:
        from hf2q.serve.chat import open_chat
        from hf2q.serve.engine import Engine
        from hf2q.serve.load import load as load_model

        loaded = load_model(model, backend=backend, ignore_memory=ignore_memory)
        if loaded.task == "embed":
            loaded.close()
            raise UsageError(
                f"{model} is an embedding model ({loaded.arch}); serve answers chats", hint=f"hf2q embed {model} TEXT"
            )
        chat = open_chat(loaded, chat_template_file)
        if chat.template is None:
            note(f"warning: {model} has no chat template; chat requests will be refused (see --chat-template-file)")
        return Engine(loaded, queue_capacity=queue_capacity), chat

    service = Service(served_name(model))
    sock = server.listen(host, port)
    note(f"serving {service.model_id} on {server.url(sock)}")
    server.run(sock, service, load, drain_s=drain, note=note)
