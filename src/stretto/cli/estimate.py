"""`stretto estimate`: the memory of a model and its slots, by rule of thumb and exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from stretto.cli import machine
from stretto.cli.context import GlobalOptions
from stretto.cli.failures import UsageError
from stretto.cli.flags import ModelFlags, values
from stretto.cli.output import heading, line, note, print_json, print_table
from stretto.cli.target_model import Subject, example, subject_of
from stretto.cli.text import parse_size, size

if TYPE_CHECKING:
    from stretto.backends.llamacpp.placement import GpuMemory
    from stretto.model_files.fit import Estimate, Fit


def estimate(
    model: Annotated[str | None, Parameter(name="MODEL")] = None,
    /,
    *,
    example_: Annotated[bool, Parameter(name="--example", negative="")] = False,
    weights: Annotated[str | None, Parameter(metavar="SIZE")] = None,
    memory: Annotated[str | None, Parameter(metavar="SIZE")] = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    flags: ModelFlags = None,
    context: Annotated[GlobalOptions, Parameter(parse=False)],
) -> None:
    """Estimate the memory of a model and its slots, step by step, and what fits this machine.

    Parameters
    ----------
    model
        A .gguf file (its header is enough) or a name from `stretto ls`. [default: SmolLM2-135M-Instruct]
    example_
        The guide's example: Qwen3-8B at Q8_0 with 8 slots.
    weights
        Size of the weights, if the file does not contain them: 9GB.
    memory
        Memory to fit into, instead of this machine's free memory: 24GB. Several sizes are those of GPUs:
        24GB,24GB.
    json
        As JSON.
    """
    if example_ and model is not None:
        raise UsageError("--example uses its own model", hint="omit one of the two")
    given = values(flags)
    weights_bytes = parse_size(weights) if weights is not None else None
    subject = example(given) if example_ else subject_of(context, model or "demo", given)
    subject = subject.with_weights(weights_bytes)
    host = machine.memory().available
    asked = [parse_size(part) for part in memory.split(",")] if memory is not None else []
    subject = replace(subject, gpus=_gpus(asked))
    free, source = _free(subject, asked, host)
    result, fitting = subject.estimate(), subject.fit(free, host)
    if json:
        print_json(_as_json(subject, result, fitting, source))
    else:
        _print(subject, result, fitting, source)
    for text in (*subject.notes, *result.warnings):
        note(text)


def _gpus(asked: list[int]) -> tuple[GpuMemory, ...]:
    """The GPUs to plan for: those of this machine, or as many as `--memory` has sizes, if several."""
    from stretto.backends.llamacpp.placement import GpuMemory

    if len(asked) > 1:
        return tuple(GpuMemory(f"GPU{index}", free) for index, free in enumerate(asked))
    found = enumerate(machine.gpus())
    return tuple(GpuMemory(f"GPU{index}", asked[0] if asked else gpu.available) for index, gpu in found)


def _free(subject: Subject, asked: list[int], host: int) -> tuple[int, str]:
    """Free memory where the model computes, of all its GPUs together, and whose it is."""
    if subject.configured.machine.on_gpu:
        used = subject.used_gpus
        source = "--memory" if asked else f"{len(used)} GPU{'s' if len(used) > 1 else ''}"
        return sum(gpu.free for gpu in used), source
    return (asked[0], "--memory") if asked else (host, "this machine")


def _steps(subject: Subject, result: Estimate) -> list[tuple[str, str, str]]:
    """Each step by rule of thumb, with the exact value."""
    from stretto.model_files.fit import steps_text

    texts = steps_text(result, subject.shape, context_window=subject.window, n_seq_max=subject.slots)
    row = result.cache / max(1, result.cells * subject.shape.layers)
    held = result.cache + result.state
    exact = (
        f"{row:,.0f} bytes",
        *(f"{count:,} bytes" for count in (held // subject.slots, held, result.device)),
    )
    return [(f"Step {n}", text, figure) for n, (text, figure) in enumerate(zip(texts, exact, strict=True), 1)]


def _parts(result: Estimate) -> list[tuple[str, int]]:
    return [
        ("weights", result.weights),
        ("projector", result.projector),
        ("KV cache", result.cache),
        ("recurrent states", result.state),
        ("compute buffer", result.compute),
        ("output buffer", result.output),
        ("draft model", result.draft),
        ("adapters", result.adapters),
        ("snapshots (host memory)", result.snapshots),
        ("total", result.total),
    ]


def _devices(subject: Subject, result: Estimate) -> list[tuple[str, ...]]:
    free = {gpu.name: size(gpu.free) for gpu in subject.gpus}
    return [
        (
            name,
            *(size(count) for count in (each.weights, each.cache, each.compute, each.others, each.total)),
            free.get(name, ""),
        )
        for name, each in subject.by_device(result).items()
    ]


def _verdict(subject: Subject, fitting: Fit, source: str) -> list[str]:
    answer = "fits" if fitting.fits else "does not fit"
    return [
        f"{answer}: {size(fitting.needed)} needed, {size(fitting.free)} free ({source})",
        f"longest window with {subject.slots} slots: {fitting.context_window_max:,} tokens",
        f"most slots with {subject.window:,} tokens each: {fitting.n_seq_max_max}",
    ]


def _print(subject: Subject, result: Estimate, fitting: Fit, source: str) -> None:
    print_table(["", ""], subject.facts())
    line()
    print_table(["", "RULE OF THUMB", "EXACT"], _steps(subject, result), right=[2])
    line()
    rows = [(name, f"{count:,}", size(count)) for name, count in _parts(result) if count]
    print_table(["WHAT LLAMA.CPP ALLOCATES", "BYTES", ""], rows, right=[1, 2])
    line()
    devices = _devices(subject, result)
    if devices:
        names = ["ON EACH DEVICE", "WEIGHTS", "KV CACHE", "COMPUTE", "DRAFT MODEL, ADAPTERS", "TOTAL", "FREE"]
        print_table(names, devices, right=range(1, 7))
        line()
    heading("What fits")
    for text in _verdict(subject, fitting, source):
        line(text)


def _as_json(subject: Subject, result: Estimate, fitting: Fit, source: str) -> dict[str, Any]:
    thumb = result.thumb
    return {
        "model": subject.name,
        "kind": subject.shape.kind.value,
        "context_window": subject.window,
        "n_seq_max": subject.slots,
        "n_ctx": subject.settings.n_ctx,
        "cache_type_k": subject.settings.cache_type_k,
        "cache_type_v": subject.settings.cache_type_v,
        "rule_of_thumb": {
            "bytes_per_element": thumb.bytes_per_element,
            "kv_per_token_per_layer": thumb.kv_per_token_per_layer,
            "kv_per_sequence": thumb.kv_per_sequence,
            "slot_memory": thumb.slot_memory,
            "total": thumb.total,
            "steps": [text for _, text, _ in _steps(subject, result)],
        },
        "exact": {name.split(" (")[0].replace(" ", "_").lower(): count for name, count in _parts(result)},
        "devices": {
            name: {
                "weights": each.weights,
                "cache": each.cache,
                "compute": each.compute,
                "draft_model_and_adapters": each.others,
                "total": each.total,
            }
            for name, each in subject.by_device(result).items()
        },
        "fit": {
            "fits": fitting.fits,
            "free_bytes": fitting.free,
            "needed_bytes": fitting.needed,
            "memory_of": source,
            "context_window_max": fitting.context_window_max,
            "n_seq_max_max": fitting.n_seq_max_max,
        },
        "warnings": [*subject.notes, *result.warnings],
    }
