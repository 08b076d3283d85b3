"""`stretto bench`: load tests for any OpenAI-compatible server, plots, and comparisons of several.

The table goes to stdout, the progress bar and notes to stderr. `stretto.loadgen` does the work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from stretto.cli.bench_options import Reports, SendOptions, Sizes, Workload, pairs, shapes_of, target_of
from stretto.cli.failures import UsageError
from stretto.cli.output import heading, line, note, print_table, progress, say

if TYPE_CHECKING:
    from stretto.loadgen.figures import Slo
    from stretto.loadgen.plan import Target
    from stretto.loadgen.records import LoadRun
    from stretto.loadgen.shapes import Shape

BENCH_HELP = "Measure a server under load, or compare several."
SIZES, WIRE, REPORTS = Sizes(), SendOptions(), Reports()
app = App(name="bench", help=BENCH_HELP, default_parameter=Parameter(show_default=False))


@app.default
def bench(
    workload: Workload,
    /,
    *,
    url: str = "http://127.0.0.1:8000",
    speculation: Literal["compare"] | None = None,
    rounds: int = 3,
    sizes: Sizes = SIZES,
    wire: SendOptions = WIRE,
    reports: Reports = REPORTS,
) -> int:
    """Measure one server under a workload: rates, TTFT, inter-token times, goodput, fairness, errors.

    Parameters
    ----------
    workload
        steady, stall, burst, turns, mixed, tenants or trace.
    url
        The server.
    speculation
        compare: run everything with and without drafts, in turn, and print both with their ratio.
    rounds
        With --speculation compare: measurements of each; the order is reversed every time.
    """
    from stretto.loadgen.figures import summary
    from stretto.loadgen.session import curve, new_run_id

    target = target_of(url, wire)
    run_id = reports.run_id or new_run_id()
    shapes, loads, axis = shapes_of(workload, sizes, target, run_id)
    if speculation is not None:
        titled = {f"{workload}, {load:g} {axis}": shape for load, shape in zip(loads, shapes, strict=True)}
        return _compare_speculation(
            workload, titled, target, workers=wire.workers, reports=reports, rounds=rounds, run_id=run_id
        )
    with progress(f"{workload} on {target.url}") as shown:
        runs = curve(workload, shapes, target, run_id=run_id, workers=wire.workers, progress=shown)
    found = [summary(run, _slo(reports)) for run in runs]
    for load, item in zip(loads, found, strict=True):
        _print(item, f"{workload}, {load:g} {axis}" if len(runs) > 1 else workload, target)
    if reports.json is not None:
        _write_json(
            reports.json,
            {
                "model": Path(target.model).name,
                "runs": [_with_rows(*p) for p in zip(found, runs, strict=True)],
            },
        )
    if reports.plot is not None:
        _write_plots(reports.plot, workload, runs, found, loads, axis)
    return _verdict(found)


@app.command
def compare(
    workload: Workload,
    /,
    *,
    peer: Annotated[tuple[str, ...], Parameter(negative="")],
    rounds: int = 3,
    sizes: Sizes = SIZES,
    wire: SendOptions = WIRE,
    reports: Reports = REPORTS,
) -> int:
    """Run the same workload on several servers in turn; ratios of the first to the others, with their spread.

    Parameters
    ----------
    workload
        steady, stall, burst, turns, mixed, tenants or trace.
    peer
        A server as NAME=URL; give two or more.
    rounds
        Number of measurements per server; the order is reversed every time.
    """
    from stretto.loadgen import compare as comparing
    from stretto.loadgen import tables
    from stretto.loadgen.session import measure, new_run_id

    peers = pairs(peer, "--peer", "NAME=URL")
    if len(peers) < 2:
        raise UsageError("a comparison needs two servers", hint="--peer ours=http://… --peer theirs=http://…")
    targets = {name: target_of(url, wire) for name, url in peers.items()}
    run_id = reports.run_id or new_run_id()
    shapes, *_ = shapes_of(workload, sizes, next(iter(targets.values())), run_id)
    if len(shapes) > 1:
        raise UsageError("a comparison takes one load", hint="give one number of users, or one rate")

    def once(name: str, own_id: str) -> LoadRun:
        with progress(f"{workload} on {name}") as shown:
            return measure(
                workload, shapes[0], targets[name], run_id=own_id, workers=wire.workers, progress=shown
            )

    found = comparing.interleave(
        list(targets), once, rounds=rounds, run_id=run_id, slo=_slo(reports), tell=say
    )
    rows = comparing.compared(found)
    heading(f"{workload}: median [least – most] of {rounds} rounds")
    print_table(tables.comparison_columns(list(targets)), tables.comparison(rows))
    if reports.json is not None:
        _write_json(reports.json, {"workload": workload, "rounds": found, "compared": comparing.plain(rows)})
    return _verdict([item for items in found.values() for item in items])


def _compare_speculation(
    workload: str,
    shapes: Mapping[str, Shape],
    target: Target,
    *,
    workers: int,
    reports: Reports,
    rounds: int,
    run_id: str,
) -> int:
    """The same server with drafts as its settings allow them, and without."""
    from msgspec.structs import replace

    from stretto.loadgen import compare as comparing
    from stretto.loadgen import tables
    from stretto.loadgen.session import measure

    targets = {"on": target, "off": replace(target, body={**target.body, "draft_tokens": 0})}
    points: list[dict[str, Any]] = []
    for title, shape in shapes.items():

        def once(name: str, own_id: str, shape: Shape = shape) -> LoadRun:
            with progress(f"{workload}, speculation {name}") as shown:
                return measure(workload, shape, targets[name], run_id=own_id, workers=workers, progress=shown)

        found = comparing.interleave(
            list(targets), once, rounds=rounds, run_id=f"{run_id}/{title}", slo=_slo(reports), tell=say
        )
        rows = comparing.compared(found)
        heading(f"{title}, speculation on and off: median [least – most] of {rounds} rounds")
        print_table(tables.comparison_columns(list(targets)), tables.comparison(rows))
        _print_drafts([item["all"] for item in found["on"]])
        points.append({"load": title, "rounds": found, "compared": comparing.plain(rows)})
    if reports.json is not None:
        _write_json(reports.json, {"workload": workload, "speculation": points})
    return _verdict([item for point in points for items in point["rounds"].values() for item in items])


def _print_drafts(rounds: Sequence[Mapping[str, Any]]) -> None:
    from stretto.loadgen import tables

    names = ("drafted_tokens", "accepted_tokens")
    shown = tables.drafts({name: sum(item[name] for item in rounds) for name in names})
    for name, text in shown:
        line(f"{name}: {text}")
    if not shown:
        note("no drafts were verified: speculation is off (speculation: ngram, draft_model), or none paid")
    line()


def _slo(reports: Reports) -> Slo:
    from stretto.loadgen.figures import Slo

    return Slo(ttft_s=reports.slo_ttft, itl_s=reports.slo_itl)


def _print(found: dict[str, Any], title: str, target: Target) -> None:
    from stretto.loadgen import tables

    heading(f"{title} ({Path(target.model).name} at {target.url})")
    print_table(("", ""), tables.overview(found))
    line()
    print_table(tables.LATENCY_COLUMNS, tables.latencies(found), right=range(1, 6))
    line()


def _verdict(found: Sequence[dict[str, Any]]) -> int:
    """1 if any request failed."""
    errors = sum(sum(item["all"]["errors"].values()) for item in found)
    if errors:
        note(f"{errors} requests failed: latencies exclude them")
    return 1 if errors else 0


def _with_rows(found: dict[str, Any], run: LoadRun) -> dict[str, Any]:
    import msgspec

    rows = [
        {k: v for k, v in msgspec.to_builtins(r).items() if k != "chunks_s"} | {"ttft_s": r.ttft_s}
        for r in run.records
    ]
    return {**found, "requests": rows}


def _write_json(path: Path, data: dict[str, Any]) -> None:
    from stretto.loadgen.conditions import conditions

    text = json.dumps({"conditions": conditions(), **data}, indent=1)
    path.write_text(f"{text}\n", encoding="utf-8")
    say(f"wrote {path}")


def _write_plots(
    folder: Path,
    workload: str,
    runs: Sequence[LoadRun],
    found: list[dict[str, Any]],
    loads: Sequence[float],
    axis: str,
) -> None:
    from stretto.loadgen import plots

    folder.mkdir(parents=True, exist_ok=True)
    pictures = {
        f"{workload}-timeline-{load:g}.svg": plots.timeline_plot(run, f"{workload}, {load:g} {axis}")
        for run, load in zip(runs, loads, strict=True)
    }
    if len(runs) > 1:
        pictures[f"{workload}-latency.svg"] = plots.latency_plot(workload, loads, found, x_label=axis)
        pictures[f"{workload}-throughput.svg"] = plots.throughput_plot(workload, loads, found, x_label=axis)
    for name, picture in pictures.items():
        (folder / name).write_text(picture, encoding="utf-8")
    say(f"wrote {len(pictures)} plots to {folder}")
