"""``hf2q serve``: model files behind an OpenAI-compatible HTTP API."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, validators

from hf2q.cli.logs import show_by_default
from hf2q.cli.measuring import Backend, IgnoreMemory, Threads
from hf2q.cli.numbers import byte_size, byte_size_or_none, whole_number
from hf2q.cli.selftest import SelftestOptions
from hf2q.cli.serve_access import allowed_hosts, check_open, check_origins, read_keys
from hf2q.cli.serve_models import check_files, model_files
from hf2q.cli.serve_run import Serving, serve, supervised
from hf2q.errors import LoadError, UsageError

_PORT = validators.Number(gte=0, lte=65535)
_POSITIVE = validators.Number(gte=1)
_LONGEST_DRAIN = 86_400.0
_PACKAGES = ("litestar", "uvicorn", "prometheus_client")


def command(
    *,
    model: Annotated[
        tuple[Path, ...], Parameter(help="A GGUF file; may be given several times.", show_default=False)
    ] = (),
    models_dir: Annotated[
        Path | None,
        Parameter(help="Serve every GGUF file below this folder too; each is loaded when it is first asked for."),
    ] = None,
    alias: Annotated[
        tuple[str, ...],
        Parameter(help="NAME=MODEL: another name of a model; may be given several times.", show_default=False),
    ] = (),
    mmproj: Annotated[
        tuple[str, ...],
        Parameter(
            help="The projector of the model, so that it takes images; MODEL=FILE where there are several models.",
            show_default=False,
        ),
    ] = (),
    chat_template_file: Annotated[
        tuple[str, ...],
        Parameter(
            help="A chat template to use instead of the model file's own; MODEL=FILE where there are several models.",
            show_default=False,
        ),
    ] = (),
    max_models: Annotated[
        int, Parameter(help="Models in memory at one time.", converter=whole_number, validator=_POSITIVE)
    ] = 3,
    memory_budget: Annotated[
        int | None,
        Parameter(
            help="Most bytes of model files in memory together (default: 80 % of what is free at the start).",
            converter=byte_size,
        ),
    ] = None,
    host: Annotated[str, Parameter(help="Address to listen on; 0.0.0.0 for the whole network.")] = "127.0.0.1",
    port: Annotated[
        int, Parameter(help="Port to listen on; 0 takes a free one.", converter=whole_number, validator=_PORT)
    ] = 8080,
    api_key: Annotated[
        tuple[str, ...],
        Parameter(
            help="A key that requests must carry; may be given several times. Others on this machine can see it: "
            "--api-key-file or HF2Q_API_KEY hides it.",
            show_default=False,
        ),
    ] = (),
    api_key_file: Annotated[Path | None, Parameter(help="A file of such keys, one a line.")] = None,
    allow_unauthenticated: Annotated[
        bool, Parameter(help="Let others on the network in without a key.", negative=())
    ] = False,
    public_health: Annotated[bool, Parameter(help="/health and /readyz need no key.", negative=())] = False,
    allowed_host: Annotated[
        tuple[str, ...],
        Parameter(
            help="A name by which requests may call this server, besides its own; *.NAME for all below it, * for any; "
            "may be given several times.",
            show_default=False,
        ),
    ] = (),
    cors_origin: Annotated[
        tuple[str, ...],
        Parameter(
            help="An origin whose web pages may use this server, * for all; may be given several times.",
            show_default=False,
        ),
    ] = (),
    allow_remote_images: Annotated[
        bool, Parameter(help="Fetch images that requests name by http and https URLs.", negative=())
    ] = False,
    max_body: Annotated[int, Parameter(help="Most bytes of a request's body.", converter=byte_size)] = 32 << 20,
    max_connections: Annotated[
        int, Parameter(help="Connections at one time.", converter=whole_number, validator=_POSITIVE)
    ] = 1024,
    backend: Backend = "auto",
    threads: Threads = None,
    ctx: Annotated[
        int | None,
        Parameter(
            help="Most tokens of a conversation (default: all the model takes).",
            converter=whole_number,
            validator=validators.Number(gte=2),
        ),
    ] = None,
    slots: Annotated[
        int,
        Parameter(
            help="Requests that each model works on at once, every one with the full context.",
            converter=whole_number,
            validator=validators.Number(gte=1, lte=64),
        ),
    ] = 4,
    kv_budget: Annotated[
        int | None,
        Parameter(
            help="Most bytes of all caches of a model together (default: 80 % of what is free when it is loaded).",
            converter=byte_size,
        ),
    ] = None,
    prefix_cache: Annotated[
        int | None,
        Parameter(
            help="Most bytes for beginnings of prompts that are kept for later requests, part of --kv-budget; off for "
            "none (default: 5 % of what is free).",
            converter=byte_size_or_none,
        ),
    ] = None,
    queue_capacity: Annotated[
        int,
        Parameter(
            help="Requests that may wait; more are refused with 429.", converter=whole_number, validator=_POSITIVE
        ),
    ] = 32,
    prefill_chunk: Annotated[
        int,
        Parameter(
            help="Tokens of a prompt between two looks at other requests.",
            converter=whole_number,
            validator=_POSITIVE,
        ),
    ] = 512,
    stuck_after: Annotated[
        float, Parameter(help="Seconds that one step may take before the engine counts as stuck.")
    ] = 300.0,
    speculative: Annotated[
        bool,
        Parameter(
            name=["--speculative", "--draft"],
            help="Guess tokens ahead with the files' MTP blocks: the same answers, often sooner.",
            negative=(),
        ),
    ] = False,
    ignore_memory: IgnoreMemory = False,
    drain: Annotated[float, Parameter(help="Seconds that running answers get when the server stops.")] = 10.0,
    supervise: Annotated[
        bool,
        Parameter(help="Start the server again when it dies, or its engine fails; the port stays open.", negative=()),
    ] = False,
    operator_ui: Annotated[
        Literal["auto", "dashboard", "plain"],
        Parameter(help="What to show on stderr: a live table of requests, or log lines."),
    ] = "auto",
    selftest: Annotated[
        bool,
        Parameter(help="Check the models over HTTP when they are ready, print the verdicts, and stop.", negative=()),
    ] = False,
    json: Annotated[bool, Parameter(help="Print the verdicts of --selftest as JSON.", negative=())] = False,
) -> int:
    """Serve model files over an OpenAI-compatible HTTP API.

    A model is named after its file, or its path below --models-dir. A request that leaves out temperature, top_p,
    top_k, min_p or repetition_penalty gets what the model file recommends (general.sampling.*), else temperature 1 and
    no limits. Ctrl-C or SIGTERM stops the server in good order.
    """
    for name in _PACKAGES:
        if find_spec(name) is None:
            raise LoadError(f"serving needs the package {name!r}", hint="pip install 'hf2q[serve]'")
    from hf2q.serve.api.keys import digest
    from hf2q.serve.api.listening import listen, only_this_machine
    from hf2q.serve.api.opening import EngineOptions
    from hf2q.serve.api.settings import ApiSettings
    from hf2q.serve.api.supervisor import inherited

    if not model and models_dir is None:
        raise UsageError("serve needs a model", hint="--model FILE, or --models-dir DIR for all in a folder")
    check_files(model)
    if not 0 <= drain <= _LONGEST_DRAIN:  # NaN is neither
        raise UsageError(f"--drain is {drain:g}, expected 0 to {_LONGEST_DRAIN:g} seconds")
    if not 1 <= stuck_after <= _LONGEST_DRAIN:
        raise UsageError(f"--stuck-after is {stuck_after:g}, expected 1 to {_LONGEST_DRAIN:g} seconds")
    if len(model) > max_models:
        raise UsageError(
            f"{len(model)} models are given, and {max_models} may be in memory", hint=f"--max-models {len(model)}"
        )
    if json and not selftest:
        raise UsageError("--json is for --selftest")
    if selftest and (supervise or not model):
        raise UsageError("--selftest checks the models given with --model, in one process without --supervise")
    child = inherited()
    alone = supervise and child is None  # a parent, which serves nothing itself
    files = (
        ()
        if alone
        else model_files(model, models_dir, mmproj=mmproj, chat_template_file=chat_template_file, alias=alias)
    )
    keys = read_keys(api_key, api_key_file)
    if public_health and not keys:
        raise UsageError("--public-health is for servers with API keys")
    origins = check_origins(cors_origin)
    show_by_default("hf2q.serve", logging.INFO)  # a server tells of each request

    sock, lifeline = child or (listen(host, port), None)
    try:
        local = only_this_machine(sock)
        check_open(f"--host {host}", keys=keys, allowed=allow_unauthenticated, local=local)
        hosts = allowed_hosts(allowed_host, host=host, local=local, keys=bool(keys))
        if alone:
            return supervised(sock)
        settings = ApiSettings(
            max_body=max_body,
            max_connections=max_connections,
            keys=tuple(map(digest, keys)),
            public_health=public_health,
            hosts=hosts,
            cors_origins=origins,
            allow_remote_images=allow_remote_images,
        )
        options = EngineOptions(
            backend=backend,
            threads=threads,
            ctx=ctx,
            ignore_memory=ignore_memory,
            speculative=speculative,
            slots=slots,
            queue_capacity=queue_capacity,
            prefill_chunk=prefill_chunk,
            kv_budget=kv_budget,
            prefix_budget=prefix_cache,
            deadline=stuck_after,
        )
        wanted = Serving(
            files=files,
            on_demand=models_dir is not None,
            options=options,
            max_models=max_models,
            memory_budget=memory_budget,
            settings=settings,
            drain=drain,
            lifeline=lifeline,
            operator_ui=operator_ui,
            checks=SelftestOptions(key=keys[0] if keys else None, json=json) if selftest else None,
        )
        return serve(sock, wanted)
    finally:
        sock.close()
