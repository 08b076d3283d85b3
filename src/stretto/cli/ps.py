"""`stretto ps`: the state of a running server, slot by slot, with advice if requests wait long."""

from __future__ import annotations

import http.client
import json as json_
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from cyclopts import Parameter

from stretto.cli.context import GlobalOptions
from stretto.cli.failures import UsageError
from stretto.cli.output import line, print_json, print_table
from stretto.cli.text import size
from stretto.errors import StrettoError

TIMEOUT_S = 5.0
REPLY_BYTES_MAX = 16 << 20
LONG_WAIT_S = 1.0  # a noticeable queue wait


class ServerUnreachableError(StrettoError):
    """No server at that address, or access denied."""

    code = "server_unreachable"
    hint = "is `stretto serve` running? --url sets its address"


@dataclass(frozen=True, slots=True)
class Waits:
    """Queue waits since the server's start."""

    mean_s: float
    p95_s: float

    @property
    def long(self) -> bool:
        return self.p95_s >= LONG_WAIT_S


def ps(
    *,
    url: Annotated[str | None, Parameter(metavar="URL")] = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    context: Annotated[GlobalOptions, Parameter(parse=False)],
) -> None:
    """Show a server's slots, batches and queue. The API key is read from STRETTO_API_KEY.

    Parameters
    ----------
    url
        The server's address. [default: host and port of the settings]
    json
        As JSON.
    """
    settings = context.settings().settings.server
    key = None if settings.api_key is None else settings.api_key.get_secret_value()
    asked = url or f"http://{'127.0.0.1' if not settings.loopback else settings.host}:{settings.port}"
    health, slots, text = (_get(asked, path, key) for path in ("/health", "/slots", "/metrics"))
    found = json_.loads(health)
    waits = waits_of(text.decode("utf-8"))
    advice = remedies(found, waits)
    if json:
        shown = {
            "health": found,
            "slots": json_.loads(slots),
            "queue_wait_s": _waits_json(waits),
            "advice": advice,
        }
        print_json(shown)
        return
    _show(asked, found, json_.loads(slots), waits, advice)


def _waits_json(waits: Waits | None) -> dict[str, float] | None:
    return None if waits is None else {"mean": waits.mean_s, "p95": waits.p95_s}


# --- asking --------------------------------------------------------------------------------------


def _get(url: str, path: str, key: str | None) -> bytes:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url[:80]} is not a valid address", hint="write it like http://127.0.0.1:8000")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=TIMEOUT_S)
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    try:
        connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
        reply = connection.getresponse()
        body = reply.read(REPLY_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise ServerUnreachableError(f"no server answers at {url}: {error}") from None
    finally:
        connection.close()
    if reply.status in (401, 403):
        raise ServerUnreachableError(f"{url} requires an API key", hint="set STRETTO_API_KEY")
    if reply.status not in (200, 503):  # 503: not ready, with the reason
        raise ServerUnreachableError(f"{url}{path} answers {reply.status}: is it a Stretto server?")
    return body


def waits_of(metrics: str) -> Waits | None:
    """From the queue wait histograms of all models; None before any request has ended."""
    from prometheus_client.parser import text_string_to_metric_families

    below: dict[float, float] = {}
    total_s = count = 0.0
    for family in text_string_to_metric_families(metrics):
        if family.name != "stretto_queue_wait_seconds":
            continue
        for sample in family.samples:
            if sample.labels.get("admitted") == "false":
                continue  # rejected requests
            if sample.name.endswith("_bucket"):
                edge = float(sample.labels["le"])
                below[edge] = below.get(edge, 0.0) + sample.value
            elif sample.name.endswith("_sum"):
                total_s += sample.value
            elif sample.name.endswith("_count"):
                count += sample.value
    if not count:
        return None
    p95_s = next(edge for edge in sorted(below) if below[edge] >= 0.95 * count)
    finite = [edge for edge in below if edge != float("inf")]
    return Waits(total_s / count, min(p95_s, max(finite)))


def remedies(health: dict[str, Any], waits: Waits | None) -> list[str]:
    """Settings to change if requests wait long for a slot, in the order to try them."""
    models = (health.get("runtime") or {}).get("models", [])
    queued = sum(sum(model["queued"].values()) for model in models)
    full = any(model["active_slots"] >= model["slots"] > 0 for model in models)
    if not ((waits is not None and waits.long) or (queued and full)):
        return []
    slots = max((model["slots"] for model in models), default=4)
    return [
        f"raise n_seq_max (now {slots}) if memory allows: `stretto estimate` shows the memory of {2 * slots}",
        "lower context_window, so that more slots fit into the same memory",
        "quantize the KV cache (cache_type_k: q8_0, cache_type_v: q8_0): about half the memory per slot",
    ]


# --- showing -------------------------------------------------------------------------------------


def _show(
    url: str, health: dict[str, Any], slots: list[dict[str, Any]], waits: Waits | None, advice: list[str]
) -> None:
    reason = f" ({health['reason']})" if health.get("reason") else ""
    requests = health.get("requests", {})
    running, up_s = requests.get("running", 0), health.get("uptime_s", 0)
    line(f"{url}  {health['status']}{reason}  {running} requests, up {up_s:.0f} s")
    line()
    _show_slots(slots)
    line()
    for model in (health.get("runtime") or {}).get("models", []):
        queued = ", ".join(f"{count} {name}" for name, count in model["queued"].items() if count) or "none"
        line(
            f"{model['model_id']}: {model['active_slots']}/{model['slots']} slots busy, "
            f"KV {model['kv_used']:.0%}, waiting: {queued}, "
            f"{model['tokens']:,} tokens, preemptions: {_preemptions(model['preemptions'])}"
        )
        for drafter, drafted in sorted(model.get("proposed_drafts", {}).items()):
            accepted = model.get("accepted_drafts", {}).get(drafter, 0)
            line(f"  drafts by {drafter}: {accepted:,} of {drafted:,} accepted ({accepted / drafted:.0%})")
        if adapters := model.get("adapters"):
            line(f"  adapters: {', '.join(_adapter(each) for each in adapters)}")
    _show_batches(health.get("batcher", {}).get("generate", {}))
    if waits is not None:
        line(f"queue wait: mean {1000 * waits.mean_s:.0f} ms, 95 % within {1000 * waits.p95_s:.0f} ms")
    if (memory := (health.get("runtime") or {}).get("memory_bytes")) is not None:
        line(f"memory of the worker: {size(memory)}")
    if advice:
        line()
        line("Requests wait long for a slot. What helps:")
        for index, text in enumerate(advice, 1):
            line(f"  {index}. {text}")


def _adapter(stats: dict[str, Any]) -> str:
    if not stats.get("loaded"):
        return f"{stats['name']} (not loaded)"
    return f"{stats['name']} ({size(stats.get('bytes', 0))}, {stats.get('requests', 0)} requests)"


def _preemptions(by_reason: dict[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in by_reason.items()) or "none"


def _show_slots(slots: list[dict[str, Any]]) -> None:
    columns = ["SLOT", "MODEL", "STATE", "REQUEST", "PROMPT", "CACHED", "GENERATED", "PRIORITY", "TENANT"]
    keys = (
        "index",
        "model",
        "state",
        "stream_id",
        "prompt_tokens",
        "cached_tokens",
        "generated",
        "priority",
        "tenant",
    )
    rows = [
        [slot.get(key, "") if slot["state"] != "idle" or key in keys[:3] else "" for key in keys]
        for slot in slots
    ]
    print_table(columns, rows, right=(0, 4, 5, 6))


def _show_batches(stats: dict[str, Any]) -> None:
    if not stats:
        return
    sizes, waits = stats.get("batch_size", {}), stats.get("queue_wait_ms", {})
    calls, requests = stats.get("total_batches", 0), stats.get("total_requests", 0)
    line(
        f"batches: {requests} requests in {calls} calls, {sizes.get('average', 0):.1f} in one on average "
        f"(at most {sizes.get('max', 0)}), held {waits.get('p95', 0):.1f} ms (p95), "
        f"{stats.get('fallback_count', 0)} fallbacks"
    )
