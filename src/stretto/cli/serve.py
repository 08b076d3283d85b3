"""`stretto serve`: a model over HTTP. Flags, variables and the settings file use the same names.

The model is located (or pulled) here, with progress on the terminal, and loaded by the worker process.
Messages go to stderr: load progress, then the URL once the model is ready.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from stretto.cli.context import GlobalOptions
from stretto.cli.flags import ModelFlags, ServerFlags, server_values, values
from stretto.cli.output import messages_as_json, note, progress, say, tell
from stretto.cli.text import size

if TYPE_CHECKING:
    from stretto.client.api import WorkerClient
    from stretto.client.process import WorkerStart
    from stretto.rpc.messages import ModelInfo
    from stretto.server.run import Listening
    from stretto.settings import LoadedSettings

QUEUE_WAIT_S = 45.0  # below server.first_byte_s, so that a rejection has its own status
LOOK_EVERY_S = 0.1
SLOTS_OF_SEVERAL, CORES_PER_PROCESS, API_PROCESSES_MAX = 64, 4, 4  # of api_processes: auto


def serve(
    model: Annotated[str | None, Parameter(name="MODEL")] = None,
    /,
    *,
    server: ServerFlags = None,
    flags: ModelFlags = None,
    context: Annotated[GlobalOptions, Parameter(parse=False)],
) -> None:
    """Serve a model over HTTP. SIGTERM or Ctrl-C lets running requests finish; a second one cancels them.

    Parameters
    ----------
    model
        A .gguf file, a name from `stretto ls` or from the settings file, or user/repo[:quant], which is
        pulled first. [default: the only model of the settings file, else SmolLM2-135M-Instruct]
    """
    from stretto.client.rpc_client import RpcClient
    from stretto.server import run
    from stretto.server.api_process import serve_processes
    from stretto.text_client.client import TextClient

    given = values(flags)
    loaded = context.settings(given | server_values(server))
    chosen = loaded.settings.server
    json_lines = set_up_logs(chosen.log_format, chosen.log_level)
    for text in loaded.notes:
        note(text)
    run.check(chosen)  # before anything heavy
    name = prepared(context, loaded, model)
    start = _worker_start(context, loaded, name, given, json_lines=json_lines)
    count = _api_processes(loaded, name)
    if count == 1:
        rpc = RpcClient.supervised(start, loaded.settings)
        run.serve(TextClient(rpc, text_in=chosen.text_in), chosen, started=_announce)
    elif code := serve_processes(start, loaded.settings, count, started=_announce):
        sys.exit(code)


def set_up_logs(log_format: str, level: str) -> bool:
    """Whether every line on stderr is JSON from now on."""
    from stretto.telemetry import logs

    json_lines = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
    logs.set_up(json_lines=json_lines, level=level)
    messages_as_json(json_lines)
    return json_lines


# --- the model -----------------------------------------------------------------------------------


def prepared(context: GlobalOptions, loaded: LoadedSettings, model: str | None) -> str | None:
    """The model's name for the worker; the model is pulled or converted first if needed."""
    from stretto.errors import ModelNotFoundError
    from stretto.model_files import bundled
    from stretto.model_files.store import DEFAULT_NAMES

    settings = loaded.settings
    if settings.model(model or "").backend == "simulated" or model in settings.models:
        return model
    if model is None and settings.models:
        return None  # all models of the settings file, the first by default
    if model is None or model in DEFAULT_NAMES:
        from stretto.cli.resolving import default_file

        default_file(context)
        return None if model is None else bundled.NAME
    if Path(model).expanduser().is_dir():
        return model  # safetensors
    try:
        context.store().resolve(model)
    except ModelNotFoundError:
        if "/" not in model or model.endswith(".gguf") or model.startswith((".", "/", "~")):
            raise
        _pull(context, model)
    return model


def _pull(context: GlobalOptions, model: str) -> None:
    from stretto.cli.pull import HUB

    with progress(f"pulling {model}", is_bytes=True) as shown:
        path = context.store().pull(model.removeprefix("hf://"), endpoint=HUB, token=None, progress=shown)
    say(f"pulled {model}: {size(path.stat().st_size)}")


# --- the processes -------------------------------------------------------------------------------


def _api_processes(loaded: LoadedSettings, model: str | None) -> int:
    """With `auto`, several only where one process would be the limit: many slots, and cores to spare."""
    asked, chosen = loaded.settings.server.api_processes, loaded.settings.model(model or "")
    if asked != "auto":
        return asked
    is_folder = Path(chosen.path or model or "").expanduser().is_dir() and bool(chosen.path or model)
    ours = chosen.backend in ("torch", "simulated") or (chosen.backend == "auto" and is_folder)
    if loaded.settings.server.text_in == "worker" or not ours or chosen.n_seq_max < SLOTS_OF_SEVERAL:
        return 1
    return max(1, min(API_PROCESSES_MAX, (os.cpu_count() or 1) // CORES_PER_PROCESS))


def _worker_start(
    context: GlobalOptions,
    loaded: LoadedSettings,
    model: str | None,
    flags: dict[str, Any],
    *,
    json_lines: bool,
) -> WorkerStart:
    from stretto.client.process import WorkerStart

    return WorkerStart(
        models=() if model is None else (model,),
        flags=with_server_defaults(loaded, flags),
        config=None if loaded.path is None else str(loaded.path),
        cache_dir=str(context.cache_dir),
        preload=("",),
        log_format="json" if json_lines else "console",
        log_level=loaded.settings.server.log_level,
    )


def with_server_defaults(loaded: LoadedSettings, flags: dict[str, Any]) -> dict[str, Any]:
    """A server limits the queue wait by default."""
    said = any(key.endswith(".max_queue_wait_s") for key in loaded.origin)
    return flags if said else {"max_queue_wait_s": QUEUE_WAIT_S, **flags}


# --- messages ------------------------------------------------------------------------------------


async def _announce(listening: Listening) -> None:
    """A progress bar while the model loads, then a summary. A model that fails to load ends the server."""
    if not tell("listening", url=listening.url):
        say(f"listening on {listening.url}; the model is loading")
    found = await _loaded(listening.worker_client)
    for warning in found.description.get("warnings", ()):
        note(str(warning))
    stats = await listening.worker_client.stats()
    told = tell(
        "ready",
        url=listening.url,
        model=found.id,
        backend=found.backend,
        slots=found.slots,
        context_window=found.context_window,
        memory_bytes=stats.memory_bytes,
    )
    if not told:
        say(banner(listening.url, found, stats.memory_bytes))


async def _loaded(worker_client: WorkerClient) -> ModelInfo:
    loading = asyncio.ensure_future(worker_client.load(""))
    try:
        with progress("loading the model") as shown:
            while not (await asyncio.wait({loading}, timeout=LOOK_EVERY_S))[0]:
                done = worker_client.health.progress
                if done is not None:
                    shown(int(1000 * done), 1000)
        return loading.result()
    finally:  # a signal during loading
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)


def _example(model: ModelInfo) -> tuple[str, str]:
    """An example request for this kind of model."""
    if model.kind == "embedding":
        return "embeddings", f'{{"model": "{model.id}", "input": "Hello"}}'
    if model.kind == "reranker":
        return "rerank", f'{{"model": "{model.id}", "query": "Hello", "documents": ["Hi", "No"]}}'
    content = '[{"role": "user", "content": "Hello"}]'
    return "chat/completions", f'{{"model": "{model.id}", "messages": {content}}}'


def banner(url: str, model: ModelInfo, memory_bytes: int) -> str:
    """Summary: the model and how to reach it."""
    route, body = _example(model)
    return "\n".join(
        [
            f"serving {model.id} ({model.backend or 'unknown backend'})",
            f"  slots    {model.slots}, each with a window of {model.context_window:,} tokens",
            f"  memory   {size(memory_bytes)} in use by the worker",
            f"  try      curl {url}/v1/{route} -H 'content-type: application/json' \\",
            f"             -d '{body}'",
            f"  clients  OPENAI_BASE_URL={url}/v1",
            f"ready: {url}",
        ]
    )
